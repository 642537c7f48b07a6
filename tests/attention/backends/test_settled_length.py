"""A cache that grows stays with the flash kernel; a settled one goes over to PyTorch's choice."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention.backends import fused_attention, plan
from regard.attention.backends.fused_attention import SettledLength


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called, on a CPU in place of a GPU."""
    called: list[str] = []

    def flash(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> tuple[Tensor, ...]:
        called.append("flash")
        return (scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True),)

    monkeypatch.setattr(fused_attention, "SETTLED", 4)
    monkeypatch.setattr(fused_attention, "flash_attention", flash)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return called


def settled(calls: list[str], scale: float = 0.5) -> SettledLength:
    def chosen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        calls.append("chosen")
        return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)

    return SettledLength(scale, chosen)


def step(attention: SettledLength, keys: int, capacity: int | None = None) -> None:
    q, cache = torch.randn(1, 4, 1, 8), torch.randn(1, 2, capacity or keys, 8)[:, :, :keys]
    expected = scaled_dot_product_attention(q, cache, cache, scale=0.5, enable_gqa=True)
    assert torch.equal(attention(q, cache, cache), expected)


def test_a_settled_length_goes_over_once(calls: list[str]) -> None:
    attention = settled(calls)
    for _ in range(9):
        step(attention, 8)
    assert calls == ["flash"] * 4 + ["chosen"] * 5
    step(attention, 9)
    step(attention, 8)  # which has to settle again
    assert calls[9:] == ["flash"] * 2


@pytest.mark.parametrize(
    "caches",
    [[(length, 40) for length in range(5, 30) for _ in range(3)], [(8, 30), (8, 40)] * 10],
    ids=["lengths that grow under three layers", "other strides"],
)
def test_other_lengths_and_strides_do_not_settle(calls: list[str], caches: list[tuple[int, int]]) -> None:
    attention = settled(calls)
    for length, capacity in caches:
        step(attention, length, capacity)
    assert set(calls) == {"flash"}


def test_it_does_not_go_over_inside_a_cuda_graph(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    attention, capturing = settled(calls), [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    for _ in range(9):
        step(attention, 8)
    assert set(calls) == {"flash"}
    capturing[0] = False
    step(attention, 8)
    step(attention, 8)
    assert calls[-1] == "chosen"


def test_lengths_share_a_plan(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_plans", {})
    q, long, short = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 8, 8)
    regard.attend(q, short, short)
    found, key = plan.find_plan((q, short, short, None, None, None, None, 0.0, "auto"))
    assert found is not None
    assert key is not None
    plan._plans[key] = found._replace(kernel=settled(calls, 8**-0.5))  # as on a GPU
    for _ in range(8):
        regard.attend(q, short, short)
    assert calls == ["flash"] * 4 + ["chosen"] * 4
    regard.attend(q, long, long)
    assert calls[8:] == ["flash"]
    assert plan.find_plan((q, long, long, None, None, None, None, 0.0, "auto"))[1] == key
