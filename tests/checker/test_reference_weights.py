"""`oracle=` of another module: whose weights belong together, and what buffers hold."""

import pytest
import torch
from torch import nn

from regard.checker import check


class Separate(nn.Module):
    """Squared attention: a reference with three projections."""

    def __init__(self, d_model=48):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        return (self.q_proj(x) @ self.k_proj(x).mT).square() @ self.v_proj(x)


class Renamed(nn.Module):
    """The same under other names, and in another order."""

    def __init__(self, d_model=48):
        super().__init__()
        self.to_v, self.to_k, self.to_q = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        return (self.to_q(x) @ self.to_k(x).mT).square() @ self.to_v(x)


class Fused(nn.Module):
    """The same with one projection."""

    def __init__(self, d_model=48):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).square() @ v


class Anonymous(nn.Module):
    """The same with names that say nothing."""

    def __init__(self, d_model=48):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        return (self.a(x) @ self.b(x).mT).square() @ self.c(x)


class Shuffled(Anonymous):
    """Right, but its weights cannot be matched by name, and their order is another."""

    def forward(self, x):
        return (self.c(x) @ self.b(x).mT).square() @ self.a(x)


@pytest.mark.parametrize(
    ("thing", "note"),
    [(Renamed, "by the roles"), (Fused, "by the roles"), (Anonymous, "in order: a.weight = q_proj")],
)
def test_weights_of_other_names_are_matched(thing, note):
    report = check(thing, oracle=Separate)
    assert report.verdict == "right", str(report)
    assert any(note in assumption for assumption in report.assumptions), report.assumptions


def test_weights_that_may_belong_together_otherwise_leave_it_undecided():
    report = check(Shuffled, oracle=Separate)
    assert report.verdict == "undecided", str(report)
    assert "give them the same names, or pass two modules" in report.undecided
    mine, theirs = Shuffled(), Separate()
    for name, other in (("c", "q_proj"), ("b", "k_proj"), ("a", "v_proj")):
        getattr(mine, name).load_state_dict(getattr(theirs, other).state_dict())
    assert check(mine, oracle=theirs).verdict == "right"


def test_weights_that_fit_nowhere_are_listed():
    class Wide(Anonymous):
        def __init__(self, d_model=48):
            super().__init__(d_model)
            self.d = nn.Linear(d_model, d_model)

    report = check(Wide, oracle=Separate)
    assert report.verdict == "undecided"
    assert "d.weight" in report.undecided or "a.weight (48, 48)" in report.undecided


def test_a_wrong_table_in_a_buffer_is_found_and_a_random_one_shared():
    class Slow(Separate):
        def __init__(self, d_model=48):
            super().__init__(d_model)
            self.register_buffer("table", torch.linspace(0, 1, d_model))

        def forward(self, x):
            return super().forward(x + self.table)

    class WrongTable(Slow):
        def __init__(self, d_model=48):
            super().__init__(d_model)
            self.table += 0.1

    class RandomTable(Slow):
        def __init__(self, d_model=48):
            super().__init__(d_model)
            self.table = torch.randn(d_model)

    class OtherDraw(RandomTable):
        def __init__(self, d_model=48):
            torch.randn(3)
            super().__init__(d_model)

    assert [failure.name for failure in check(WrongTable, oracle=Slow).failures] == ["buffers"]
    report = check(OtherDraw, oracle=RandomTable)
    assert report.verdict == "right", str(report)
