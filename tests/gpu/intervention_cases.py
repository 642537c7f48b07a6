"""What interventions must do on a real GPU: the same as the model with other weights or another mask."""

from functools import partial

import torch

import regard
from regard.gpt import GPT, Config

LAYER, HEAD = 1, 2


def intervention_cases():
    """Every check with its name."""
    for dtype in (torch.float32, torch.bfloat16):
        yield f"intervention, a head set to zero, {dtype}", partial(ablated, dtype)
        yield f"intervention, blocked edges, {dtype}", partial(blocked, dtype)
        yield f"intervention, a pattern from another run, {dtype}", partial(patched, dtype)
    yield "intervention, gradients", gradients


def build(dtype):
    sizes = {"vocab_size": 101, "context_length": 512, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
    config = Config(**sizes, d_model=256, positions="rotary", norm="rms")
    model = GPT(config).to("cuda", dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.08)
    return model, torch.randint(0, 101, (2, 300), device="cuda")


def check_close(edited, expected, plain):
    """Compare logits; rounding in half precision is judged by the size of the logits."""
    limit = (1e-4 if edited.dtype == torch.float32 else 4e-2) * float(expected.float().abs().max())
    error = float((edited - expected).abs().max())
    change = float((expected - plain).abs().max())
    assert error <= limit < change, f"off by {error:.1e}, limit {limit:.1e}, changed by {change:.1e}"


@torch.no_grad()
def ablated(dtype):
    model, ids = build(dtype)
    plain = model(ids)
    with regard.intervene(model, regard.ablate(LAYER, HEAD)):
        edited = model(ids)
    layer = model.blocks[LAYER].attention
    layer.out.weight[:, HEAD * layer.head_dim : (HEAD + 1) * layer.head_dim] = 0
    check_close(edited, model(ids), plain)


@torch.no_grad()
def blocked(dtype):
    model, ids = build(dtype)
    plain = model(ids)
    edges = regard.prefix(40) | regard.rule(lambda b, h, q, k: (q - k) % 3 == 1)
    with regard.intervene(model, regard.block(LAYER, edges=edges)), regard.capture(model) as seen:
        edited = model(ids)
    assert seen.certificate.certified, str(seen.certificate)
    layer = model.blocks[LAYER].attention
    layer.mask = layer.mask & ~edges
    check_close(edited, model(ids), plain)


@torch.no_grad()
def patched(dtype):
    model, ids = build(dtype)
    plain, other = model(ids), ids.flip(1)
    source = regard.capture(model, inputs=(other,))
    own = regard.capture(model, inputs=(ids,), values=True)
    values = own.layer(LAYER).values
    expected = source[LAYER, HEAD].to_dense().double() @ values[:, HEAD // 2].double()
    with regard.intervene(model, regard.patch(LAYER, HEAD, source, what="pattern")):
        edited = model(ids)
    with regard.intervene(model, regard.ablate(LAYER, HEAD, by=expected)):
        check_close(edited, model(ids), plain)


def gradients():
    model, ids = build(torch.float32)
    edges = regard.rule(lambda b, h, q, k: (q - k) % 3 == 1)
    with regard.intervene(model, regard.block(LAYER, edges=edges)):
        model(ids).square().mean().backward()
    edited = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    layer = model.blocks[LAYER].attention
    layer.mask = layer.mask & ~edges
    model(ids).square().mean().backward()
    for got, parameter in zip(edited, model.parameters(), strict=True):
        torch.testing.assert_close(
            got, parameter.grad, rtol=1e-3, atol=1e-3 * float(parameter.grad.abs().max())
        )
