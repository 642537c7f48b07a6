"""A map as a figure for paper: PNG, SVG or PDF by Matplotlib's `savefig`.

Queries run down, keys run across, both with their tokens. A small map has a number in each cell; a long one
is pooled to an overview, exactly and without a T×S matrix. This file knows maps and tokens; it does not know
models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from regard.heads import uniform
from regard.maps import AttentionMap
from regard.recorder import Capture
from regard.stages.picture import (
    MOST_NUMBERS,
    colour_map,
    colour_scale,
    draw_heatmap,
)

MOST_TOKENS = 64  # a longer axis names a few of its tokens, with their positions
MOST_CELLS = 512  # a longer axis is pooled: a figure has no room for more
TICKS = 10
WARNING = "#a5342a"
Scale = Literal["linear", "log"]
Reduce = Literal["mass", "max"]


def plot(
    map: AttentionMap | Tensor,
    tokens: Sequence[str] | None = None,
    *,
    queries: Sequence[str] | None = None,
    ax: Any = None,
    title: str = "",
    note: str = "",
    scale: Scale = "linear",
    reduce: Reduce = "mass",
    boundary: int | None = None,
) -> Any:
    """Draw a map (T, S) with Matplotlib, or each of its heads; returns the figure, which `savefig` saves.

    `tokens` are those of the keys, and of the queries too, which stand at their end, unless `queries` names
    others. `scale="log"` shows what is small, `reduce` says how a long map is pooled, and `boundary` marks
    where generated tokens begin. A tensor of weights (T, S) is drawn as well.

    >>> import torch, regard
    >>> x = torch.eye(3)
    >>> figure = regard.plot(regard.attention_map(x, x, mask=regard.causal), ["a", "b", "c"])
    >>> figure.axes[0].get_xlabel()
    'attended-to (key)'
    """
    for name, given, known in (("scale", scale, ("linear", "log")), ("reduce", reduce, ("mass", "max"))):
        if given not in known:
            raise ValueError(f"{name}: expected {known[0]!r} or {known[1]!r}, got {given!r}")
    heads = _heads(map)
    T, S = heads[0].shape[-2:]
    keys = _labels("tokens", tokens, S)
    rows = keys[S - T :] if queries is None and T <= S else _labels("queries", queries, T)
    if boundary is not None and not 0 < boundary < S:
        raise ValueError(f"boundary: expected from 1 to {S - 1}, since there are {S} keys, got {boundary!r}")
    labels = Labels(rows, keys, boundary, scale == "log", reduce)
    if len(heads) > 1:
        if ax is not None:
            raise ValueError(f"ax: expected one head to draw there, got a map of {len(heads)}: map[b, h]")
        return _gallery(heads, labels, title, note)
    return _single(heads[0], labels, ax, title, note)


def figure(
    seen: Capture,
    layer: int | str,
    head: int | None = None,
    *,
    batch: int = 0,
    ax: Any = None,
    scale: Scale = "linear",
    reduce: Reduce = "mass",
) -> Any:
    """One head of a capture as a figure, or all heads of a layer, with what the certificate says of it."""
    chosen = seen.layer(layer)
    map = (chosen.map if head is None else seen[layer, head])[batch]
    T, S = map.shape[-2:]
    read = None if seen.tokens is None else seen.tokens[batch]
    written = read if seen.target_tokens is None else seen.target_tokens[batch]
    keys = written if chosen.stack == "decoder" else read
    queries = written if chosen.stack in ("decoder", "cross") else read
    marked = seen.boundary is not None and chosen.stack != "cross" and 0 < seen.boundary < S
    which = f"layer {chosen.key}" + ("" if head is None else f", head {head}")
    drawn = plot(
        map,
        keys[-S:] if keys is not None and len(keys) >= S else None,
        queries=queries[-T:] if queries is not None and len(queries) >= T else None,
        ax=ax,
        title=f"{seen.model}: {which}" if seen.model else which,
        note=str(seen.certificate[seen.layers.index(chosen)]),
        scale=scale,
        reduce=reduce,
        boundary=seen.boundary if marked else None,
    )
    if map.ndim == 3 and len(chosen.heads) > 1:
        for panel, number in zip(drawn.axes, chosen.heads, strict=False):
            panel.set_title(f"head {number}", fontsize=9, loc="left")
    return drawn


def legible(token: str) -> str:
    """A token as a label: spaces, line ends and what cannot be printed are made visible.

    >>> legible(" sea"), legible("\\n"), legible(" "), legible("a\\x00")
    ('·sea', '↵', '·', 'a�')
    """
    shown = token.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥")
    return "".join(x if x.isprintable() else "�" for x in shown) or "∅"


class Labels(NamedTuple):
    """What the axes say."""

    queries: list[str]
    keys: list[str]
    boundary: int | None
    log: bool
    reduce: Reduce


class FigureCells(NamedTuple):
    """What is drawn: values, NaN where nobody may look, and where each cell begins."""

    values: Tensor  # (rows, cols)
    hidden: Tensor  # (rows, cols)
    rows: list[int]
    cols: list[int]


def _heads(map: AttentionMap | Tensor) -> list[AttentionMap | Tensor]:
    if isinstance(map, AttentionMap):
        flat = map if map.ndim < 4 else map[0] if map.shape[0] == 1 else None
        if flat is not None:
            return [flat] if flat.ndim == 2 else [flat[h] for h in range(flat.shape[0])]
    elif isinstance(map, Tensor) and map.ndim == 2 and map.is_floating_point() and map.numel():
        return [map]
    came = f"{type(map).__name__} {tuple(map.shape)}" if hasattr(map, "shape") else type(map).__name__
    raise ValueError(f"map: expected an AttentionMap (T, S), or (H, T, S) for every head, got {came}")


def _labels(name: str, tokens: Sequence[str] | None, n: int) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(n)]
    if isinstance(tokens, str) or len(tokens) != n:
        came = "one string" if isinstance(tokens, str) else len(tokens)
        raise ValueError(f"{name}: expected {n} of them, one for each place on the axis, got {came}")
    return [legible(str(token)) for token in tokens]


def _cells(map: AttentionMap | Tensor, reduce: Reduce, most: int) -> FigureCells:
    T, S = map.shape
    if isinstance(map, Tensor):
        values = map.detach().float().cpu()
        return FigureCells(values, torch.zeros_like(values, dtype=torch.bool), list(range(T)), list(range(S)))
    rows, cols = min(T, most), min(S, most)
    values, alike = (cast(Tensor, x.pool(rows, cols, reduce)) for x in (map, uniform(map)))
    hidden = alike[0, 0] == 0  # even one that looks at all it may puts nothing there
    edges = [[i * n // count for i in range(count)] for n, count in ((T, rows), (S, cols))]
    return FigureCells(values.float().cpu(), hidden.cpu(), *edges)


def _draw(ax: Any, map: AttentionMap | Tensor, labels: Labels, fontsize: float, most: int) -> Any:
    """One head on axes that are there; returns the image."""
    cells = _cells(map, labels.reduce, most)
    if max(map.shape) <= MOST_NUMBERS:
        image = draw_heatmap(
            ax,
            cells.values,
            labels.queries,
            labels.keys,
            hidden=cells.hidden,
            fontsize=fontsize,
            log=labels.log,
        )
    else:
        seen = cells.values[~cells.hidden]
        norm = colour_scale(float(seen.max()) or 1.0 if seen.numel() else 1.0, labels.log)
        shown = cells.values.masked_fill(cells.hidden, torch.nan).numpy()
        image = ax.imshow(shown, cmap=colour_map(), norm=norm, aspect="auto", interpolation="nearest")
        names = MOST_TOKENS if most == MOST_CELLS else MOST_NUMBERS
        _ticks(ax.xaxis, labels.keys, cells.cols, names, fontsize=fontsize, rotation=90)
        _ticks(ax.yaxis, labels.queries, cells.rows, names, fontsize=fontsize)
        ax.tick_params(length=2, color="#9a9ba3")
        ax.spines[:].set_visible(False)
        ax.set_xlabel("attended-to (key)", fontsize=fontsize + 1)
        ax.set_ylabel("query", fontsize=fontsize + 1)
    if labels.boundary is not None:
        _mark_boundary(ax, labels.boundary, map.shape, cells)
    return image


def _ticks(axis: Any, tokens: list[str], starts: list[int], most: int, **text: Any) -> None:
    """Every token of an axis with at most so many; of a longer one a few, with their positions."""
    n, count = len(tokens), len(starts)
    if n <= most:
        places, names = list(range(n)), tokens
    else:
        ticks = TICKS if most == MOST_TOKENS else TICKS // 2
        places = [i * (count - 1) // (ticks - 1) for i in range(ticks)]
        at = [starts[place] for place in places]
        names = [str(i) if tokens[i] == str(i) else f"{tokens[i]}  {i:,}" for i in at]
    axis.set_ticks(places, names, parse_math=False, **text)


def _mark_boundary(ax: Any, boundary: int, shape: tuple[int, ...], cells: FigureCells) -> None:
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
    """Where a position begins, in cells as an image counts them: the first begins at −0.5."""
    return position * len(starts) / n - 0.5


def _single(map: AttentionMap | Tensor, labels: Labels, ax: Any, title: str, note: str) -> Any:
    T, S = map.shape
    own = ax is None
    if ax is None:
        import matplotlib.pyplot as plt

        cell = 0.55 if max(T, S) <= MOST_NUMBERS else 0.19
        width, height = (
            min(max(cell * n, 3.0), 7.0 if n > MOST_TOKENS else cell * MOST_TOKENS) for n in (S, T)
        )
        _, ax = plt.subplots(figsize=(width + 1.8, height + 1.3), layout="constrained")
    image = _draw(ax, map, labels, 9.0 if max(T, S) <= MOST_NUMBERS else 7.5, MOST_CELLS)
    _say(ax, title, note, ax.set_title)
    if own:
        _colour_key(ax.figure, image, ax, labels, pooled=max(T, S) > MOST_CELLS)
    return ax.figure


def _gallery(heads: Sequence[AttentionMap | Tensor], labels: Labels, title: str, note: str) -> Any:
    """Every head of a layer on the same text, side by side, each in its own colours from 0 to its largest."""
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
        for text in [*ax.texts]:
            text.remove()  # too small to read
        ax.set_title(f"head {number}", fontsize=9, loc="left")
        ax.label_outer()
    _say(axes[0, 0], title, note, drawn.suptitle)
    return drawn


def _say(ax: Any, title: str, note: str, place: Any) -> None:
    """The title, and the note at the foot of the figure: red where it says that a map is not certified."""
    if title:
        options = {} if place.__name__ == "suptitle" else {"loc": "left", "pad": 14}
        place(title, fontsize=11, parse_math=False, **options)
    if note:
        colour = WARNING if note.startswith("not certified") else "#5d5f69"
        ax.figure.supxlabel(note, fontsize=7.5, color=colour, parse_math=False, x=0.01, ha="left", wrap=True)


def _colour_key(drawn: Any, image: Any, ax: Any, labels: Labels, *, pooled: bool) -> None:
    what = "greatest weight" if labels.reduce == "max" else "mass: summed over keys, mean of queries"
    bar = drawn.colorbar(image, ax=ax, aspect=40, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label(what if pooled else "weight", fontsize=9)
