"""A map as a figure for paper: PNG, SVG or PDF by Matplotlib's `savefig`.

Queries run down and keys across, both labelled with their tokens. A small map has a number in each cell; a
long one is pooled, exactly and without a T×S matrix. This file knows maps, captures and tokens; it does not
know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from regard.extras import extra
from regard.heads import uniform
from regard.maps import AttentionMap, DifferenceMap, SignedMap, WeightedMap
from regard.recorder import Capture
from regard.stages.picture import (
    MAX_NUMBERED_SIDE,
    colour_map,
    colour_scale,
    draw_heatmap,
    largest,
)

MOST_TOKENS = 64  # a longer axis is labelled with a few of its tokens and their positions
MOST_CELLS = 512  # a longer axis is pooled: a figure has no room for more
TICKS = 10  # labels on a longer axis
WARNING = "#a5342a"
Scale = Literal["linear", "log"]
Reduce = Literal["mass", "max"]
Drawable = AttentionMap | SignedMap | Tensor


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
    'attended-to (key)'
    """
    for name, value, choices in (("scale", scale, ("linear", "log")), ("reduce", reduce, ("mass", "max"))):
        if value not in choices:
            raise ValueError(f"{name}: expected {choices[0]!r} or {choices[1]!r}, got {value!r}")
    heads = _split_heads(attention_map)
    T, S = heads[0].shape[-2:]
    keys = _labels("key_tokens", key_tokens, S)
    if query_tokens is None and T <= S:
        queries = keys[S - T :]
    else:
        queries = _labels("query_tokens", query_tokens, T)
    if boundary is not None and not 0 < boundary < S:
        raise ValueError(f"boundary: expected from 1 to {S - 1}, since there are {S} keys, got {boundary!r}")
    labels = Labels(queries, keys, boundary, scale == "log", reduce)
    if len(heads) > 1:
        if ax is not None:
            raise ValueError(f"ax: expected one head to draw there, got a map of {len(heads)}: pass m[b, h]")
        return _draw_gallery(heads, labels, title, note)
    return _draw_single(heads[0], labels, ax, title, note)


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
    """Draw one head of a capture, or all heads of a layer, with the certificate's sentence at the foot.

    Arguments:
        capture: the capture.
        layer: the layer's number, or its key such as "decoder.3".
        head: the head's number in the model; all heads of the layer if None.
        against: another capture of the same shape, whose weights are subtracted: of another text, another
            checkpoint, or an edited run.
        batch: the entry of the batch.
        ax, scale, reduce: as in `plot`.

    Returns the Matplotlib figure.
    """
    chosen = capture.layer(layer)
    m = (chosen.map if head is None else capture[layer, head])[batch]
    if against is not None:
        m = m - (against.layer(layer).map if head is None else against[layer, head])[batch]
    T, S = m.shape[-2:]
    # The tokens on each axis: beside an encoder, decoders have tokens of their own.
    source = None if capture.tokens is None else capture.tokens[batch]
    target = source if capture.target_tokens is None else capture.target_tokens[batch]
    keys = target if chosen.stack == "decoder" else source
    queries = target if chosen.stack in ("decoder", "cross") else source
    marked = capture.boundary is not None and chosen.stack != "cross" and 0 < capture.boundary < S
    place = f"layer {chosen.key}" + ("" if head is None else f", head {head}")
    place += "" if against is None else ", difference"
    drawn = plot(
        m,
        keys[-S:] if keys is not None and len(keys) >= S else None,
        query_tokens=queries[-T:] if queries is not None and len(queries) >= T else None,
        ax=ax,
        title=f"{capture.model}: {place}" if capture.model else place,
        note=_certificate_note(layer, *(x for x in (capture, against) if x is not None)),
        scale=scale,
        reduce=reduce,
        boundary=capture.boundary if marked else None,
    )
    if m.ndim == 3 and len(chosen.heads) > 1:
        for panel, number in zip(drawn.axes, chosen.heads, strict=False):
            panel.set_title(f"head {number}", fontsize=9, loc="left")
    return drawn


def _certificate_note(layer: int | str, *captures: Capture) -> str:
    """Return what the certificates of a layer say: the first that is not certified, or else the first."""
    evidence = [capture.certificate[capture.layers.index(capture.layer(layer))] for capture in captures]
    return str(next((x for x in evidence if not x.certified), evidence[0]))


