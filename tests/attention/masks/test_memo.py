"""A mask's blocks are worked out once, and again as soon as the mask could say something else."""

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


def test_the_lists_of_a_mask_are_made_once(monkeypatch):
    from regard.attention.backends.triton import launch

    calls, real = [], launch.find_visible_blocks
    monkeypatch.setattr(launch, "find_visible_blocks", lambda *a: calls.append(1) or real(*a))
    mask, shape, device = regard.causal | regard.prefix(5), (1, 2, 40, 40), torch.device("cpu")
    first, second = (launch.visible_blocks(mask, shape, 16, 16, device) for _ in range(2))
    assert first is second
    launch.visible_blocks(mask, (1, 2, 41, 41), 16, 16, device)
    assert len(calls) == 2


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
