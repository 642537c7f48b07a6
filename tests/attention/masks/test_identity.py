"""What is cached of a mask: a function counts by its code and what it reads, and is asked about intervals."""

import functools
import math

import pytest
import torch

import regard
from regard.attention.masks import memo
from regard.attention.masks.grid import block_table
from regard.attention.masks.identity import identify
from regard.attention.masks.interval import Interval
from regard.attention.masks.memo import is_memoized, memoize_on_mask
from regard.attention.masks.rule_mask import Rule, _reads_positions_only
from regard.attention.masks.views import Keys, Rows
from regard.attention.steps import trace
from regard.support.lru import LRUCache

WIDTH = 3
TABLE = torch.tensor([0, 0, 1, 1, 1, 2])


@pytest.fixture(autouse=True)
def _empty(monkeypatch):
    monkeypatch.setattr(memo, "_cache", LRUCache(memo.MAXSIZE))


def near(q, k):
    return (q - k).abs() < WIDTH


def twice_near(q, k):
    return near(2 * q, 2 * k)


def endless(b, h, q, k):
    return endless(b, h, q, k)


def with_locals(b, h, q, k):
    """Its docstring is no constant that it uses."""
    distance = (q - k).abs()
    visible = distance < min(WIDTH, 7)
    return visible if WIDTH > 2 else ~visible


