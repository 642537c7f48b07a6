"""Attention that is not in the code of a module's class: heard, or named as missing."""

import functools
import math

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

import regard
from regard import attend
from tests.recorder.small_models import captured
from tests.recorder.sources import attention_functions
from tests.recorder.sources.attention_functions import closure, eager, fused

B, T, H, D = 2, 7, 4, 8
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.treespec, LeafSpec.*is deprecated:FutureWarning",  # PyTorch's own, in an export
    "ignore:.*is deprecated.*torch.export:FutureWarning",
)


class Projected(nn.Module):
    """Cuts the projections of a text into heads, and merges what a subclass computes of them."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(H * D, 3 * H * D)

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return self.run(parts[0], parts[1], parts[2]).transpose(1, 2).flatten(2)


class Holding(Projected):
    """Holds a function in an attribute."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def run(self, q, k, v):
        return self.function(q, k, v)


class Core:
    def compute(self, q, k, v):
        return eager(q, k, v)


class HoldingObject(Projected):
    def __init__(self):
        super().__init__()
        self.core = Core()

    def run(self, q, k, v):
        return self.core.compute(q, k, v)


class Usual(Projected):
    """Attention in the class's own code."""

    def run(self, q, k, v):
        return torch.softmax(q @ k.mT / math.sqrt(D), dim=-1) @ v


class UsualFused(Projected):
    def run(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)


def written(run, **attributes):
    """A class in whose own code this is the attention."""
    return type("Written", (Projected,), {"run": run, **attributes})


def by_default(self, q, k, v, function=attend):
    return function(q, k, v)


def by_named_default(self, q, k, v, *, function=attend):
    return function(q, k, v)


def imported_inside(self, q, k, v):
    from regard import attend as local

    return local(q, k, v)


def text():
    return 2 * torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(0))


def exported(model, decomposed=False):
    program = torch.export.export(model.eval(), (text(),))
    return (program.run_decompositions() if decomposed else program).module()


HEARD = {
    "function": lambda: Holding(eager),
    "fused function": lambda: Holding(fused),
    "PyTorch's function": lambda: Holding(functional.scaled_dot_product_attention),
    "lambda": lambda: Holding(lambda q, k, v: torch.softmax(q @ k.mT / math.sqrt(D), -1) @ v),
    "partial": lambda: Holding(functools.partial(eager)),
    "method": lambda: Holding(Core().compute),
    "closure": lambda: Holding(closure(eager)),
    "closure of a closure": lambda: Holding(closure(closure(eager))),
    "closure with PyTorch's function": lambda: Holding(closure(functional.scaled_dot_product_attention)),
    "object": HoldingObject,
    "other file": written(lambda self, q, k, v: attention_functions.eager(q, k, v)),
    "other file, fused": written(lambda self, q, k, v: attention_functions.fused(q, k, v)),
    "table": written(lambda self, q, k, v: attention_functions.TABLE["eager"](q, k, v)),
    "autograd": written(lambda self, q, k, v: attention_functions.EagerFunction.apply(q, k, v)),
    "autograd, fused": written(lambda self, q, k, v: attention_functions.FusedFunction.apply(q, k, v)),
    "operator": written(lambda self, q, k, v: torch.ops.aten.scaled_dot_product_attention.default(q, k, v)),
    "graph": lambda: fx.symbolic_trace(Usual()),
    "graph, fused": lambda: fx.symbolic_trace(UsualFused()),
    "export": lambda: exported(Usual()),
    "export, fused": lambda: exported(UsualFused()),
    "decomposed export": lambda: exported(Usual(), decomposed=True),
    "attend": lambda: Holding(attend),
    "attend of the package": written(lambda self, q, k, v: regard.attend(q, k, v)),
    "attend, partial": lambda: Holding(functools.partial(attend, backend="auto")),
    "attend, closure": lambda: Holding(closure(attend)),
    "attend, default": written(by_default),
    "attend, named default": written(by_named_default),
    "attend, imported inside": written(imported_inside),
    "attend, static": written(staticmethod(attend)),
    # Python 3.14 makes a method of a partial that is not static.
    "attend, static partial": written(staticmethod(functools.partial(attend, mask=regard.full))),
    "attend, class table": written(lambda self, q, k, v: self.table["own"](q, k, v), table={"own": attend}),
}


