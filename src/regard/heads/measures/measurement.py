"""Measures the maps of one text, or of a batch of texts: running sums of the head scores, one set a layer.

Layers of the same shape and mask share their visible keys and their baselines, and are measured together as
far as memory allows, as the heads of one map: on a GPU, and for short texts on a CPU, starting an operation
takes longer than computing it. Only sums are kept of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.tensors import check_tensor, check_whole_numbers
from regard.heads.measures.joined_maps import join_maps
from regard.heads.measures.offsets import weight_back
from regard.heads.measures.query_scores import KnownStatistics, Options, QueryScore, TextScorer
from regard.heads.measures.running_sums import BLOCKS, RunningSums, sum_pieces
from regard.heads.measures.tallies import Tallies
from regard.heads.measures.without_sink import without_sink
from regard.maps import AttentionMap, LinearAttentionMap
from regard.pictures.patch_layout import PatchAxes

CHUNK = 16  # texts, or batches of a survey, that are added up before they are added to those before them
Ids = Tensor | Sequence[Tensor | None] | None
MAX_NUMBERS, MAX_NUMBERS_ON_GPU = 1 << 22, 1 << 27
"""The most numbers of q in a stack, which are copied: 16 MiB in float32, 256 MiB in bfloat16."""


class PendingLayer(NamedTuple):
    """A layer that is to be measured, and its statistics if they are known."""

    map: AttentionMap | LinearAttentionMap
    scorer: TextScorer
    statistics: KnownStatistics | None


class MeasuredStack(NamedTuple):
    """The running sums of layers that were measured together, as the heads of one map, and their maps."""

    sums: RunningSums
    joined: AttentionMap | LinearAttentionMap
    maps: Sequence[AttentionMap | LinearAttentionMap]


class MeasuredLayer(NamedTuple):
    """The running sums of a layer, and the map that they are of."""

    sums: RunningSums
    map: AttentionMap | LinearAttentionMap


def measure(
    maps: Iterable[AttentionMap | LinearAttentionMap],
    ids: Ids,
    is_token: Tensor | None = None,
    **options: Any,
) -> Iterator[MeasuredLayer]:
    """Measure every layer; the arguments are those of `measure_stacks`."""
    for stack in measure_stacks(maps, ids, is_token, **options):
        yield from map(MeasuredLayer, stack.sums.split(len(stack.maps)), stack.maps)


@torch.no_grad()
def measure_stacks(
    maps: Iterable[AttentionMap | LinearAttentionMap],
    ids: Ids,
    is_token: Tensor | None = None,
    *,
    crossed: Sequence[bool] | None = None,
    statistics: Iterable[KnownStatistics] | None = None,
    options: Options = Options(),  # noqa: B008 (immutable)
    single: bool = False,
    scorers: list[TextScorer] | None = None,
    patches: Sequence[PatchAxes | None] | None = None,
) -> Iterator[MeasuredStack]:
    """Measure all layers, several at a time where they have the same text, shape and mask.

    `ids` (B, S) are the tokens of all layers, or a list with those of each; `is_token`, boolean, belongs to
    ids of its shape. `crossed` says which layers attend to another text; `statistics` are those of every map,
    if known. A `single` text is cut into blocks, as an interval needs several observations. `scorers` are
    those of earlier layers of the same text; new ones are added. `patches` say for each layer what its tokens
    are if it attends among the patches of a picture.
    """
    scorers = [] if scorers is None else scorers
    known = None if statistics is None else iter(statistics)
    stack: list[PendingLayer] = []
    for number, m in enumerate(maps):
        # The tokens of this layer, and whether they are padding, if they are of the same text.
        is_crossed = crossed is not None and crossed[number]
        one_for_all = ids is None or isinstance(ids, Tensor)
        layer_ids = ids if ids is None or isinstance(ids, Tensor) else ids[number]
        layer_is_token = is_token
        if is_crossed or not one_for_all:
            same = layer_ids is not None and is_token is not None and layer_ids.shape == is_token.shape
            # Tokens of another length are of another text, as a decoder's beside an encoder's mask.
            layer_is_token = is_token if same else None
        if not is_crossed:
            _check(m, layer_ids, layer_is_token)
        # Layers that have the same text, shape and mask share a scorer.
        layer_patches = None if patches is None else patches[number]
        scorer = next((x for x in scorers if x.fits(m, layer_ids, is_crossed, layer_patches)), None)
        if scorer is None:
            scorer = TextScorer(
                m,
                layer_ids,
                layer_is_token,
                crossed=is_crossed,
                options=options,
                patches=layer_patches,
            )
            scorers.append(scorer)
        layer = PendingLayer(m, scorer, None if known is None else next(known))
        if stack and not _can_join(stack, layer):
            yield _measure_stack(stack, single)
            stack = []
        stack.append(layer)
    if stack:
        yield _measure_stack(stack, single)


def _measure_stack(stack: Sequence[PendingLayer], single: bool) -> MeasuredStack:
    """Measure layers that can be joined."""
    maps = [layer.map for layer in stack]
    softmax_maps = [m for m in maps if isinstance(m, AttentionMap)]  # linear layers are not joined
    joined = join_maps(softmax_maps) if softmax_maps else maps[0]
    return MeasuredStack(_measure(joined, stack[0].scorer, _join_statistics(stack), single), joined, maps)


def _measure(
    m: AttentionMap | LinearAttentionMap,
    scorer: TextScorer,
    statistics: KnownStatistics | None,
    single: bool,
) -> RunningSums:
    """The running sums of a layer, or of layers joined."""
    B, H, T, S = m.matrix
    if isinstance(m, LinearAttentionMap):
        scores, null = _linear_scores(m, scorer)
        by_name = {"value": scores, "null": null, "relabelled": {}, "without_sink": {}, "positional": {}}
        tallies = Tallies(torch.zeros(2, H, S, dtype=torch.float64, device=m.device))
    else:
        scores, sink_key, positional, tallies = scorer.score(m, statistics)
        by_name = {
            "value": scores,
            "null": scorer.null,
            "relabelled": {} if scorer.relabelled is None else scorer.relabelled.token_scores(m),
            "without_sink": without_sink(scorer, m, scores, sink_key),
            "positional": positional,
        }
    # At least two blocks, or there would be no interval; two queries each at least.
    pieces = max(2, min(BLOCKS, T // 2)) if single else 1
    sums = sum_pieces(by_name, (B, H, T), pieces, m.device)
    return RunningSums.from_pieces(sums, tallies.complete(H))


def _can_join(stack: Sequence[PendingLayer], layer: PendingLayer) -> bool:
    """Whether a layer can be measured with those before it."""
    first, m = stack[0].map, layer.map
    if type(m) is not AttentionMap or type(first) is not AttentionMap or layer.scorer is not stack[0].scorer:
        return False
    # A mask that distinguishes heads is that of one layer's heads.
    if m.mask.biased or layer.scorer.visibility.keys.shape[1] != 1:
        return False
    same = all(_settings(m)[i] == setting for i, setting in enumerate(_settings(first)))
    limit = MAX_NUMBERS if m.device.type == "cpu" else MAX_NUMBERS_ON_GPU
    return same and (len(stack) + 1) * m.q.numel() <= limit


def _settings(m: AttentionMap) -> tuple[object, ...]:
    return m.q.shape, m.k.shape, m.q.dtype, m.lse.dtype, m.scale, m.softcap, m.sinks is None


def _join_statistics(layers: Sequence[PendingLayer]) -> KnownStatistics | None:
    """The statistics of several layers as those of one map; None unless all are known."""
    known = [layer.statistics for layer in layers if layer.statistics is not None]
    if len(known) < len(layers):
        return None
    if len(known) == 1:
        return known[0]
    names = ("entropy", "distance", "received")
    return SimpleNamespace(**{name: torch.cat([getattr(x, name) for x in known], 1) for name in names})


def _linear_scores(
    m: LinearAttentionMap, scorer: TextScorer
) -> tuple[dict[str, QueryScore], dict[str, QueryScore]]:
    """The scores of a linear layer's map (B, H, T, S), of either sign, and those of uniform attention.

    They are scores of the shares that the magnitudes |W| have in their row, so that they compare with those
    of softmax attention. Scores that depend on weights being probabilities, or on a sink, are not defined.
    """
    magnitudes, near = m.magnitudes(), scorer.options.near
    B, H, T, _ = m.matrix
    total = magnitudes.total.reshape(B, H, T)
    # tiny: a row of zeros has no shares, and is not defined below.
    known = total.clamp(min=torch.finfo(m.dtype).tiny)
    defined = {name: score.defined for name, score in scorer.null.items()}
    shares = [weight_back(m, back).abs() / known for back in range(min(near, T + m.first_position))]
    zero = torch.zeros_like(known)
    values = {
        "previous_token": shares[1] if len(shares) > 1 else zero,
        "itself": shares[0],
        "local": sum(shares, zero),
        "distance": magnitudes.distance.reshape(B, H, T),
        "effective_length": magnitudes.entropy.reshape(B, H, T).exp(),
    }
    scores, null = {}, {}
    keys = scorer.visibility.keys
    for name, value in values.items():
        if name == "effective_length":
            scores[name] = QueryScore(value, defined["entropy"] & (total > 0))
            null[name] = QueryScore(keys.to(value), defined["entropy"])
        elif name in scorer.null:
            scores[name] = QueryScore(value, defined[name] & (total > 0))
            null[name] = scorer.null[name]
    return scores, null


def _check(m: AttentionMap | LinearAttentionMap, ids: Tensor | None, is_token: Tensor | None) -> None:
    """Raise ValueError unless map, tokens and attention mask have shapes that belong together."""
    if m.ndim != 4:
        raise ValueError(f"maps: expected (B, H, T, S) each, got {tuple(m.shape)}")
    B, _, T, S = m.matrix
    if ids is not None:
        expected_ids = f"whole numbers ({B}, {S}), the tokens of the text"
        ids = check_whole_numbers("ids", check_tensor("ids", ids), expected_ids)
        if ids.ndim != 2 or len(ids) != B:
            raise ValueError(f"ids: expected {expected_ids}, got {tuple(ids.shape)}")
        if ids.shape[1] not in (T, S):
            raise ValueError(f"ids: expected ({B}, {S}), a token for each key, got {tuple(ids.shape)}")
    if is_token is not None:
        expected = (B, S) if ids is None else tuple(ids.shape)
        is_token = check_tensor("attention_mask", is_token)
        if is_token.dtype != torch.bool or is_token.shape != expected:
            got = f"{tuple(is_token.shape)} {is_token.dtype}"
            raise ValueError(f"attention_mask: expected booleans {expected}, False for padding, got {got}")


def add_up(texts: Iterable[Iterable[RunningSums]]) -> list[RunningSums]:
    """The running sums of all texts, added layer by layer.

    Texts are added up in chunks of `CHUNK`, and the chunks in their order, so that processes which measure
    some of the chunks each get the same bits in all.
    """
    total: list[RunningSums] = []
    chunk: list[RunningSums] = []
    for number, layers in enumerate(texts, 1):
        chunk = _add_layers(chunk, list(layers))
        if number % CHUNK == 0:
            total, chunk = _add_layers(total, chunk), []
    return _add_layers(total, chunk)


def _add_layers(first: list[RunningSums], second: list[RunningSums]) -> list[RunningSums]:
    """The sums of two texts, of which either may have none."""
    return [a + b for a, b in zip(first, second, strict=True)] if first and second else first or second
