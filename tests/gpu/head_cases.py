"""What the head scores must be on a real GPU: those of the same maps on a CPU."""

from functools import partial

import torch

import regard
from regard.heads import describe
from regard.heads.corpus_survey.examples import collect_examples

T = 700


def head_cases():
    """Every check with its name."""
    masks = {
        "causal": regard.causal,
        "window": regard.causal & regard.window(100),
        "both sides": regard.window(90, ahead=40),
        "prefix": regard.causal | regard.prefix(20),
        "documents": regard.causal & regard.documents(torch.arange(T)[None] // 300),
        "alibi": regard.causal & regard.alibi(4),
    }
    for name, mask in masks.items():
        for dtype in (torch.bfloat16, torch.float32):
            yield f"head scores, {name}, {dtype}", partial(head_scores, mask, dtype)
    yield "head scores, large heads", partial(head_scores, regard.causal, torch.float32, size=8.0)
    yield "head scores, soft cap and sinks", partial(head_scores, regard.causal, torch.float32, options=True)
    yield "head scores of a padded batch", padded_batch
    yield "head scores, examples of a survey", survey_examples


@torch.no_grad()
def head_scores(mask, dtype, size=1.0, options=False):
    ids = torch.randint(0, 60, (1, T), device="cuda")
    maps = []
    for _ in range(3):
        q, k = (torch.randn(1, n, T, 64, device="cuda").mul(size).to(dtype) for n in (4, 2))
        k[:, :, 0] *= 2  # more of a sink
        extra = {"softcap": 20.0, "sinks": torch.randn(4, device="cuda")} if options else {}
        maps.append(regard.attention_map(q, k, mask=mask, **extra))
    compare(describe(maps, ids), describe([m.to("cpu") for m in maps], ids.cpu()), dtype)


@torch.no_grad()
def padded_batch():
    is_token = torch.arange(T, device="cuda") >= torch.tensor([[0], [30], [211]], device="cuda")
    ids = torch.randint(0, 60, (3, T), device="cuda")
    maps = []
    for _ in range(2):
        q, k = (torch.randn(3, 4, T, 64, device="cuda") for _ in range(2))
        maps.append(regard.attention_map(q, k, mask=regard.causal & regard.padding(is_token)))
    found = describe(maps, ids, attention_mask=is_token)
    compare(
        found, describe([m.to("cpu") for m in maps], ids.cpu(), attention_mask=is_token.cpu()), torch.float32
    )


@torch.no_grad()
def survey_examples():
    ids = torch.randint(0, 60, (5, T), device="cuda")
    q, k = (torch.randn(5, 4, T, 64, device="cuda") for _ in range(2))
    m = regard.attention_map(q, k, mask=regard.causal)
    found, again = (collect_examples(m, ids, 3, 4).tensors for _ in range(2))
    expected = collect_examples(m.to("cpu"), ids.cpu(), 3, 4).tensors
    for name, x in found.items():
        assert torch.equal(x, again[name]), f"{name}: two runs differ"
    # Other fields hold an order, which rounding may change where two weights are nearly equal.
    for name in ("weight", "distances", "query_mass", "key_mass"):
        assert (found[name].cpu() - expected[name]).abs().max() < 1e-3, name


def compare(found, expected, dtype):
    tolerance = 5e-3 if dtype == torch.bfloat16 else 1e-4
    for row, other in zip(found, expected, strict=True):
        assert row.scores.keys() == other.scores.keys()
        # Two offsets or tokens may receive nearly the same, and rounding decides which of them is the best.
        same = row.offset == other.offset and row.token == other.token and row.sink_key == other.sink_key
        for name, score in row.scores.items():
            if not same and name in ("fixed_offset", "one_token", "sink"):
                continue
            exact = other.scores[name]
            gap = abs(score.value - exact.value) / max(1.0, abs(exact.value))
            assert gap < tolerance, f"{row.layer}.{row.head} {name}: {score.value} and {exact.value}"
            if score.null == score.null:
                assert abs(score.null - exact.null) / max(1.0, abs(exact.null)) < 1e-4, f"{name}, null"
