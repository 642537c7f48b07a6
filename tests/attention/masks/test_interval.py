"""A predicate that is asked about intervals says of a block what it says of its entries."""

import pytest
import torch

import regard
from regard.attention.masks.grid import block_table

T, S, SIZE = 11, 23, 4
IDS = torch.tensor([0] * 5 + [1] * 9 + [2] * 9)
RULES = {
    "a band": lambda b, h, q, k: (q - k).abs() < 3,
    "abs": lambda b, h, q, k: abs(k - 6) <= 1,
    "remainders": lambda b, h, q, k: (q - k) % 9 < 2,
    "chunks": lambda b, h, q, k: q // 5 == k // 5,
    "numbers first": lambda b, h, q, k: (k >= 5) & (3 - q < k) | (2 * k + q < 20),
    "not equal": lambda b, h, q, k: ~((k != 7) & (q != 14)),
    "a tensor": lambda b, h, q, k: torch.tensor(5) <= k,
}
UNDECIDED = {
    "an index": lambda b, h, q, k: IDS[q] == IDS[k],
    "a head": lambda b, h, q, k: q - k >= h,
    "a function": lambda b, h, q, k: torch.where(q > 2, q >= k, q == k),
    "bits": lambda b, h, q, k: (q & 1) == 0,
    "a negative factor": lambda b, h, q, k: -2 * q <= k,
    "a shape": lambda b, h, q, k: (q >= k) & (q.ndim > 1),
}


def bounds(predicate):
    """What a rule says of blocks, and what it says of the entries of each, (R, C, entries)."""
    mask = regard.rule(predicate)
    some, every = (x.expand(3, 6) for x in mask.block_bounds(block_table(T, S, SIZE, SIZE)))
    tile = mask.tile(range(T), range(S), (T, S)).expand(T, S)
    blocks = [[c.flatten() for c in r.split(SIZE, 1)] for r in tile.split(SIZE)]
    return some.tolist(), every.tolist(), blocks


@pytest.mark.parametrize("name", RULES)
def test_arithmetic_and_comparisons_tell_of_blocks(name):
    some, every, blocks = bounds(RULES[name])
    for r, row in enumerate(blocks):
        for c, block in enumerate(row):
            assert some[r][c] >= bool(block.any())
            assert every[r][c] <= bool(block.all())
    assert not all(map(all, some)) or any(map(any, every))  # it says more than nothing


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_intervals_cannot_compute_is_left_open(name):
    some, every, _ = bounds(UNDECIDED[name])
    assert all(map(all, some))
    assert not any(map(any, every))


def test_a_mask_of_your_own_class_is_asked_about_blocks_as_well():
    class Near(regard.Mask):
        def allowed(self, at):
            return (at.q - at.k).abs() < 2

    class Odd(regard.Mask):
        def allowed(self, at):
            return torch.remainder(at.q - at.k, 2) == 1

    assert (Near() & Odd()).covers(range(4), range(8, 12)) == "empty"
    some, every = (Near() & Odd()).block_bounds(block_table(8, 8, 4, 4))
    assert some.all()
    assert not every.any()
    some, _ = (Near() & Odd()).block_bounds(block_table(12, 12, 4, 4))
    assert not some[0, 2]
