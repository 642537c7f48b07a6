"""A map as a figure for paper: PNG, SVG or PDF by Matplotlib's `savefig`, with text as text.

Queries run down and keys across, both labelled with their tokens. A small map has a number in each cell; a
long one is pooled, exactly and without a T×S matrix. The picture is the one that the page exports: the same
words, colours and scale. This file knows maps, captures and tokens; it does not know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from regard.heads.tables.score_words import title as score_title
from regard.maps import AttentionMap, SignedMap
from regard.maps.index import Axes
from regard.recorder import Capture, Layer
from regard.show.data.head_rows import TextHeads
from regard.show.data.layer_description import find_axis_tokens
from regard.show.data.patch_tokens import patch_axes, token_lists
from regard.show.data.titles import title_of_tokens
from regard.show.figure_drawing import (
    SOFT,
    WARNING,
    Drawable,
    FigureWords,
    Labels,
    Reduce,
    describe_cell,
    draw_keys,
    draw_map,
    lay_out,
)
from regard.stages.figures.picture import MAX_NUMBERED_SIDE
from regard.support.cell_output import new_figure, release
from regard.support.characters import show_invisible

MOST_TOKENS = 64  # of an axis whose length grows with it
MOST_SCORED = 1 << 27  # weights of a head that a figure computes to say what the head does
LONGEST_LABEL = 24  # characters of a token on an axis
Scale = Literal["linear", "log"]


def plot(
    attention_map: AttentionMap | SignedMap | Tensor,
    key_tokens: Sequence[str] | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    ax: Any = None,
    title: str = "",
    note: str = "",
    scale: Scale = "linear",
    reduce: Reduce = "mass",
    boundary: int | None = None,
) -> Any:
    """Draw a map (T, S) with Matplotlib, or each head of a map (H, T, S), and return the figure.

    Arguments:
        attention_map: a map, or a tensor of weights (T, S). A signed map, such as the difference of two maps
            or `m.weighted(u)`, is drawn in colours that diverge from 0.
        key_tokens: the S tokens of the keys; their positions if None.
        query_tokens: the T tokens of the queries; by default the last T of the keys'.
        ax: Matplotlib axes to draw on, for a single head; a new figure if None.
        title: written above the map.
        note: written at the foot of the figure, in red if it begins with "not certified".
        scale: "linear", or "log" to distinguish small weights.
        reduce: how a long map is pooled: "mass" (summed over keys, mean of queries) or "max".
        boundary: the position of the first generated token, marked by a line on both axes.

    >>> import torch, regard
    >>> x = torch.eye(3)
    >>> figure = regard.plot(regard.attention_map(x, x, mask=regard.causal), ["a", "b", "c"])
    >>> figure.axes[0].get_xlabel()
    'key (attended to)'
    """
    warning = note if note.startswith("not certified") else ""
    words = FigureWords(title, notes=[note] if note and not warning else [], warning=warning)
    labels = _axis_labels(attention_map, key_tokens, query_tokens, boundary)
    return _plot(_split_heads(attention_map), labels, words, ax, scale, reduce)


def figure(
    capture: Capture,
    layer: int | str,
    head: int | None = None,
    *,
    against: Capture | None = None,
    batch: int = 0,
    ax: Any = None,
    scale: Scale = "linear",
    reduce: Reduce = "mass",
) -> Any:
    """Draw one head of a capture, or all heads of a layer, under the model's name and what the head does.

    Arguments:
        capture: the capture.
        layer: the layer's number, or its key such as "decoder.3".
        head: the head's number in the model; all heads of the layer if None.
        against: another capture of the same shape, whose weights are subtracted: of another model, another
            text, another checkpoint, or an edited run.
        batch: the entry of the batch.
        ax, scale, reduce: as in `plot`.

    Returns the Matplotlib figure. It is the picture that the page exports.
    """
    chosen = capture.layer(layer)
    m = (chosen.map if head is None else capture[layer, head])[batch]
    if against is not None:
        m = m - (against.layer(layer).map if head is None else against[layer, head])[batch]
    axes = find_axis_tokens(chosen, token_lists(capture, batch), patch_axes(capture, chosen.key))
    is_marked = (
        capture.boundary is not None and chosen.stack != "cross" and 0 < capture.boundary < m.shape[-1]
    )
    labels = _axis_labels(m, axes.keys, axes.queries, capture.boundary if is_marked else None)
    words = _capture_words(capture, chosen, head, against, batch)
    drawn = _plot(_split_heads(m), labels, words, ax, scale, reduce)
    if m.ndim == 3 and len(chosen.heads) > 1:
        for panel, number in zip(drawn.axes, chosen.heads, strict=False):
            panel.set_title(f"head {number}", fontsize=9, loc="left")
    return drawn


def _capture_words(
    capture: Capture, layer: Layer, head: int | None, against: Capture | None, batch: int
) -> FigureWords:
    """Return the words around a figure of a capture: model, place, text, what the head does, certificate."""
    label, sentence = "", ""
    # A figure must not take minutes for a sentence.
    if head is not None and against is None and layer.shape[2] * layer.shape[3] <= MOST_SCORED:
        label, sentence = _describe_head(capture, layer, head, batch)
    place = f"layer {layer.key}" + ("" if head is None else f", head {head}") + label
    model = capture.model
    less = ""
    if against is not None:
        place += ", difference"
        other = against.model if against.model != model else _title(against, batch)
        less = f"Less the weights of {other}." if other else ""
    text = _title(capture, batch)
    evidence = [
        x.certificate[x.layers.index(x.layer(layer.key))] for x in (capture, against) if x is not None
    ]
    doubt = next((str(x) for x in evidence if not x.certified), "")
    return FigureWords(
        f"{model}: {place}" if model else place,
        [line for line in (f"Text: “{text}”." if text else "", sentence, less) if line],
        [] if doubt else [_capitalised(str(evidence[0]))],
        _capitalised(doubt),
    )


def _capitalised(sentence: str) -> str:
    return sentence and sentence[0].upper() + sentence[1:].rstrip(".") + "."


def _title(capture: Capture, batch: int) -> str:
    return "" if capture.tokens is None else title_of_tokens(capture.tokens[batch])


def _describe_head(capture: Capture, layer: Layer, head: int, batch: int) -> tuple[str, str]:
    """Return a head's label, to be written after its number, and the sentence that says what it does."""
    h = layer.heads.index(head)
    m = layer.map.select(slice(batch, batch + 1), slice(h, h + 1), Axes())  # (1, 1, T, S)
    row = TextHeads(capture, batch).row(layer, m, head)
    return f", {score_title(row['label'])}" if row["label"] else "", row["sentence"]


