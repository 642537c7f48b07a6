"""The numbers of the running example, which the lessons, the stages and the documents print."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import causal_mask, scaled_dot_product_attention
from regard.attention.steps import trace
from regard.stages import (
    CausalSelfAttention,
    Head,
    SelfAttention,
    UnscaledSelfAttention,
)
from regard.stages import simplified_self_attention as simplified
from regard.stages.example import TOKENS, WK, WQ, WV, X, project, with_example_weights


def same(ours: Tensor, printed: list[list[float]] | list[float], digits: int) -> None:
    """Equal to the printed precision: half a unit of the last digit, and a tenth more for float32."""
    expected = torch.tensor(printed, dtype=torch.float64)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=0.6 * 10.0**-digits)


SIMPLIFIED_WEIGHTS = [
    [0.1882, 0.1771, 0.1821, 0.1537, 0.1183, 0.1806],
    [0.1508, 0.2319, 0.2203, 0.1154, 0.1377, 0.1440],
    [0.1571, 0.2234, 0.2151, 0.1210, 0.1322, 0.1512],
    [0.1893, 0.1670, 0.1727, 0.1633, 0.1245, 0.1832],
    [0.1496, 0.2046, 0.1937, 0.1279, 0.1987, 0.1254],
    [0.1880, 0.1760, 0.1823, 0.1548, 0.1032, 0.1957],
]
SIMPLIFIED_OUTPUTS = [
    [0.450466, 0.581381, 0.543294],
    [0.509965, 0.539246, 0.569502],
    [0.499331, 0.546971, 0.566741],
    [0.444596, 0.584063, 0.533529],
    [0.524878, 0.523400, 0.526848],
    [0.438484, 0.589805, 0.550033],
]
TRAINABLE_WEIGHTS = [
    [0.1707, 0.1816, 0.1812, 0.1525, 0.1491, 0.1649],
    [0.1762, 0.1868, 0.1872, 0.1470, 0.1372, 0.1656],
    [0.1754, 0.1860, 0.1864, 0.1478, 0.1389, 0.1655],
    [0.1690, 0.1776, 0.1771, 0.1564, 0.1548, 0.1652],
    [0.1730, 0.1827, 0.1827, 0.1512, 0.1449, 0.1655],
    [0.1705, 0.1788, 0.1786, 0.1551, 0.1516, 0.1655],
]
TRAINABLE_OUTPUTS = [
    [0.476205, 0.452156],
    [0.480304, 0.454230],
    [0.479721, 0.453930],
    [0.473813, 0.450236],
    [0.477453, 0.452456],
    [0.474870, 0.450705],
]
CAUSAL_WEIGHTS = [
    [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.4855, 0.5145, 0.0, 0.0, 0.0, 0.0],
    [0.3202, 0.3396, 0.3402, 0.0, 0.0, 0.0],
    [0.2485, 0.2611, 0.2604, 0.2300, 0.0, 0.0],
    [0.2073, 0.2190, 0.2190, 0.1812, 0.1736, 0.0],
    [0.1705, 0.1788, 0.1786, 0.1551, 0.1516, 0.1655],
]
CAUSAL_OUTPUTS = [
    [0.488000, 0.372000],
    [0.538938, 0.513495],
    [0.553939, 0.544996],
    [0.510292, 0.476209],
    [0.474172, 0.481299],
    [0.474870, 0.450705],
]


def test_running_example_is_the_published_one() -> None:
    assert TOKENS == ("Each", "model", "learns", "through", "many", "rounds")
    same(X[0], [0.31, 0.82, 0.45], 6)
    same(WQ, [[0.5, 0.8], [0.3, 0.1], [0.2, 0.6]], 6)
    same(WK, [[0.4, 0.3], [0.1, 0.7], [0.5, 0.2]], 6)
    same(WV, [[0.2, 0.5], [0.3, 0.1], [0.4, 0.3]], 6)


def test_simplified_stage() -> None:
    same(trace(X, X, X, scale=1.0).scores[1], [0.9106, 1.3411, 1.2896, 0.6432, 0.8197, 0.8643], 4)
    out, attn = simplified(X)
    same(attn, SIMPLIFIED_WEIGHTS, 4)
    same(out, SIMPLIFIED_OUTPUTS, 6)


def test_trainable_projections() -> None:
    q, k, v = project(X)
    same(q[1], [0.644, 1.109], 6)
    some = [TOKENS.index(token) for token in ("Each", "model", "rounds")]
    same(k[some], [[0.431, 0.757], [0.736, 0.654], [0.422, 0.683]], 6)
    same(v[some], [[0.488, 0.372], [0.587, 0.647], [0.494, 0.307]], 6)
    same(trace(q, k, v).scores[1, some], [1.1171, 1.1993, 1.0292], 4)
    _, weights = with_example_weights(UnscaledSelfAttention(3, head_dim=2))(X)
    model = torch.log(weights[1, some] / weights[1, 1])  # the differences of the scores
    same(model, [1.1171 - 1.1993, 0.0, 1.0292 - 1.1993], 4)


def test_scaled_stage() -> None:
    for out, weights in (
        scaled_dot_product_attention(*project(X)),
        with_example_weights(SelfAttention(3, head_dim=2))(X),
    ):
        same(weights, TRAINABLE_WEIGHTS, 4)
        same(out, TRAINABLE_OUTPUTS, 6)


def test_causal_stage() -> None:
    for out, weights in (
        scaled_dot_product_attention(*project(X), causal_mask(6)),
        with_example_weights(SelfAttention(3, head_dim=2))(X, causal_mask(6)),
        with_example_weights(CausalSelfAttention(3, 6, head_dim=2)).attention(X),
        with_example_weights(Head(3, 2, 6)).attention(X),
    ):
        same(weights, CAUSAL_WEIGHTS, 4)
        same(out, CAUSAL_OUTPUTS, 6)