def legible(token: str) -> str:
    """Return a token as a label, in which spaces, line ends and unprintable characters are visible.

    >>> legible(" sea"), legible("\\n"), legible(" "), legible("a\\x00")
    ('·sea', '↵', '·', 'a�')
    """
    marked = token.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥")
    return "".join(x if x.isprintable() else "�" for x in marked) or "∅"


class Labels(NamedTuple):
    """The labels of both axes, and how the weights are shown."""

    queries: list[str]
    keys: list[str]
    boundary: int | None
    log: bool
    reduce: Reduce


class FigureCells(NamedTuple):
    """The cells of a figure, and the first query and the first key of each."""

    signed: bool  # whether the colours diverge from 0
    values: Tensor  # (rows, cols)
    hidden: Tensor  # (rows, cols), True where no key is visible
    rows: list[int]
    cols: list[int]


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


def _labels(name: str, tokens: Sequence[str] | None, n: int) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(n)]
    if isinstance(tokens, str) or len(tokens) != n:
        count = "one string" if isinstance(tokens, str) else len(tokens)
        raise ValueError(f"{name}: expected {n} tokens, one for each position on the axis, got {count}")
    return [legible(str(token)) for token in tokens]


def _pool(m: Drawable, reduce: Reduce, most: int) -> FigureCells:
    """Pool a map to at most `most` cells along each axis."""
    T, S = m.shape
    if isinstance(m, Tensor):
        values = m.detach().float().cpu()
        hidden = torch.zeros_like(values, dtype=torch.bool)
        return FigureCells(bool((values < 0).any()), values, hidden, list(range(T)), list(range(S)))
    rows, cols = min(T, most), min(S, most)
    values = cast(Tensor, m.pool(rows, cols, reduce)).float().cpu()
    signed = isinstance(m, DifferenceMap) or bool((values < 0).any())
    edges = [[i * n // count for i in range(count)] for n, count in ((T, rows), (S, cols))]
    return FigureCells(signed, values, _hidden_cells(m, rows, cols), *edges)


def _hidden_cells(m: Any, rows: int, cols: int) -> Tensor:
    """Return which cells of a pooled map (T, S) hold no visible key, (rows, cols)."""
    if isinstance(m, WeightedMap):
        return _hidden_cells(m.attention, rows, cols)
    if isinstance(m, DifferenceMap):
        return _hidden_cells(m.left, rows, cols) & _hidden_cells(m.right, rows, cols)
    if not isinstance(m, AttentionMap):
        return torch.zeros(rows, cols, dtype=torch.bool)
    baseline = cast(Tensor, uniform(m).pool(rows, cols))
    return (baseline[0, 0] == 0).cpu()  # uniform attention is 0 only where no key is visible


def _draw(ax: Any, m: Drawable, labels: Labels, fontsize: float, most: int) -> Any:
    """Draw one head on axes, pooled to at most `most` cells along each, and return the image."""
    cells = _pool(m, labels.reduce, most)
    if max(m.shape) <= MAX_NUMBERED_SIDE:
        image = draw_heatmap(
            ax,
            cells.values,
            labels.queries,
            labels.keys,
            hidden=cells.hidden,
            fontsize=fontsize,
            log=labels.log,
            signed=cells.signed,
        )
    else:
        norm = colour_scale(largest(cells.values, cells.hidden), labels.log, cells.signed)
        pixels = cells.values.masked_fill(cells.hidden, torch.nan).numpy()
        colours = colour_map(cells.signed)
        image = ax.imshow(pixels, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
        most_tokens = MOST_TOKENS if most == MOST_CELLS else MAX_NUMBERED_SIDE
        _set_ticks(ax.xaxis, labels.keys, cells.cols, most_tokens, fontsize=fontsize, rotation=90)
        _set_ticks(ax.yaxis, labels.queries, cells.rows, most_tokens, fontsize=fontsize)
        ax.tick_params(length=2, color="#9a9ba3")
        ax.spines[:].set_visible(False)
        ax.set_xlabel("attended-to (key)", fontsize=fontsize + 1)
        ax.set_ylabel("query", fontsize=fontsize + 1)
    if labels.boundary is not None:
        _mark_boundary(ax, labels.boundary, m.shape, cells)
    return image


def _set_ticks(axis: Any, tokens: list[str], starts: list[int], most: int, **text: Any) -> None:
    """Label an axis with all its tokens if there are at most `most`, else with a few and their positions."""
    n, count = len(tokens), len(starts)
    if n <= most:
        cells, names = list(range(n)), tokens
    else:
        ticks = TICKS if most == MOST_TOKENS else TICKS // 2
        cells = [i * (count - 1) // (ticks - 1) for i in range(ticks)]
        positions = [starts[cell] for cell in cells]
        names = [str(i) if tokens[i] == str(i) else f"{tokens[i]}  {i:,}" for i in positions]
    axis.set_ticks(cells, names, parse_math=False, **text)


def _mark_boundary(ax: Any, boundary: int, shape: tuple[int, ...], cells: FigureCells) -> None:
    """Draw a line before the first generated token, across the keys and, if it is a query, the queries."""
    T, S = shape
    line = {"color": WARNING, "linewidth": 1.0, "linestyle": (0, (4, 3)), "gid": "boundary"}
    across = _cell_at(cells.cols, S, boundary)
    ax.axvline(across, **line)
    if 0 < (first := boundary - (S - T)) < T:
        ax.axhline(_cell_at(cells.rows, T, first), **line)
    ax.annotate(
        "generated →",
        (across, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        fontsize=7,
        color=WARNING,
    )


def _cell_at(starts: list[int], n: int, position: int) -> float:
    """Return where a position begins in an image's coordinates, in which the first cell begins at −0.5."""
    return position * len(starts) / n - 0.5


def _draw_single(m: Drawable, labels: Labels, ax: Any, title: str, note: str) -> Any:
    """Draw one head, on given axes or in a figure of its own with a colour bar; returns the figure."""
    T, S = m.shape
    new_figure = ax is None
    if ax is None:
        with extra("app", "a figure"):
            import matplotlib.pyplot as plt

        cell = 0.55 if max(T, S) <= MAX_NUMBERED_SIDE else 0.19
        width, height = (
            min(max(cell * n, 3.0), 7.0 if n > MOST_TOKENS else cell * MOST_TOKENS) for n in (S, T)
        )
        _, ax = plt.subplots(figsize=(width + 1.8, height + 1.3), layout="constrained")
    image = _draw(ax, m, labels, 9.0 if max(T, S) <= MAX_NUMBERED_SIDE else 7.5, MOST_CELLS)
    _write_title_and_note(ax, title, note, ax.set_title)
    if new_figure:
        _draw_colour_bar(ax.figure, image, ax, _bar_label(m, labels.reduce, pooled=max(T, S) > MOST_CELLS))
    return ax.figure


def _draw_gallery(heads: Sequence[Drawable], labels: Labels, title: str, note: str) -> Any:
    """Draw all heads of a layer side by side, each coloured from 0 to its own largest weight."""
    with extra("app", "a figure"):
        import matplotlib.pyplot as plt

    across = min(len(heads), 4)
    down = -(-len(heads) // across)
    drawn, axes = plt.subplots(
        down, across, figsize=(2.7 * across + 0.6, 2.9 * down + 0.8), layout="constrained", squeeze=False
    )
    for number, ax in enumerate(axes.flat):
        if number >= len(heads):
            ax.set_visible(False)
            continue
        _draw(ax, heads[number], labels, 6.0, 128)
        for text in [*ax.texts]:  # numbers would be too small to read
            text.remove()
        ax.set_title(f"head {number}", fontsize=9, loc="left")
        ax.label_outer()
    _write_title_and_note(axes[0, 0], title, note, drawn.suptitle)
    return drawn


def _write_title_and_note(ax: Any, title: str, note: str, set_title: Any) -> None:
    """Write the title, and the note at the foot of the figure: in red if a map is not certified."""
    if title:
        options = {} if set_title.__name__ == "suptitle" else {"loc": "left", "pad": 14}
        set_title(title, fontsize=11, parse_math=False, **options)
    if note:
        colour = WARNING if note.startswith("not certified") else "#5d5f69"
        ax.figure.supxlabel(note, fontsize=7.5, color=colour, parse_math=False, x=0.01, ha="left", wrap=True)


def _bar_label(m: Drawable, reduce: Reduce, *, pooled: bool) -> str:
    """Return what the numbers of a map are."""
    entry = "weight" if isinstance(m, AttentionMap | Tensor) else "weight × factor of the key"
    if isinstance(m, DifferenceMap):
        entry = "difference"
    if not pooled:
        return entry
    if reduce == "max":
        return f"greatest {entry}"
    return f"{'mass' if entry == 'weight' else entry}: summed over keys, mean of queries"


def _draw_colour_bar(drawn: Any, image: Any, ax: Any, label: str) -> None:
    bar = drawn.colorbar(image, ax=ax, aspect=40, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label(label, fontsize=9)