def legible(token: str) -> str:
    """Return a token as a short label, in which everything that is invisible has a sign or a name.

    >>> legible(" sea"), legible("\\n"), legible(" "), legible("a\\x00")
    ('·sea', '↵', '·', 'a␀')
    """
    label = show_invisible(token) or "∅"
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _split_heads(m: Drawable) -> list[Drawable]:
    """Return a map (T, S) for each head; ValueError for anything that is neither a map nor a matrix."""
    if isinstance(m, AttentionMap | SignedMap):
        unbatched = m if m.ndim < 4 else m[0] if m.shape[0] == 1 else None
        if unbatched is not None:
            return [unbatched] if unbatched.ndim == 2 else [unbatched[h] for h in range(unbatched.shape[0])]
    elif isinstance(m, Tensor) and m.ndim == 2 and m.is_floating_point() and m.numel():
        return [m]
    kind = f"{type(m).__name__} {tuple(m.shape)}" if hasattr(m, "shape") else type(m).__name__
    raise ValueError(f"attention_map: expected an AttentionMap (T, S) or (H, T, S), got {kind}")


def _axis_labels(
    m: Drawable, key_tokens: Sequence[str] | None, query_tokens: Sequence[str] | None, boundary: int | None
) -> Labels:
    """Return the labels of both axes; by default queries have those of the last keys."""
    T, S = _split_heads(m)[0].shape[-2:]
    keys = _labels("key_tokens", key_tokens, S)
    # More queries than keys have no keys of the same positions to be named by.
    if query_tokens is None and T <= S:
        queries = keys[S - T :]
    else:
        queries = _labels("query_tokens", query_tokens, T)
    if boundary is not None and not 0 < boundary < S:
        raise ValueError(f"boundary: expected from 1 to {S - 1}, since there are {S} keys, got {boundary!r}")
    return Labels(queries, keys, boundary)


