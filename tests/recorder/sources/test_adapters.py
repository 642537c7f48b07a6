"""Any module through an adapter: what it says is recorded and checked, and mistakes are told kindly."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import regard


class Homemade(nn.Module):
    """Somebody's attention, written as people write it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, *, flip=False):
        q, k, v = self.heads(x)
        scores = q @ k.mT / 2.0
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        self.mixed = scores.softmax(-1) @ v
        out = self.out(self.mixed.transpose(1, 2).flatten(2))
        return -out if flip else out

    def heads(self, x):
        return (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"attn": Homemade(), "norm": nn.LayerNorm(16)}) for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block["attn"](block["norm"](x), flip=True)
        return x


def adapter(module, args, kwargs, output):
    assert kwargs.get("flip") is True
    assert output.shape == args[0].shape
    q, k, v = module.heads(args[0])
    return {"q": q, "k": k, "v": v, "output": module.mixed, "mask": regard.causal, "scale": 0.5}


@pytest.mark.parametrize("at", [{"blocks.*.attn": adapter}, {f"blocks.{n}.attn": adapter for n in (2, 0, 1)}])
def test_modules_by_name_or_pattern(at):
    model, x = Stack(), torch.randn(2, 7, 16)
    with torch.no_grad():
        plain = model(x)
        with regard.capture(model, adapters=at) as seen:
            assert torch.equal(model(x), plain)
        q, k, _ = model.blocks[0]["attn"].heads(model.blocks[0]["norm"](x))
    assert [(layer.key, layer.name) for layer in seen.layers] == [(n, f"blocks.{n}.attn") for n in range(3)]
    assert seen.certificate.certified
    assert seen.certificate[0].scale == 0.5
    assert not any("forward" in vars(module) for module in model.modules())
    hidden = torch.ones(7, 7).triu(1).bool()
    wanted = (q @ k.mT / 2.0).masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(seen[0].to_dense(), wanted)


def test_named_tuples_single_sequences_and_calls_that_are_no_attention():
    class Found(NamedTuple):
        q: Tensor
        k: Tensor
        v: Tensor
        mask: Any = None
        output: Any = None

    calls = []

    def single(module, args, kwargs, output):
        calls.append(1)
        return None if len(calls) == 1 else Found(*[args[0].view(5, 2, 8).transpose(0, 1)] * 3)

    module = nn.Linear(16, 16)
    with regard.capture(nn.Sequential(module), adapters={"0": single}) as seen:
        module(torch.randn(5, 16))
        module(torch.randn(5, 16))
    assert seen[0].shape == (1, 2, 5, 5)
    assert len(calls) == 2
    assert "gives no output to compare with" in str(seen.certificate)
    assert not seen.certificate.certified


def test_what_an_adapter_says_is_not_believed():
    def wrong(module, *call):
        return adapter(module, *call) | {"mask": None}

    model = Stack()
    with torch.no_grad(), regard.capture(model, adapters={"blocks.0.attn": wrong}) as seen:
        model(torch.randn(1, 6, 16))
    assert not seen.certificate.certified
    assert "off the output that its adapter gave by" in str(seen.certificate)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (7, r"adapters\['a'\]: expected a dict of q, k, v and optionally output.*got int"),
        ({"q": 1, "k": 1}, "missing: v"),
        ({"q": "x", "k": "x", "v": "x"}, r"q: expected \(batch, heads, length, width\), got str"),
        ({"query": 1, "q": 1, "k": 1, "v": 1}, "got also query"),
        (
            {"q": torch.ones(1, 3, 4, 2), "k": torch.ones(1, 2, 4, 2), "v": torch.ones(1, 2, 4, 2)},
            "divides q's 3",
        ),
        (
            {"q": torch.ones(1, 1, 4, 2), "k": torch.ones(1, 1, 5, 3), "v": torch.ones(1, 1, 5, 2)},
            "expected width 2",
        ),
        (
            dict.fromkeys("qkv", torch.ones(1, 2, 4, 2)) | {"output": torch.ones(1, 4, 2, 2)},
            r"output: expected \(1, 2, 4, 2\), before any projection, got \(1, 4, 2, 2\)",
        ),
        (
            dict.fromkeys("qkv", torch.ones(1, 2, 4, 2)) | {"lse": torch.ones(1, 4, 2)},
            r"lse: expected \(1, 2, 4\)",
        ),
        (dict.fromkeys("qkv", torch.ones(1, 2, 4, 2)) | {"mask": torch.ones(4, 4)}, "ambiguous"),
    ],
)
def test_mistakes_are_told_with_the_name(said, message):
    model = nn.ModuleDict({"a": nn.Identity()})
    with pytest.raises(ValueError, match=message), regard.capture(model, adapters={"a": lambda *call: said}):
        model["a"](torch.ones(1))
    assert "forward" not in vars(model["a"])


def test_an_adapter_and_listening_to_a_modules_own_code_give_the_same_maps():
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    told = regard.capture(model, inputs=x, adapters={"blocks.*.attn": adapter})
    heard = regard.capture(model, inputs=x)
    assert [layer.name for layer in heard.layers] == [layer.name for layer in told.layers]
    assert heard.certificate.certified
    for ours, theirs in zip(heard.layers, told.layers, strict=True):
        assert torch.allclose(ours.map.to_dense(), theirs.map.to_dense(), atol=1e-6)
        assert str(ours.map.mask) == "causal"


def test_an_adapter_that_fails_leaves_the_model_as_it_was():
    def failing(*call):
        raise ZeroDivisionError("mine")

    model = Stack()
    with (
        pytest.raises(ZeroDivisionError, match="mine"),
        regard.capture(model, adapters={"blocks.*.attn": failing}),
    ):
        model(torch.randn(1, 4, 16))
    assert not any("forward" in vars(module) for module in model.modules())
