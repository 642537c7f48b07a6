"""`oracle=` of another module: whose weights belong together, and what buffers hold."""

import pytest
import torch
from torch import nn

from regard.checker import check


class Separate(nn.Module):
    """Squared attention: a reference with three projections."""

    names = ("q_proj", "k_proj", "v_proj")  # in the order in which they are made
    roles = names  # whose projections are queries, keys and values

    def __init__(self, d_model=48):
        super().__init__()
        for name in self.names:
            setattr(self, name, nn.Linear(d_model, d_model))

    def forward(self, x):
        q, k, v = (getattr(self, name)(x) for name in self.roles)
        return (q @ k.mT).square() @ v


class Renamed(Separate):
    """The same under other names, and in another order."""

    names, roles = ("to_v", "to_k", "to_q"), ("to_q", "to_k", "to_v")


class Fused(nn.Module):
    """The same with one projection."""

    def __init__(self, d_model=48):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).square() @ v


class Anonymous(Separate):
    """The same with names that say nothing."""

    names = roles = ("a", "b", "c")


class Shuffled(Anonymous):
    """Right, but its weights cannot be matched by name, and their order is another."""

    roles = ("c", "b", "a")


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
