"""Attention that is not in the code of a module's class: heard, or named as missing."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

import regard
from tests.recorder.sources import attention_functions
from tests.recorder.sources.attention_functions import Attend, closure, eager, fused

B, T, H, D = 2, 7, 4, 8
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.treespec, LeafSpec.*is deprecated:FutureWarning",  # PyTorch's own, in an export
    "ignore:.*is deprecated.*torch.export:FutureWarning",
)


class Projected(nn.Module):
    """Cuts the projections of a text into heads, and merges what a subclass computes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(H * D, 3 * H * D)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return self.run(parts[0], parts[1], parts[2]).transpose(1, 2).flatten(2)

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class Holding(Projected):
    """Holds a function in an attribute."""

    def __init__(self, function: Attend) -> None:
        super().__init__()
        self.function = function

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(q, k, v)


class OtherFile(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_functions.eager(q, k, v)


class OtherFileFused(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_functions.fused(q, k, v)


class Tabled(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_functions.TABLE["eager"](q, k, v)


class Applied(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_functions.EagerFunction.apply(q, k, v)


class AppliedFused(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_functions.FusedFunction.apply(q, k, v)


class Core:
    def compute(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return eager(q, k, v)


class HoldingObject(Projected):
    def __init__(self) -> None:
        super().__init__()
        self.core = Core()

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.core.compute(q, k, v)


class Operator(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.ops.aten.scaled_dot_product_attention.default(q, k, v)


class Usual(Projected):
    """Attention in the class's own code."""

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(D), dim=-1) @ v


class UsualFused(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


def text() -> Tensor:
    return 2 * torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(0))


def exported(model: nn.Module, decomposed: bool = False) -> nn.Module:
    program = torch.export.export(model.eval(), (text(),))
    return (program.run_decompositions() if decomposed else program).module()


HEARD: dict[str, Callable[[], nn.Module]] = {
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
    "other file": OtherFile,
    "other file, fused": OtherFileFused,
    "table": Tabled,
    "autograd": Applied,
    "autograd, fused": AppliedFused,
    "operator": Operator,
    "graph": lambda: fx.symbolic_trace(Usual()),
    "graph, fused": lambda: fx.symbolic_trace(UsualFused()),
    "export": lambda: exported(Usual()),
    "export, fused": lambda: exported(UsualFused()),
    "decomposed export": lambda: exported(Usual(), decomposed=True),
}


class Pair(nn.Module):
    """An attention that is recognised beside another one."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.usual, self.other = Usual(), other

    def forward(self, x: Tensor) -> Tensor:
        return self.usual(x) + self.other(x)


@pytest.mark.parametrize("build", HEARD.values(), ids=HEARD.keys())
def test_attention_outside_of_a_class_is_heard(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    other, x = build(), text()
    with torch.no_grad():
        plain = other(x)
        with regard.capture(other) as alone:
            assert torch.equal(other(x), plain)
        pair = Pair(other)
        with regard.capture(pair, values=True) as both:
            pair(x)
    assert [layer.name for layer in alone.layers] == [""]
    assert [layer.name for layer in both.layers] == ["usual", "other"]
    for seen in (alone, both):
        assert seen.certificate.certified, str(seen.certificate)
        assert seen.missing == {}
        assert {layer.shape for layer in seen.layers} == {(B, H, T, T)}
    output = both.layers[1].map @ both.layers[1].values
    torch.testing.assert_close(output.transpose(1, 2).flatten(2), plain, atol=1e-5, rtol=1e-4)


def scripted_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-1) @ v


class FusedOperator(Projected):
    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]


UNHEARD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "script": (lambda: torch.jit.trace(Usual().eval(), text()), "Usual"),
    "script, fused": (lambda: torch.jit.trace(UsualFused().eval(), text()), "UsualFused"),
    "script function": (lambda: Holding(torch.jit.script(scripted_attention)), "Holding"),
    "operator": (
        FusedOperator,
        "it calls PyTorch's operator _scaled_dot_product_flash_attention_for_cpu, which cannot be heard",
    ),
}


@pytest.mark.parametrize(("build", "reason"), UNHEARD.values(), ids=UNHEARD.keys())
def test_attention_that_cannot_be_heard_is_named(build: Callable[[], nn.Module], reason: str) -> None:
    pair, x = Pair(build()), text()
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="could not be captured and is missing"),
        regard.capture(pair) as seen,
    ):
        pair(x)
    assert [layer.name for layer in seen.layers] == ["usual"]
    assert seen.missing == {"other": reason}
