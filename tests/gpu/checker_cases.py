"""`regard.check(…, device="cuda")`: right kernels are right, planted mistakes are named."""

from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import regard
from tests.checker.triton_kernel import MISTAKES, WARNINGS, kernel


def checker_cases():
    """Every check with its name."""
    yield "check, our own Triton backend", partial(is_right, own_backend)
    yield "check, PyTorch's attention", partial(is_right, F.scaled_dot_product_attention)
    yield "check, PyTorch's module", module_is_right
    yield "check, FlexAttention, compiled", flex_is_right
    yield "check, FlexAttention, compiled and causal", partial(flex_is_right, causal=True)
    yield "check, a small Triton kernel", partial(is_right, kernel())
    for mistake in MISTAKES:
        yield f"check, a small Triton kernel, {mistake}", partial(is_named, mistake)


def own_backend(q, k, v, is_causal=False, softcap=None, sinks=None, return_lse=False):
    mask = regard.causal if is_causal else None
    options = {"softcap": softcap, "sinks": sinks, "return_lse": return_lse}
    return regard.attend(q, k, v, mask=mask, **options, backend="triton")


def compiled_flex(causal):
    attend = torch.compile(flex_attention)

    def flex(q, k, v):
        T, S = q.shape[2], k.shape[2]
        mask = None
        if causal:
            mask = create_block_mask(
                lambda b, h, i, j: j <= i + S - T, None, None, T, S, device=str(q.device)
            )
        return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    return flex


def is_right(thing, causal=None):
    torch._dynamo.config.recompile_limit = 64
    report = regard.check(thing, device="cuda", causal=causal)
    assert report.verdict == "right", str(report)


def flex_is_right(causal=None):
    is_right(compiled_flex(bool(causal)), causal)


def module_is_right():
    layer = torch.nn.MultiheadAttention(48, 4, batch_first=True)
    report = regard.check(layer, device="cuda")
    assert report.verdict == "right", str(report)


def is_named(mistake):
    report = regard.check(kernel(mistake), device="cuda")
    assert report.verdict == ("right" if mistake in WARNINGS else "wrong"), str(report)
    assert report.diagnoses[0].name == mistake, str(report)