class Pair(nn.Module):
    """An attention that is recognised beside another one."""

    def __init__(self, other):
        super().__init__()
        self.usual, self.other = Usual(), other

    def forward(self, x):
        return self.usual(x) + self.other(x)


@pytest.mark.parametrize("build", HEARD.values(), ids=HEARD.keys())
def test_attention_outside_of_a_class_is_heard(build):
    torch.manual_seed(0)
    other, x = build(), text()
    with torch.no_grad():
        alone = captured(other, x)
        both = captured(Pair(other), x, options={"values": True})
        plain = other(x)
    assert [layer.name for layer in alone.layers] == [""]
    assert [layer.name for layer in both.layers] == ["usual", "other"]
    for seen in (alone, both):
        assert seen.missing == {}
        assert {layer.shape for layer in seen.layers} == {(B, H, T, T)}
    output = both.layers[1].map @ both.layers[1].values
    torch.testing.assert_close(output.transpose(1, 2).flatten(2), plain, atol=1e-5, rtol=1e-4)


def scripted_attention(q, k, v):
    return torch.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-1) @ v


FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
UNHEARD = {
    "script": (lambda: torch.jit.trace(Usual().eval(), text()), "Usual"),
    "script, fused": (lambda: torch.jit.trace(UsualFused().eval(), text()), "UsualFused"),
    "script function": (lambda: Holding(torch.jit.script(scripted_attention)), "Holding"),
    "operator": (
        written(lambda self, q, k, v: FUSED(q, k, v)[0]),
        "it calls PyTorch's operator _scaled_dot_product_flash_attention_for_cpu, which cannot be heard",
    ),
}


@pytest.mark.parametrize(("build", "reason"), UNHEARD.values(), ids=UNHEARD.keys())
def test_attention_that_cannot_be_heard_is_named(build, reason):
    pair, x = Pair(build()), text()
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="could not be captured and is missing"),
        regard.capture(pair) as seen,
    ):
        pair(x)
    assert [layer.name for layer in seen.layers] == ["usual"]
    assert seen.missing == {"other": reason}


class Processor:
    """Like the `AttnProcessor2_0` of diffusers: not a module itself."""

    def __call__(self, attn, hidden_states, context):
        context = hidden_states if context is None else context
        projected = attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context)
        q, k, v = (x.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for x in projected)
        output = functional.scaled_dot_product_attention(q, k, v)
        return attn.to_out(output.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    def __init__(self, width, context_width=None, heads=4):
        super().__init__()
        self.is_cross_attention = context_width is not None
        self.heads, self.processor = heads, Processor()
        self.to_q, self.to_out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.to_k, self.to_v = (nn.Linear(context_width or width, width, bias=False) for _ in range(2))

    def forward(self, hidden_states, encoder_hidden_states=None):
        return self.processor(self, hidden_states, encoder_hidden_states)


class Denoiser(nn.Module):
    """Two blocks of a text-to-image model: the latents attend to each other, then to the text."""

    def __init__(self):
        super().__init__()
        blocks = (
            nn.ModuleDict({"attn1": CrossAttention(32), "attn2": CrossAttention(32, 24)}) for _ in range(2)
        )
        self.transformer_blocks = nn.ModuleList(blocks)

    def forward(self, latents, text):
        for block in self.transformer_blocks:
            latents = latents + block["attn1"](latents)
            latents = latents + block["attn2"](latents, text)
        return latents


def test_the_cross_attention_of_a_denoiser_is_captured():
    model, latents, text = Denoiser().eval(), torch.randn(1, 16, 32), torch.randn(1, 7, 24)
    with torch.no_grad():
        seen = captured(model, latents, text)
    assert not seen.missing
    crosses = [layer for layer in seen.layers if layer.name.endswith("attn2")]
    assert [layer.shape for layer in crosses] == [(1, 4, 16, 7)] * 2
    assert [str(layer.key) for layer in crosses] == [
        "transformer_blocks.cross.0",
        "transformer_blocks.cross.1",
    ]

    # The first self-attention, by hand.
    attn = model.transformer_blocks[0]["attn1"]
    q, k = (proj(latents).unflatten(-1, (4, 8)).transpose(1, 2) for proj in (attn.to_q, attn.to_k))
    expected = (q @ k.mT / 8**0.5).softmax(-1)
    assert torch.allclose(seen["transformer_blocks.0"].to_dense(), expected, atol=1e-6)
