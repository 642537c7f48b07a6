"""Each rule by name against a table written by hand or entry by entry, its bad arguments, and its picture."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from regard import alibi, causal, documents, padding, rule, tensor_mask, window
from tests.refusals import refused
from tests.sampling import together


def test_marks_and_ids_may_come_as_lists_and_for_one_sequence():
    assert torch.equal(padding([2]).to_dense(2, 3), torch.tensor([[True, True, False]] * 2))
    assert torch.equal(padding(torch.tensor([2])).to_dense(2, 3), padding([2]).to_dense(2, 3))
    assert torch.equal(
        documents([7, 2, 7]).to_dense(3), torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]]).bool()
    )
    assert rule(lambda b, h, q, k: torch.tensor(True)).to_dense(2, 3).all()


@together("heads", [1, 2, 4, 8, 16, 6, 12])
def test_alibi_lowers_the_score_by_the_published_slopes(heads):
    powers = {n: [(2 ** (-8 / n)) ** (i + 1) for i in range(n)] for n in (1, 2, 4, 8, 16)}
    between = {6: powers[4] + powers[8][0:4:2], 12: powers[8] + powers[16][0:8:2]}
    slopes = (powers | between)[heads]
    bias = alibi(heads).bias(range(3), range(5), (1, heads, 3, 5))
    bias = bias.expand(1, heads, 3, 5) if bias.ndim == 4 else bias[None, None]
    for h in range(heads):
        for i in range(3):
            for j in range(5):
                assert bias[0, h, i, j].item() == pytest.approx(-slopes[h] * abs(i + 2 - j), rel=1e-6)
    assert alibi(heads).tile(range(3), range(5), (3, 5)).all()


test_bad_arguments_are_named = refused(
    [
        (lambda: padding([1.5]), r"padding: expected whole lengths \(B,\).*got \(1,\) torch.float32"),
        (lambda: padding([-1, 2]), r"padding: expected lengths of at least 0, got -1"),
        (lambda: padding(torch.ones(2, 3).long()), r"padding: .* got \(2, 3\) torch.int64: pass \.bool\(\)"),
        (lambda: padding(torch.ones(3).bool()), r"padding: .* got \(3,\) torch.bool"),
        (lambda: padding(3), r"padding: .* got \(\) torch.int64"),
        (lambda: documents([0.5]), r"documents: expected whole ids .*got \(1,\) torch.float32"),
        (lambda: documents([True]), r"documents: expected whole ids .*got \(1,\) torch.bool"),
        (lambda: documents(3), r"documents: expected whole ids .*got \(\)"),
        (lambda: rule(3), r"rule: expected a function of \(b, h, q, k\), got int"),
        (lambda: tensor_mask([[True]]), r"mask: expected a tensor or a mask, got list"),
        (
            lambda: tensor_mask(torch.ones(2, 2).long()),
            r"mask: expected booleans .*got torch.int64: pass \.bool\(\)",
        ),
        (lambda: tensor_mask(torch.ones(2, 2)), r"mask: .* only 0 and 1.*pass \.bool\(\)"),
        (lambda: tensor_mask(torch.eye(3).half()), r"mask: .* only 0 and 1.*pass \.bool\(\)"),
        (
            lambda: tensor_mask(torch.ones(1, 1, 1, 2, 2).bool()),
            r"mask: expected at most 4 dimensions.*got \(1, 1, 1, 2, 2\)",
        ),
    ]
)


WHOLE = r"rule\(lambda\): expected a boolean tensor from the predicate, got {}"
TILE = r"rule\(lambda\): expected an answer that broadcasts to \(1, 1, 4, 5\), got"
test_a_rule_must_answer_with_booleans_for_the_tile = refused(
    [
        (lambda: rule(lambda b, h, q, k: q - k).to_dense(3), WHOLE.format("torch.int64")),
        (lambda: rule(lambda b, h, q, k: True).to_dense(3), WHOLE.format("bool")),
        (lambda: rule(lambda b, h, q, k: None).to_dense(3), WHOLE.format("NoneType")),
        *(
            (lambda shape=shape: rule(lambda b, h, q, k: torch.ones(shape).bool()).to_dense(4, 5), TILE)
            for shape in ((3,), (3, 4), (2, 1, 3, 3), (1, 1, 1, 1, 1))
        ),
    ]
)

OTHER_SHAPES = [
    (padding([1, 2]), (3, 1, 4, 4), "each of the 3 sequences in the batch, got 2"),
    (padding([1, 2]), (1, 3, 4, 4), r"unsqueeze\(1\)"),
    (padding(torch.ones(2, 5).bool()), (2, 1, 4, 4), "a mark for each of the 4 keys, got 5"),
    (documents([0, 1]), (3, 3), "an id for each of the 3 keys, got 2"),
    (documents([0, 1]), (3, 2), "no more queries than keys, got 3 queries and 2 keys"),
    (documents(torch.zeros(2, 3).long()), (3, 1, 3, 3), "each of the 3 sequences in the batch, got 2"),
    (tensor_mask(torch.zeros(3, 4)), (4, 4), r"broadcasts to \(4, 4\), got \(3, 4\)"),
    (
        tensor_mask(torch.zeros(2, 1, 4, 4)),
        (3, 1, 4, 4),
        r"broadcasts to \(3, 1, 4, 4\), got \(2, 1, 4, 4\)",
    ),
    (alibi(4), (1, 3, 2, 2), "a slope for each of the 3 heads, got 4"),
    (causal & tensor_mask(torch.zeros(3, 4)), (4, 4), "broadcasts to"),
    (causal | padding([1, 2]), (3, 1, 4, 4), "got 2"),
    (~documents([0, 1]), (3, 3), "got 2"),
]
test_a_rule_for_another_shape_is_refused = refused(
    (lambda mask=mask, shape=shape: mask.tile(range(1), range(1), shape), f"^mask .*{message}")
    for mask, shape, message in OTHER_SHAPES
)


def test_a_picture_of_a_rule():
    figure = (causal & window(4)).plot(16)
    assert isinstance(figure, Figure)
    (ax,) = figure.axes
    assert ax.get_title() == "causal & window(4)"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    (image,) = ax.images
    assert np.array_equal(np.asarray(image.get_array()), (causal & window(4)).to_dense(16).int().numpy())
    assert [t.get_text() for t in ax.get_xticklabels()] == [str(j) for j in range(16)]


def test_a_picture_of_more_keys_than_queries_and_on_given_axes():
    from matplotlib import pyplot

    _, ax = pyplot.subplots()
    assert causal.plot(3, 7, ax=ax) is ax.figure
    assert np.asarray(ax.images[0].get_array()).shape == (3, 7)
    assert "first sequence and head" in padding([1, 3]).plot(4).axes[0].get_title()
    with pytest.raises(ValueError, match="plot: expected between 1 and"):
        causal.plot(0)
