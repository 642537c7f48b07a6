"""Spans of positions that need no text: documents in a packed sequence, patches of an image, your own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.tensors import check_whole_numbers
from regard.maps.spans import Spans


def documents(ids: Tensor | Sequence[int], separator: int | None = None) -> Spans:
    """The documents of a packed sequence: "document 1", "document 2" and so on.

    - `ids`: the token ids (T,), or (1, T) as a capture has them.
    - `separator`: the id of the token between documents, such as `tokenizer.eos_token_id`; separators belong
      to no document. Without it, `ids` are the number of the document of each token, as in
      `regard.documents(ids)`.

    >>> spans = documents([0, 5, 6, 0, 7], separator=0)
    >>> spans.starts, spans.stops
    ((1, 4), (3, 5))
    """
    table = check_whole_numbers("ids", ids, "whole numbers (T,), one for each token")
    row = table[0] if table.ndim == 2 and len(table) == 1 else table
    if row.ndim != 1:
        raise ValueError(f"ids: expected whole numbers (T,), one for each token, got {tuple(table.shape)}")
    starts, stops, position = [], [], 0
    # A run of tokens that are no separator, or that have the same number, is a document.
    for kind, run in groupby(
        row.tolist(), lambda number: number == separator if separator is not None else number
    ):
        length = len(list(run))
        if separator is None or not kind:
            starts.append(position)
            stops.append(position + length)
        position += length
    return Spans(starts, stops, [f"document {number + 1}" for number in range(len(starts))])


def grid(h: int, w: int, first: int | Sequence[str] = 0, by: Literal["row", "patch"] = "row") -> Spans:
    """The patches of an image, `h` rows of `w`, which a vision model reads row after row.

    - `h`, `w`: the number of patches in a column and in a row.
    - `first`: the tokens before the patches, each a span of its own: how many there are (the first is called
      "CLS", the others "register 1" and so on), or their names.
    - `by`: "row" for a span for each row of patches, "patch" for each patch, named by its row and column.

    >>> grid(2, 3, first=1).names
    ('CLS', 'row 0', 'row 1')
    >>> grid(2, 2, by="patch").names
    ('0,0', '0,1', '1,0', '1,1')
    """
    h, w = check_whole_number("h", h, 1), check_whole_number("w", w, 1)
    if by not in ("row", "patch"):
        raise ValueError(f"by: expected 'row' or 'patch', got {by!r}")
    if isinstance(first, int):
        count = check_whole_number("first", first, 0)
        first = ["CLS", *(f"register {number}" for number in range(1, count))][:count]
    patches = (
        [f"row {y}" for y in range(h)] if by == "row" else [f"{y},{x}" for y in range(h) for x in range(w)]
    )
    length = w if by == "row" else 1
    edges = [*range(len(first)), *range(len(first), len(first) + h * w + 1, length)]
    return Spans.from_edges(edges, [*first, *patches])


def custom(
    edges: Sequence[int] | Tensor | Sequence[tuple[int, int]], names: Sequence[str] | None = None
) -> Spans:
    """Spans of your own.

    - `edges`: increasing positions, each span from one to the next; or pairs (start, stop), which may leave
      gaps.
    - `names`: one for each span; by default a span is named by its positions.

    >>> custom([0, 4, 9], ["question", "answer"]).stops
    (4, 9)
    >>> custom([(1, 4), (6, 9)]).names
    ('1–3', '6–8')
    """
    pairs = (
        [tuple(edge) for edge in edges if isinstance(edge, Sequence)] if not isinstance(edges, Tensor) else []
    )
    if not pairs:
        return Spans.from_edges(edges, names)  # type: ignore[arg-type]
    if len(pairs) != len(edges) or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"edges: expected positions, or pairs (start, stop), got {edges!r:.60}")
    return Spans([pair[0] for pair in pairs], [pair[1] for pair in pairs], names)
