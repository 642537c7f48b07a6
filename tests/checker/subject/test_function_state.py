"""A function's state: whatever a call changes is as before once it is brought back."""

import collections
from functools import lru_cache, partial

import pytest
import torch

from regard.checker.subject.source import FunctionState

COUNT, LATEST = 0, None
MEMO, TABLE = collections.defaultdict(list), torch.zeros(3)


def rebinds():
    global COUNT, LATEST, CREATED
    COUNT, LATEST, CREATED = COUNT + 1, torch.ones(2), "CREATED" in globals()
    return COUNT, CREATED


def fills():
    MEMO["calls"].append(1)
    TABLE.add_(1.0)
    return len(MEMO), TABLE.sum().item()


def with_default(seen=[]):  # noqa: B006
    seen.append(1)
    return len(seen)


def with_attribute():
    with_attribute.calls = getattr(with_attribute, "calls", 0) + 1
    return with_attribute.calls


def with_closure():
    calls = 0

    def counted():
        nonlocal calls
        calls += 1
        return calls

    return counted


DRAWN = iter(range(100))


@lru_cache
def memoised():
    return next(DRAWN)


def with_memo():
    memoised()
    return memoised.cache_info().misses + memoised.cache_info().hits


def through_a_helper():
    return rebinds()


class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.calls


@pytest.mark.parametrize(
    "function",
    [
        rebinds,
        fills,
        with_default,
        with_attribute,
        with_closure(),
        with_memo,
        through_a_helper,
        partial(rebinds),
        Counter(),
    ],
)
def test_it_is_brought_back(function):
    state = FunctionState(function)
    first, second = function(), function()
    state.restore()
    assert first != second
    assert (function(), function()) == (first, second)
    state.restore()


def test_what_others_installed_is_left_alone():
    assert FunctionState(torch.nn.functional.softmax)._restorers == []
