"""What holds for every rule: tiles are parts of the whole, blocks never lie, names read back."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import regard
from regard import causal, chunks, documents, full, padding, prefix, rule, tensor_mask, window
from regard.attention.masks.grid import block_table, one_block
from tests import strategies
from tests.sampling import examples
from tests.strategies import DrawnMask, arbitrary_masks, positional_masks, sized_masks, sizes

NAMES = {name: getattr(regard, name) for name in regard.__all__}


def whole(drawn_or_mask, n):
    """The rule over the whole matrix, (B, H, T, S), by one tile."""
    mask = drawn_or_mask.mask if isinstance(drawn_or_mask, DrawnMask) else drawn_or_mask
    return mask.tile(slice(None), slice(None), n.matrix).expand(n.matrix)


@pytest.mark.parametrize("family", [*strategies.POSITIONAL, *strategies.ARBITRARY])
@settings(max_examples=examples(36))
@given(st.data())
def test_a_rule_means_what_its_definition_says(family, data):
    n = data.draw(sizes())
    masks_of = positional_masks if family in strategies.POSITIONAL else arbitrary_masks
    drawn = data.draw(masks_of(n, family))
    assert torch.equal(whole(drawn, n), drawn.allowed())


@given(sized_masks())
def test_a_combination_means_what_its_definition_says(drawn):
    assert torch.equal(whole(drawn, drawn.n), drawn.allowed())
    added, bias = drawn.score_bias(), drawn.mask.bias(slice(None), slice(None), drawn.n.matrix)
    assert drawn.mask.biased == (added is not None) == (bias is not None)
    if added is not None:
        torch.testing.assert_close(bias.double().expand(drawn.n.matrix), added, rtol=1e-6, atol=1e-6)


def spans(length):
    """Some of `length` indices as a slice, a range or a tensor, in any order, and the list they mean."""
    edges = st.tuples(st.integers(0, length), st.integers(0, length), st.integers(1, 3))
    slices = st.builds(
        slice,
        st.none() | st.integers(-length, length),
        st.none() | st.integers(-length, length),
        st.none() | st.integers(1, 3) | st.just(-1),
    )
    tensors = st.lists(st.integers(0, length - 1), max_size=5).map(
        lambda x: torch.tensor(x, dtype=torch.long)
    )
    return st.one_of(slices, edges.map(lambda e: range(*e)), tensors).map(
        lambda span: (
            span,
            span.tolist()
            if isinstance(span, torch.Tensor)
            else list(range(length))[span]
            if isinstance(span, slice)
            else list(span),
        )
    )


@given(sized_masks(), st.data())
def test_a_tile_is_a_part_of_the_whole(drawn, data):
    n = drawn.n
    (rows, row_list), (cols, col_list) = data.draw(spans(n.T), "rows"), data.draw(spans(n.S), "cols")
    tile = drawn.mask.tile(rows, cols, n.matrix)
    assert tile.shape[-2:] == (len(row_list), len(col_list))
    assert torch.equal(tile.expand(n.B, n.H, -1, -1), drawn.allowed()[:, :, row_list][..., col_list])
    if drawn.adds is not None:
        bias = drawn.mask.bias(rows, cols, n.matrix)
        torch.testing.assert_close(
            bias.double().expand(n.B, n.H, -1, -1),
            drawn.score_bias()[:, :, row_list][..., col_list],
            rtol=1e-6,
            atol=1e-6,
        )


@given(sized_masks(), st.data())
def test_covers_tells_empty_part_and_full(drawn, data):
    n = drawn.n
    (rows, row_list), (cols, col_list) = data.draw(spans(n.T), "rows"), data.draw(spans(n.S), "cols")
    assume(row_list and col_list)
    part = drawn.allowed()[:, :, row_list][..., col_list]
    expected = "full" if part.all() else "part" if part.any() else "empty"
    assert drawn.mask.covers(rows, cols, n.matrix) == expected


def block_truth(drawn, rows, cols):
    """Whether anything, and everything, is allowed in each block, entry by entry: (B, H, R, C)."""
    n, allowed = drawn.n, drawn.allowed()
    blocks = [
        [allowed[:, :, i : i + rows, j : j + cols].flatten(2) for j in range(0, n.S, cols)]
        for i in range(0, n.T, rows)
    ]
    some = torch.stack([torch.stack([block.any(-1) for block in row], -1) for row in blocks], -2)
    every = torch.stack([torch.stack([block.all(-1) for block in row], -1) for row in blocks], -2)
    return some, every


def block_bounds(drawn, rows, cols):
    n = drawn.n
    table = block_table(n.T, n.S, rows, cols)
    shape = n.B, n.H, len(table.q_first), table.k_first.shape[-1]
    some, every = drawn.mask.block_bounds(table)
    return some.expand(shape), every.expand(shape)


@given(sized_masks(), st.integers(1, 5), st.integers(1, 5))
def test_a_block_is_never_called_empty_or_full_falsely(drawn, rows, cols):
    some, every = block_bounds(drawn, rows, cols)
    truly_some, truly_every = block_truth(drawn, rows, cols)
    assert not (truly_some & ~some).any(), "a block that allows something was called empty"
    assert not (every & ~truly_every).any(), "a block that refuses something was called full"


@pytest.mark.parametrize("family", strategies.POSITIONAL)
@settings(max_examples=examples(24))
@given(st.data(), st.integers(1, 5), st.integers(1, 5))
def test_blocks_of_rules_by_position_are_told_exactly(family, data, rows, cols):
    drawn = data.draw(positional_masks(data.draw(sizes(12)), family))
    for found, truth in zip(block_bounds(drawn, rows, cols), block_truth(drawn, rows, cols), strict=True):
        assert torch.equal(found, truth)


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0)])
@pytest.mark.parametrize(
    "mask",
    [
        full,
        causal,
        causal.top_left,
        window(2, ahead=1),
        prefix(2),
        chunks(2),
        padding([0]),
        rule(lambda b, h, q, k: q > k),
        ~causal & prefix(1) | chunks(3),
    ],
    ids=str,
)
def test_nothing_by_something_has_blocks_and_tiles_too(mask, shape):
    T, S = shape
    some, every = mask.block_bounds(one_block(T, S))
    assert some.shape[-2:].numel() <= 1
    assert every.shape[-2:].numel() <= 1
    assert mask.to_dense(T, S).shape[-2:] == shape
    assert mask.covers(range(T), range(S), shape) == "empty"
    mask.simplified(shape)


@given(sized_masks())
def test_simplified_means_the_same(drawn):
    simpler = drawn.mask.simplified(drawn.n.matrix)
    assert torch.equal(whole(simpler, drawn.n), drawn.allowed())
    before = drawn.mask.bias(slice(None), slice(None), drawn.n.matrix)
    after = simpler.bias(slice(None), slice(None), drawn.n.matrix)
    assert (before is None) == (after is None)
    assert before is None or torch.equal(before.expand(drawn.n.matrix), after.expand(drawn.n.matrix))


@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (full, "full"),
        (causal, "causal"),
        (causal.top_left, "causal.top_left"),
        (causal & window(128), "causal & window(128)"),
        (window(3, ahead=2), "window(3, ahead=2)"),
        (window(3, 0), "window(3, ahead=0)"),
        (causal | prefix(16), "causal | prefix(16)"),
        ((causal | prefix(16)) & window(4), "(causal | prefix(16)) & window(4)"),
        (causal | prefix(16) & window(4), "causal | prefix(16) & window(4)"),
        (~(causal & chunks(4)), "~(causal & chunks(4))"),
        (~causal & ~chunks(4), "~causal & ~chunks(4)"),
        (~~causal, "~~causal"),
        (padding([5, 9]) & ~chunks(4), "padding([5, 9]) & ~chunks(4)"),
        (padding([1, 2, 3, 4, 5]), "padding([1, 2, 3, 4, …])"),
        (padding(torch.ones(2, 5, dtype=torch.bool)), "padding(2×5)"),
        (documents([0, 0, 1]), "documents(1×3)"),
        (tensor_mask(torch.zeros(3, 4)), "tensor_mask(3×4)"),
        (tensor_mask(torch.zeros(2, 1, 3, 4)), "tensor_mask(2×1×3×4)"),
        (regard.alibi(8) & causal, "alibi(8) & causal"),
        (rule(lambda b, h, q, k: q > k), "rule(lambda)"),
    ],
)
def test_names(mask, name):
    assert str(mask) == repr(mask) == name


@given(sized_masks())
def test_names_read_back_as_the_same_rule(drawn):
    name = str(drawn.mask)
    assume(not any(part in name for part in ("×", "rule(", "…")))  # what a name cannot hold
    assert torch.equal(whole(eval(name, dict(NAMES)), drawn.n), drawn.allowed())


def test_rules_without_tensors_compare_and_hash():
    assert causal & window(4) == causal & window(4) != causal & window(5)
    assert len({causal, causal.top_left, window(4), window(4), ~causal}) == 4


def test_rules_that_add_join_only_with_and():
    for biased in (tensor_mask(torch.randn(3, 3)), regard.alibi(1), causal & regard.alibi(1)):
        assert (biased & causal).biased
        assert (causal & biased).biased
        for join in (lambda m: m | causal, lambda m: causal | m, lambda m: ~m):
            with pytest.raises(ValueError, match="adds numbers to the scores: join it with &"):
                join(biased)
    both = tensor_mask(torch.full((2, 2), 3.0)) & tensor_mask(torch.full((2, 2), 4.0))
    assert torch.equal(both.bias(range(2), range(2)), torch.full((2, 2), 7.0))


def test_a_nan_in_a_float_mask_is_not_hidden():
    mask = tensor_mask(torch.tensor([[0.5, torch.nan, -torch.inf]]))
    assert mask.tile(range(1), range(3)).tolist() == [[True, True, False]]


@pytest.mark.parametrize("other", [torch.ones(2, 2, dtype=torch.bool), None, 3, lambda b, h, q, k: q > k])
def test_only_rules_join(other):
    for join in (lambda m: causal & m, lambda m: causal | m):
        with pytest.raises(
            ValueError, match=rf"joins two masks, got {type(other).__name__}.*regard.tensor_mask"
        ):
            join(other)


def test_without_a_shape_query_i_stands_at_position_i():
    assert torch.equal(causal.tile(range(2, 5), range(6)), causal.to_dense(6)[2:5])
    assert torch.equal(causal.tile(slice(2, 5), slice(0, 6, 2)), causal.to_dense(6)[2:5, ::2])
    for span in (slice(None), slice(-3, 4), slice(2, None), slice(0, -1)):
        with pytest.raises(ValueError, match=r"needs the attention's shape"):
            causal.tile(span, range(3))


@pytest.mark.parametrize("shape", [(3,), (1, 1, 1, 2, 3), ()])
def test_a_shape_that_is_no_matrix_is_refused(shape):
    with pytest.raises(ValueError, match=r"shape: expected \(T, S\) or \(B, H, T, S\), got"):
        causal.tile(range(2), range(3), shape)


@pytest.mark.parametrize(
    "mask", [causal, padding(torch.ones(1, 3, dtype=torch.bool)), tensor_mask(torch.zeros(2, 3))], ids=str
)
@pytest.mark.parametrize(
    ("rows", "cols", "wrong"),
    [
        (range(3), range(3), "rows"),
        (range(2), range(4), "cols"),
        (range(-1, 2), range(3), "rows"),
        (range(2), torch.tensor([0, 3]), "cols"),
        (torch.tensor([-1]), range(3), "rows"),
    ],
)
def test_a_tile_outside_the_matrix_is_refused(mask, rows, cols, wrong):
    with pytest.raises(ValueError, match=rf"{wrong}: expected indices"):
        mask.tile(rows, cols, (2, 3))


@pytest.mark.parametrize(
    "span", [2, "0:3", torch.tensor([0.5]), torch.tensor([[0]]), torch.tensor([True, False])]
)
def test_a_span_that_is_none_is_refused(span):
    with pytest.raises(
        ValueError, match=r"rows: expected a slice, a range or a 1-D tensor of whole indices, got"
    ):
        causal.tile(span, range(3), (2, 3))


@pytest.mark.parametrize(
    "join",
    [
        lambda: causal and window(2),
        lambda: causal or window(2),
        lambda: not causal,
        lambda: bool(causal & full),
    ],
)
def test_and_or_and_not_are_refused(join):
    """They would choose one of two masks and silently drop the other."""
    with pytest.raises(TypeError, match=r"join masks with & and \|"):
        join()
