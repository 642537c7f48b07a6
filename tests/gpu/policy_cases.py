"""What the measurement of cache policies must do on a real GPU: the same as in float64 on a CPU."""

from functools import partial

import torch

import regard
from regard import policies

NAMES = ("streaming", "random", "h2o", "snapkv", "tova", "key_norm", "quest", "blocks", "best")


def policy_cases():
    """Every check with its name."""
    for name in NAMES:
        for dtype in (torch.bfloat16, torch.float32):
            yield f"cache policy {name}, {dtype}", partial(retained, name, dtype)
    yield "cache policy, soft cap and sinks", partial(retained, "streaming", torch.float32, options=True)
    yield "cache policy, one layer of 131,072 tokens", long_layer


@torch.no_grad()
def retained(name, dtype, options=False):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 700, 64, device="cuda", dtype=dtype) for n in (8, 2, 2))
    extra = {"softcap": 20.0, "sinks": torch.randn(8, device="cuda", dtype=dtype)} if options else {}
    window = regard.causal & regard.window(500)
    for mask in (regard.causal, window):
        policy = getattr(policies, name)()
        found = policies.measure(regard.attention_map(q, k, mask=mask, **extra), v, policy, 128)
        exact = {key: x.cpu() if isinstance(x, torch.Tensor) else x for key, x in extra.items()}
        m = regard.attention_map(q.cpu(), k.cpu(), mask=mask, **exact)
        expected = policies.measure(m, v.cpu(), policy, 128)
        # Scores in another order of sums may rank two keys that are nearly equal the other way round.
        near = (found.share.cpu() - expected.share).abs() < (2e-2 if dtype == torch.bfloat16 else 1e-4)
        assert near.double().mean() > 0.98, f"{mask}: {1 - near.double().mean():.3f} of the rows differ"
        assert torch.equal(found.concerned.cpu(), expected.concerned)
        assert float((found.share.mean().cpu() - expected.share.mean()).abs()) < 2e-3


@torch.no_grad()
def long_layer():
    """32 heads of 128 on 8: at most 3 GiB beyond q, k and v."""
    q, k, v = (torch.randn(1, n, 131_072, 128, device="cuda", dtype=torch.bfloat16) for n in (32, 8, 8))
    m = regard.attention_map(q, k, mask=regard.causal)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    policies.measure(m, v, policies.snapkv(), 4096)
    memory = (torch.cuda.max_memory_allocated() - before) / 2**30
    assert memory <= 3, f"{memory:.2f} GiB"
