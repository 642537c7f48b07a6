"""The numbers of a monitor against dense attention in float64, on models of several kinds."""

from itertools import product

import pytest
import torch
import transformers

import regard
from regard.attention.steps import trace
from regard.monitor.history import MEASURES
from regard.monitor.measures import choose_rows
from tests.auditor.small_models import GROUPED, tokens
from tests.sampling import combine

ROWS = 11
MODELS = {
    "Llama": ("Llama", {}),
    "Gemma 2, a soft cap": (
        "Gemma2",
        {"head_dim": 8, "attn_logit_softcapping": 0.05, "query_pre_attn_scalar": 8},
    ),
    "gpt-oss, sinks": ("GptOss", {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "Mistral, a window": ("Mistral", {"sliding_window": 5}),
}
PACKED = torch.tensor([[*range(7), *range(9), *range(4)]])
BATCHES = {
    "plain": {"input_ids": tokens(2, 20)},
    "packed": {"input_ids": tokens(1, 20), "position_ids": PACKED},
    "padded": {
        "input_ids": tokens(2, 20),
        "attention_mask": (torch.arange(20) >= torch.tensor([[0], [6]])).long(),
    },
}


def make(name, dtype):
    kind, options = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**GROUPED | options, attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).train()
    for parameter in model.parameters():
        parameter.data.mul_(4.0)  # random weights have scores near 0 otherwise
    return model.to(dtype)


def dense_measures(m, dtype, rows, real, documents):
    """Every measure of every head from the dense matrix in a dtype, by its definition."""
    sinks = None if m.sinks is None else m.sinks.to(dtype)
    q, k = m.q.to(dtype), m.k.to(dtype)
    steps = trace(q, k, k, m.mask, scale=m.scale, softcap=m.softcap, sinks=sinks)
    A, s = (x[:, :, rows].double() for x in (steps.weights, steps.masked))
    H, S = A.shape[1], A.shape[3]
    counts = (s > -torch.inf).any(-1)
    if real is not None:
        counts = counts & real[:, None, rows]
    total = s.exp().sum(-1) if sinks is None else s.exp().sum(-1) + sinks.double().exp().view(-1, 1)
    lse, seen = total.log(), s > -torch.inf
    keys = seen.sum(-1)
    entropy = torch.special.entr(A).sum(-1)
    relative = torch.where(keys > 1, entropy / keys.clamp(min=2).log(), 1.0)
    back = rows[:, None] - torch.arange(S)
    found = {}

    def mean(x):
        return (x * counts).sum((0, 2)) / counts.sum((0, 2))

    found["max_score"] = s.amax(-1).masked_fill(~counts, -torch.inf).amax((0, 2))
    found["max_lse"] = lse.masked_fill(~counts, -torch.inf).amax((0, 2))
    found["min_lse"] = lse.masked_fill(~counts, torch.inf).amin((0, 2))
    found["entropy"], found["relative_entropy"] = mean(entropy), mean(relative)
    found["distance"] = mean((A * back).sum(-1))
    times = (seen & counts.unsqueeze(-1)).sum((0, 2))
    shares = (A * counts.unsqueeze(-1)).sum((0, 2)) / times.clamp(min=1)
    found["sink"] = shares.where(times >= times.amax(-1, keepdim=True) / 2, 0.0).amax(-1)
    found["q_norm"] = q[:, :, rows].double().norm(dim=-1).amax((0, 2))
    lengths = k.double().norm(dim=-1)
    lengths = lengths if real is None else lengths.where(real[:, None], 0.0)
    found["k_norm"] = lengths.amax((0, 2)).repeat_interleave(H // k.shape[1])
    if sinks is not None:
        found["gate"] = mean((sinks.double().view(-1, 1) - lse).exp())
    if real is not None:
        found["padding"] = mean((A * ~real[:, None, None]).sum(-1))
    if documents is not None:
        apart = documents[:, None, rows, None] != documents[:, None, None]
        found["across"] = mean((A * apart).sum(-1))
    return found


@pytest.mark.parametrize(
    ("name", "batch", "dtype"),
    [(*case, dtype) for case, dtype in combine(product(MODELS, BATCHES), [torch.float32, torch.bfloat16])],
    ids=str,
)
def test_numbers_err_at_most_twice_as_much_as_eager_attention(name, batch, dtype):
    model, arguments = make(name, dtype), BATCHES[batch] | {"use_cache": False}
    with regard.Monitor(model, rows=ROWS, quiet=True, alarm=lambda sentence: None) as monitor:
        model(**arguments)
    (record,) = monitor.history.records
    with torch.no_grad(), regard.capture(model) as seen:
        model(**arguments)
    real = (
        arguments["attention_mask"].bool()
        if batch == "padded"
        else torch.ones(arguments["input_ids"].shape).bool()
    )
    documents = (PACKED == 0).cumsum(1) if batch == "packed" else None
    rows = choose_rows(20, ROWS, 0)
    assert record.rows == (int(rows[0]), int(rows[-1]), ROWS)
    for number, layer in record.layers.items():
        m = seen[int(number)]
        assert layer.certified == seen.layers[int(number)].evidence.certified
        true, eager = (dense_measures(m, x, rows, real, documents) for x in (torch.float64, dtype))
        for measure in MEASURES:
            ours = layer.values[measure]
            if measure == "sink_key":
                continue
            if measure not in true:
                assert ours == [None] * len(ours), measure
                continue
            error = (torch.tensor(ours, dtype=torch.float64) - true[measure]).abs().max()
            theirs = (eager[measure] - true[measure]).abs().max()
            unit = 8 * torch.finfo(torch.float32).eps * true[measure].abs().max().clamp(min=1.0)
            assert error <= 2 * theirs + unit, (number, measure, error, theirs)
    if batch == "packed" and name == "Llama":  # whose documents Transformers keeps apart by their positions
        assert all(x < 1e-6 for layer in record.layers.values() for x in layer.values["across"])


@pytest.mark.parametrize(("T", "rows"), [(1, 256), (7, 3), (1000, 256), (256, 256), (0, 4)])
def test_rows_are_spread_and_rotate(T, rows):
    chosen = [choose_rows(T, rows, turn) for turn in range(400)]
    for some in chosen:
        assert len(some) == min(rows, T) == len(some.unique())
        assert not len(some) or 0 <= some.min() <= some.max() < T
    assert T == 0 or len(torch.cat(chosen).unique()) == T, "every row has its turn"
