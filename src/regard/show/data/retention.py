"""What cache policies keep of the heads of a layer, as the Cache view draws it.

`regard.policies` measures it; this file chooses what a page measures by itself, and writes it as JSON can
hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from regard.attention.masks.named_masks import causal
from regard.maps import AttentionMap, LinearAttentionMap, attention_map
from regard.policies.cache_state import find_visible, is_plainly_causal
from regard.policies.joined_layers import CachedLayer
from regard.policies.measurement import check_cached, check_square
from regard.policies.named_policies import BASELINES, USUAL
from regard.policies.retention import RetentionCurve, draw_budgets, usual_budgets
from regard.recorder import Capture

TOKENS = 512  # of a text that a page measures: a layer then takes about a second on a CPU
MOST_LAYERS = 12  # of a text that a written page measures: about ten seconds

LayerTable = dict[str, Any]
"""What was measured of a layer: `heads`, `tokens` (how many), `policies`, `budgets`, `shares` by
policy, budget and head (None where a head loses nothing), and `needed` by policy and head: the smallest
budget that keeps 95 %, None if none does. A layer that has no cache has `why` instead: a sentence."""


def measure_layers(
    layers: Iterable[tuple[int | str, tuple[int, ...], AttentionMap | LinearAttentionMap]],
) -> dict[str, LayerTable]:
    """Measure the usual policies on the first tokens of layers, beside the baselines: a table by each key.

    `layers` are the key, the heads and the map (1, H, T, S) of each; those of one shape are measured at once.
    """
    tables: dict[str, LayerTable] = {}
    cached: dict[int, list[CachedLayer]] = {}  # by the number of tokens, which budgets follow
    for key, heads, m in layers:
        if isinstance(m, LinearAttentionMap):
            tables[str(key)] = {"why": f"Layer {key} is linear: it keeps no keys, and no policy evicts any."}
            continue
        try:
            check_square(m)
            tokens = min(m.matrix[2], TOKENS)
            first = first_tokens(m, tokens)
            check_cached(first)
        except ValueError as error:  # an encoder or cross attention has no cache
            reason = str(error).removeprefix("policy: ")
            tables[str(key)] = {"why": f"Layer {key} has no cache to measure: {reason}."}
            continue
        cached.setdefault(tokens, []).append(CachedLayer(key, heads, first, None))
    for tokens, alike in cached.items():
        curve = draw_budgets(alike, [*USUAL, *BASELINES], usual_budgets(tokens))
        tables |= describe_curve(curve, tokens)
    return tables


def first_tokens(m: AttentionMap, tokens: int) -> AttentionMap:
    """The map of the first tokens alone: none of them sees a later one."""
    if tokens == m.matrix[2]:
        return m
    k = m.k[:, :, :tokens]
    positions = torch.arange(tokens, device=m.device).expand(*k.shape[:2], -1)
    mask = causal if is_plainly_causal(m) else find_visible(m, slice(0, tokens), positions).mask()
    return attention_map(m.q[:, :, :tokens], k, mask=mask, scale=m.scale, softcap=m.softcap, sinks=m.sinks)


def describe_curve(curve: RetentionCurve, tokens: int) -> dict[str, LayerTable]:
    """Return the tables of all layers of a curve, by their keys; `tokens` were measured."""
    needed = [curve.needed(policy) for policy in curve.policies]
    shares = [
        # JSON has no NaN, which stands for a head that loses nothing.
        [[None if x != x else round(x, 4) for x in row] for row in rows]
        for rows in curve.shares.tolist()
    ]
    tables: dict[str, LayerTable] = {}
    for key in dict.fromkeys(layer for layer, _ in curve.places):
        at = [n for n, (layer, _) in enumerate(curve.places) if layer == key]
        tables[str(key)] = {
            "heads": [head for layer, head in curve.places if layer == key],
            "tokens": tokens,
            "policies": list(curve.policies),
            "budgets": list(curve.budgets),
            "shares": [[[row[n] for n in at] for row in rows] for rows in shares],
            "needed": [[row[n] for n in at] for row in needed],
        }
    return tables


def select_table_heads(table: LayerTable, heads: Sequence[int]) -> LayerTable:
    """Return the table of some heads."""
    if "why" in table:
        return table
    at = [table["heads"].index(head) for head in heads]
    return table | {
        "heads": list(heads),
        "shares": [[[row[n] for n in at] for row in rows] for rows in table["shares"]],
        "needed": [[row[n] for n in at] for row in table["needed"]],
    }


def check_curve(curve: object, capture: Capture) -> RetentionCurve:
    """Return a curve, or raise a ValueError unless it is one of a capture's heads."""
    if not isinstance(curve, RetentionCurve):
        raise ValueError(
            "retained: expected a curve, as seen.retained([policy], budget=[…]) gives it, got "
            f"{type(curve).__name__}"
        )
    heads = [(layer.key, head) for layer in capture.layers if not layer.is_linear for head in layer.heads]
    if list(curve.places) != heads:
        raise ValueError(
            f"retained: expected a curve of the {len(heads)} heads of the first text, got one of "
            f"{len(curve.places)} heads"
        )
    return curve
