"""A mask's blocks are worked out once, and again as soon as the mask could say something else."""

import dataclasses
import gc

import numpy
import pytest
import torch

import regard
from regard.attention.masks import memo
from regard.attention.masks.memo import memoize_on_mask
from regard.attention.masks.views import Keys, Rows
from regard.support.lru import LRUCache


@pytest.fixture(autouse=True)
def _empty(monkeypatch):
    monkeypatch.setattr(memo, "_cache", LRUCache(memo.MAXSIZE))


class Counter:
    def __init__(self):
        self.made = 0

    def __call__(self):
        self.made += 1
        return self.made


def test_the_same_rule_made_anew_is_recognised():
    make, ids = Counter(), torch.tensor([[0, 0, 1]])
    documents = regard.documents(ids)
    for _ in range(3):
        mask = Keys(Rows(regard.causal & documents, 1, 3), 0, 3)
        assert memoize_on_mask(mask, "a", make) == 1
    assert memoize_on_mask(mask, "b", make) == 2  # for another purpose
    assert memoize_on_mask(regard.causal & regard.documents(ids.clone()), "a", make) == 3  # another tensor
    assert memoize_on_mask(regard.window(3), "a", make) == 4
    assert memoize_on_mask(regard.window(4), "a", make) == 5
    assert memoize_on_mask(regard.window(3, 0), "a", make) == 6  # not window(3), which has no limit ahead


def test_a_tensor_that_is_written_to_is_looked_at_again():
    make, real = Counter(), torch.ones(1, 4, dtype=torch.bool)
    mask = regard.padding(real)
    assert [memoize_on_mask(mask, "a", make) for _ in range(2)] == [1, 1]
    real[0, 2] = False
    assert [memoize_on_mask(mask, "a", make) for _ in range(2)] == [2, 2]


def test_what_may_change_unseen_is_not_remembered():
    make = Counter()
    read = [0]
    own = regard.rule(lambda b, h, q, k: q >= k + read[0])
    assert [memoize_on_mask(regard.causal & own, "a", make) for _ in range(2)] == [1, 2]

    class Odd(regard.Mask):  # nothing says what it depends on
        pass

    assert [memoize_on_mask(Odd(), "a", make) for _ in range(2)] == [3, 4]
    with torch.inference_mode():
        mask = regard.padding(torch.ones(1, 4, dtype=torch.bool))
    assert [memoize_on_mask(mask, "a", make) for _ in range(2)] == [5, 6]


def test_tensors_are_not_kept_alive_and_few_results_are():
    make = Counter()
    for n in range(3 * memo.MAXSIZE):
        memoize_on_mask(regard.window(n + 1), "a", make)
    assert len(memo._cache) <= memo.MAXSIZE
    assert memoize_on_mask(regard.window(3 * memo.MAXSIZE), "a", make) == make.made  # the latest are there
    mask = regard.padding(torch.ones(1, 4, dtype=torch.bool))
    memoize_on_mask(mask, "a", make)
    ((ref,), _), *_ = list(memo._cache._values.values())[-1]
    del mask
    gc.collect()
    assert ref() is None


def test_the_lists_of_a_mask_are_made_once(monkeypatch):
    from regard.attention.backends.triton import launch

    calls, real = [], launch.find_visible_blocks
    monkeypatch.setattr(launch, "find_visible_blocks", lambda *a: calls.append(1) or real(*a))
    mask, shape, device = regard.causal | regard.prefix(5), (1, 2, 40, 40), torch.device("cpu")
    first, second = (launch.visible_blocks(mask, shape, 16, 16, device) for _ in range(2))
    assert first is second
    launch.visible_blocks(mask, (1, 2, 41, 41), 16, 16, device)
    assert len(calls) == 2