def _labels(name: str, tokens: Sequence[str] | None, n: int) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(n)]
    # A string is a sequence as well, and would label every position with a letter.
    if isinstance(tokens, str) or len(tokens) != n:
        count = "one string" if isinstance(tokens, str) else len(tokens)
        raise ValueError(f"{name}: expected {n} tokens, one for each position on the axis, got {count}")
    return [legible(str(token)) for token in tokens]


def _plot(
    heads: Sequence[Drawable], labels: Labels, words: FigureWords, ax: Any, scale: Scale, reduce: Reduce
) -> Any:
    for name, value, choices in (("scale", scale, ("linear", "log")), ("reduce", reduce, ("mass", "max"))):
        if value not in choices:
            raise ValueError(f"{name}: expected {choices[0]!r} or {choices[1]!r}, got {value!r}")
    if len(heads) == 1:
        return _draw_single(heads[0], labels, words, ax, scale == "log", reduce)
    if ax is not None:
        raise ValueError(f"ax: expected one head to draw there, got a map of {len(heads)}: pass m[b, h]")
    return _draw_gallery(heads, labels, words, scale == "log", reduce)


def _draw_single(m: Drawable, labels: Labels, words: FigureWords, ax: Any, log: bool, reduce: Reduce) -> Any:
    """Draw one head, on given axes or in a figure of its own with its words and keys; returns the figure."""
    longest = max(m.shape)
    fontsize = 9.0 if longest <= MAX_NUMBERED_SIDE else 7.5
    if ax is not None:
        draw_map(ax, m, labels, fontsize=fontsize, log=log, reduce=reduce)
        _write_beside(ax, words, ax.set_title, loc="left", pad=14)
        return ax.figure
    cell = 0.5 if longest <= MAX_NUMBERED_SIDE else 0.17
    height, width = (min(max(cell * n, 3.2), 6.0 if n > MOST_TOKENS else cell * MOST_TOKENS) for n in m.shape)
    words = words._replace(notes=[describe_cell(m, reduce, log), *words.notes])
    drawn, ax = lay_out(words, (width, height))
    shown = draw_map(ax, m, labels, fontsize=fontsize, log=log, reduce=reduce)
    draw_keys(drawn, shown.image, clipped=shown.clipped, hidden=shown.hidden)
    return release(drawn)


def _draw_gallery(
    heads: Sequence[Drawable], labels: Labels, words: FigureWords, log: bool, reduce: Reduce
) -> Any:
    """Draw all heads of a layer side by side, each on a colour scale of its own."""
    across = min(len(heads), 4)
    down = -(-len(heads) // across)
    drawn = new_figure("a figure", (2.7 * across + 0.6, 2.9 * down + 0.8))
    axes = drawn.subplots(down, across, squeeze=False)
    for number, ax in enumerate(axes.flat):
        if number >= len(heads):
            ax.set_visible(False)
            continue
        draw_map(ax, heads[number], labels, fontsize=6.0, log=log, reduce=reduce, small=True)
        ax.set_title(f"head {number}", fontsize=9, loc="left")
        ax.label_outer()
    _write_beside(axes[0, 0], words, drawn.suptitle, x=0.01, ha="left")
    return release(drawn)


def _write_beside(ax: Any, words: FigureWords, set_title: Any, **options: Any) -> None:
    """Write the heading with a title function, and the notes at the foot of the figure."""
    if words.heading:
        set_title(words.heading, fontsize=11, parse_math=False, **options)
    if foot := " ".join([words.warning, *words.notes]).strip():
        colour = WARNING if words.warning else SOFT
        ax.figure.supxlabel(foot, fontsize=7.5, color=colour, parse_math=False, x=0.01, ha="left", wrap=True)
