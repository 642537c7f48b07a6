"""Kernels as public libraries write them: signatures, interfaces, mods, and code without a backward pass."""

import pytest
import torch
import torch.nn.functional as F

import regard
from tests.checker.corpus import right, undecided, wrong
from tests.checker.corpus.kernel_styles import decode_attention
from tests.sampling import share


def of_transformers():
    """Its own attention functions, and its own mask functions."""
    pytest.importorskip("transformers")
    from transformers import masking_utils
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as with_sinks
    from transformers.models.llama.modeling_llama import eager_attention_forward

    masks = [masking_utils.sdpa_mask, masking_utils.eager_mask]
    return [eager_attention_forward, with_sinks, sdpa_attention_forward, *masks]


@pytest.mark.parametrize("index", share(range(5), 2, turn=1))
def test_the_functions_of_transformers_are_right(index):
    report = regard.check(of_transformers()[index])
    assert report.verdict == "right", str(report)
    if index == 1:  # of the calling module
        assert "sink logits, grouped heads" in [check.name for check in report.passed]


def mask_without_offset(batch_size, q_length, kv_length, q_offset=0, mask_function=None, attention_mask=None):
    query, key = torch.arange(q_length)[:, None], torch.arange(kv_length)
    mask = mask_function(0, 0, query, key).expand(batch_size, 1, q_length, kv_length)
    return mask if attention_mask is None else mask & attention_mask[:, None, None]


def mask_without_padding(
    batch_size, q_length, kv_length, q_offset=0, mask_function=None, attention_mask=None
):
    query, key = torch.arange(q_length)[:, None] + q_offset, torch.arange(kv_length)
    return mask_function(0, 0, query, key).expand(batch_size, 1, q_length, kv_length)


def causal_mask(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def causal_mask_without_itself(b, h, q_idx, kv_idx):
    return q_idx > kv_idx


def near(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 4)


def with_prefix(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) | (kv_idx < 3)


def odd(b, h, q_idx, kv_idx):
    return (q_idx + kv_idx) % 3 != 1


def capped(score, b, h, q_idx, kv_idx):
    return 20 * torch.tanh(score / 20)


def unchanged(score, b, h, q_idx, kv_idx):
    return score


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@torch.library.custom_op("regard_tests::attention_without_autograd", mutates_args=())
def without_autograd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, k, v)


def written_by_numpy(q, k, v):
    out = torch.empty_like(q)
    out.detach().numpy()[:] = attention(q, k, v).detach().numpy()
    return out


def with_lse(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


NO_BACKWARD = ("skipped gradients", "no backward pass")


@pytest.mark.parametrize(
    "entry",
    [
        right(decode_attention, "passed lengths that differ"),
        right(with_lse, "passed lse"),
        # Masks as Transformers makes them, and mods of FlexAttention.
        wrong(mask_without_offset, says=["top-left-causal"]),
        wrong(mask_without_padding, "padded-keys-leak"),
        right(causal_mask),
        right(near),
        right(near, causal=True, window=4),
        right(with_prefix),
        right(capped),
        right(capped, softcap=20.0),
        wrong(causal_mask_without_itself, "missing-diagonal"),
        wrong(near, "window-off-by-one", causal=True, window=5),
        wrong(unchanged, "softcap-dropped", softcap=2.0),
        wrong(causal_mask, "window-dropped", causal=True, window=3),
        undecided(odd, "causal=, window= or softcap="),
        # Code without a backward pass is right, and detached queries and keys are a mistake.
        right(lambda q, k, v: without_autograd(q, k, v), *NO_BACKWARD),
        right(written_by_numpy, *NO_BACKWARD),
        wrong(lambda q, k, v: attention(q.detach(), k.detach(), v), "weights-detached"),
        right(torch.no_grad()(attention), "skipped gradients"),
        right(torch.no_grad()(attention), "skipped gradients", gradients=False),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()