def test_what_is_too_large_is_not_kept(monkeypatch):
    mask = regard.causal | regard.prefix(5)
    assert [memoize_on_mask(mask, "a", lambda: torch.zeros(8)).nbytes for _ in range(2)] == [32, 32]
    assert len(memo._cache) == 1
    monkeypatch.setattr(memo, "MAX_BYTES", 31)
    memoize_on_mask(mask, "b", lambda: torch.zeros(8))
    memoize_on_mask(mask, "c", lambda: [(torch.zeros(4), None), torch.zeros(4)])
    assert len(memo._cache) == 1
    memoize_on_mask(mask, "d", lambda: torch.zeros(4).expand(100, 4))
    assert len(memo._cache) == 2


def test_values_are_evicted_by_their_size(monkeypatch):
    monkeypatch.setattr(memo, "_cache", LRUCache(memo.MAXSIZE, 100))
    mask = regard.causal | regard.prefix(5)
    for key in "abc":
        memoize_on_mask(mask, key, lambda: torch.zeros(8))  # of 32 bytes
    memoize_on_mask(mask, "a", lambda: pytest.fail("computed again"))
    memoize_on_mask(mask, "d", lambda: torch.zeros(12))
    assert [key for _, key in memo._cache._values] == ["a", "d"]


def test_values_that_numpy_changes_are_noticed():
    make, lengths = Counter(), numpy.array([2, 3])
    mask = regard.padding(torch.from_numpy(lengths))
    assert memoize_on_mask(mask, "a", make) == memoize_on_mask(mask, "a", make) == 1
    lengths[:] = 1
    assert memoize_on_mask(mask, "a", make) == 2


def test_a_fused_optimizer_is_noticed():
    weight = torch.nn.Parameter(torch.tensor([0.0, 5.0, 1.0]))
    mask = regard.rule(lambda b, h, q, k: (weight[q] >= weight[k]) | (q == k))
    make = Counter()
    for expected in (1, 2):
        assert memoize_on_mask(mask, "a", make) == expected  # nothing that could be trained is cached


def test_a_mask_of_somebody_elses_class_is_not_trusted():
    @dataclasses.dataclass(frozen=True)
    class Mine(regard.Mask):
        size: int = 0

    make = Counter()
    assert [memoize_on_mask(Mine() & regard.causal, "a", make) for _ in range(2)] == [1, 2]


def test_a_large_tensor_is_not_cached(monkeypatch):
    monkeypatch.setattr(memo, "LARGE", 15)
    make, table = Counter(), torch.ones(4, 4, dtype=torch.bool)
    assert [memoize_on_mask(regard.tensor_mask(table), "a", make) for _ in range(2)] == [1, 2]
    small = regard.tensor_mask(table[:3])
    assert [memoize_on_mask(small, "a", make) for _ in range(2)] == [3, 3]


def test_what_is_cached_in_inference_mode_serves_training():
    q, k, v = (torch.randn(2, 2, 20, 8, requires_grad=True) for _ in range(3))
    mask = regard.padding(torch.tensor([5, 20]))
    with torch.inference_mode():
        regard.attend(q, k, v, mask=mask)
    regard.attend(q, k, v, mask=mask).sum().backward()


def test_a_mask_that_changes_before_the_backward_pass_is_an_error():
    q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3))
    table = torch.ones(9, 9, dtype=torch.bool).tril()
    outputs = []
    for n in (2, 5):
        outputs.append(regard.attend(q, k, v, mask=regard.rule(lambda b, h, q, k: (q >= k) & (q - k < n))))  # noqa: B023
    outputs[1].sum().backward()
    with pytest.raises(RuntimeError, match=r"rule.* has changed between the forward and the backward pass"):
        outputs[0].sum().backward()
    output = regard.attend(q, k, v, mask=table)
    table.fill_(True)
    with pytest.raises(RuntimeError, match=r"tensor_mask.* has changed"):
        output.sum().backward()


def test_a_compiled_map_asks_a_pure_function():
    ids = torch.arange(20) // 5
    q, k = torch.randn(2, 1, 2, 20, 8).unbind()
    mask = regard.rule(lambda b, h, q, k: ids[q] == ids[k])
    mass = torch.compile(lambda q, k: regard.attention_map(q, k).mass(mask), backend="eager")(q, k)
    torch.testing.assert_close(mass, regard.attention_map(q, k).mass(mask))