n, far = 2, 40.0
CACHED = {
    "comparison": lambda b, h, q, k: q >= k,
    "arithmetic": lambda b, h, q, k: ((q + 2 * k) % 3 == 0) & ~(q // 2 == k // 2) | (q - k < 1),
    "a global number": lambda b, h, q, k: q - k < WIDTH,
    "a global tensor": lambda b, h, q, k: TABLE[q] == TABLE[k],
    "another function": lambda b, h, q, k: near(q, k) & (h >= 0),
    "one that calls another": lambda b, h, q, k: twice_near(q, k),
    "a default": lambda b, h, q, k, n=n: q - k < n,
    "torch": lambda b, h, q, k: torch.where(q < 4, q >= k, torch.logical_and(q > k, k.remainder(2) == 0)),
    "methods": lambda b, h, q, k: (q - k).float().div(2, rounding_mode="floor").clamp(min=0).long() < 2,
    "local variables": with_locals,
    "math": lambda b, h, q, k: q - k < math.pi,
    "a number of the mask's dtype": lambda b, h, q, k: q.to(torch.float64) >= k,
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_what_a_function_reads_identifies_it(name):
    mask = regard.rule(CACHED[name])
    assert is_memoized(mask)
    assert mask.to_dense(6).dtype == torch.bool  # and it is a mask


class Whole:
    """An object, whose numbers may change."""

    n = 3

    def __call__(self, b, h, q, k):
        return q >= k


def inner_function(b, h, q, k):
    return (lambda: q - k < WIDTH)()


def empty_cell():
    function = lambda b, h, q, k: q - k < limit  # noqa: E731
    if n > 100:
        limit = 3
    return function


listed, mapped, whole = [3], {"n": 3}, Whole()
with torch.inference_mode():
    inference = torch.tensor([0, 1])

NOT_CACHED = {
    "a list": lambda b, h, q, k: q - k < listed[0],
    "a dictionary": lambda b, h, q, k: q - k < mapped["n"],
    "an object": lambda b, h, q, k: q - k < whole.n,
    "a tensor of inference mode": lambda b, h, q, k: inference[q] == inference[k],
    "a function without an end": endless,
    "a function inside, whose globals are not found": inner_function,
    "partial": functools.partial(lambda n, b, h, q, k: q >= k, 0),
    "a callable object": Whole(),
    "a variable without a value": empty_cell(),
}


@pytest.mark.parametrize("name", NOT_CACHED)
def test_a_function_that_reads_other_objects_is_asked_in_every_call(name):
    assert identify(NOT_CACHED[name], []) is None
    assert not is_memoized(regard.causal & regard.rule(NOT_CACHED[name]))


def test_a_mask_that_does_not_say_what_it_depends_on_is_asked_in_every_call():
    class Odd(regard.Mask):
        pass

    assert not is_memoized(Odd())
    with torch.inference_mode():
        assert not is_memoized(regard.padding(torch.ones(1, 4, dtype=torch.bool)))


def answers(mask, n=6):
    """What is cached of a mask, computed only if it is not."""
    return memoize_on_mask(mask, n, lambda: mask.to_dense(n))


def check(make):
    """What is cached of the mask that `make` makes is always what it says now."""
    for _ in range(2):
        mask = make()
        torch.testing.assert_close(answers(mask), mask.to_dense(6), rtol=0, atol=0)
    assert is_memoized(mask)


def test_a_function_made_anew_is_recognised_by_what_it_reads():
    def make(n):
        return regard.rule(lambda b, h, q, k: q - k < n)

    assert answers(make(2)) is answers(make(2))
    for other in (3, 2.0, True):  # 2 == 2.0, but they may count differently
        assert answers(make(other)) is not answers(make(2))
    assert answers(make(1)) is not answers(make(True))
    assert answers(make(0.0)) is not answers(make(-0.0))
    in_a_loop = [regard.rule(lambda b, h, q, k, n=n: q - k < n) for n in range(3)]
    assert [int(answers(mask).sum()) for mask in in_a_loop] == [15, 21, 26]


def test_another_value_of_a_variable_is_noticed(monkeypatch):
    n = 2
    function = lambda b, h, q, k: q - k < n  # noqa: E731
    check(lambda: regard.rule(function))
    before = answers(regard.rule(function))
    n = 4
    check(lambda: regard.rule(function))
    assert answers(regard.rule(function)).sum() > before.sum()
    of_global = regard.rule(CACHED["another function"])
    before = answers(of_global)
    monkeypatch.setitem(globals(), "WIDTH", 5)  # which a function that it calls reads
    check(lambda: of_global)
    assert answers(of_global).sum() > before.sum()


def test_other_code_and_other_defaults_are_noticed():
    def function(b, h, q, k, n=1, *, m=0):
        return q - k < n + m

    def other(b, h, q, k, n=1, *, m=0):
        return k - q < n + m

    mask = regard.rule(function)
    seen = []
    for change in (
        lambda: None,
        lambda: setattr(function, "__defaults__", (2,)),
        lambda: setattr(function, "__kwdefaults__", {"m": 2}),
        lambda: setattr(function, "__code__", other.__code__),
    ):
        change()
        check(lambda: mask)
        seen.append(answers(mask))
    assert len({tuple(x.flatten().tolist()) for x in seen}) == 4
    function.__defaults__ = ([2],)
    assert not is_memoized(mask)


def test_a_tensor_that_is_written_to_or_replaced_is_noticed():
    ids = torch.tensor([0, 0, 1, 1, 1, 2])
    mask = regard.rule(lambda b, h, q, k: ids[q] == ids[k])
    check(lambda: mask)
    before = answers(mask)
    ids[0] = 7
    check(lambda: mask)
    assert answers(mask).sum() < before.sum()
    ids = torch.zeros(6)
    check(lambda: mask)
    assert answers(mask).all()
    ids = [0] * 6
    assert not is_memoized(mask)


def test_the_default_dtype_counts():
    mask = regard.rule(lambda b, h, q, k: (q * 0.1) * 3 <= k * 0.3)
    check(lambda: mask)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check(lambda: mask)
    finally:
        torch.set_default_dtype(before)


def test_selected_heads_and_sequences_are_told_apart():
    mask = regard.rule(lambda b, h, q, k: q - k <= h + 2 * b)
    everything, found = mask.tile(range(6), range(6), (2, 4, 6, 6)), []
    for batch, heads in ((slice(0, 2), slice(1, 3)), ([1, 0], torch.tensor([3, 0]))):
        part = mask.select(batch, heads)
        assert is_memoized(part)
        found.append(memoize_on_mask(part, 6, lambda: part.tile(range(6), range(6), (2, 2, 6, 6))))  # noqa: B023
        torch.testing.assert_close(found[-1], everything[batch][:, heads], rtol=0, atol=0)
    assert mask.select(slice(0, 2), slice(None)) is mask


@pytest.fixture
def asked(monkeypatch):
    """How often a function is asked about entries, in a list of one number."""
    count, real = [0], Rule.allowed

    def allowed(self, at):
        count[0] += not isinstance(at.k, Interval)
        return real(self, at)

    monkeypatch.setattr(Rule, "allowed", allowed)
    return count


def test_the_row_blocks_of_a_function_are_worked_out_once_for_each_value_that_it_reads(asked):
    q, k, v = (torch.randn(2, 4, n, 16, dtype=torch.float64) for n in (300, 700, 700))
    offset = 17

    def make():
        return regard.causal & regard.rule(lambda b, h, q, k: (q - k).abs() <= offset)

    for width in (17, 5):
        offset = width
        dense = regard.tensor_mask(make().tile(range(300), range(700), (2, 4, 300, 700)))
        for call in (1, 2):
            asked[0] = 0
            output = regard.attend(q, k, v, mask=make())
            assert (asked[0] > 0) == (call == 1)
            torch.testing.assert_close(output, trace(q, k, v, dense).output)


def test_a_function_that_reads_no_head_is_the_same_for_all_of_them():
    assert _reads_positions_only(lambda b, h, q, k: q >= k)
    assert not _reads_positions_only(lambda b, h, q, k: q >= k + h)
    assert not _reads_positions_only(lambda b, h, q, k: (q >= k) & (b == h))
    assert not _reads_positions_only(lambda *index: index[0] >= index[1])
    assert not _reads_positions_only(lambda b, h, q, k: (b == 0) | (q >= k))
    mask = regard.rule(lambda b, h, q, k: q >= k)
    assert mask.select(slice(1, 2), [3]) is mask


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
