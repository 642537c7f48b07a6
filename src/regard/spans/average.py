"""`mean`: the average span table of many captures, with intervals over texts.

Texts of different lengths share the names of their spans, not their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.maps.spans import Spans
from regard.spans.span_mass import measure_spans
from regard.spans.table import REST_NAME, SINK_NAME, SpanTable

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture

TextSpans = Spans | tuple[Spans, Spans]
"""The row and the column spans of a text, or one `Spans` for both."""


def mean(
    captures: Iterable[Capture],
    spans: Callable[[Capture], TextSpans] | Sequence[TextSpans],
    *,
    stack: str | None = None,
) -> SpanTable:
    """The average of `seen.spans(rows, cols)` over many captures, with 95% intervals over texts.

    - `captures`: captures of one text each, of one model. They are read one after another, so a generator
      needs the memory of one.
    - `spans`: for each capture its spans, or its `(rows, cols)`, in a list; or a function that gives them for
      a capture. Spans of the same name are averaged; a text that lacks one does not count for it.
    - `stack`: as in `seen.spans`.

    Every text counts the same, whatever its length. `table.interval("heads")` gives the intervals.

    >>> import regard
    >>> from regard.gpt import GPT
    >>> model = GPT.from_pretrained("default")
    >>> texts = ["Mary kept the lamp. Who kept it?", "Tom rang the old bell. Who rang the bell?"]
    >>> def parts(seen):
    ...     end = seen.tokens[0].index(".") + 1
    ...     return regard.spans.custom([1, end, len(seen.tokens[0])], ["story", "question"])
    >>> table = regard.spans.mean([regard.capture(model, text=text) for text in texts], spans=parts)
    >>> table
    SpanTable(2 rows × 4 columns, 24 heads)
    >>> table.texts
    2
    """
    tables: list[SpanTable] = []
    known = None if callable(spans) else iter(spans)
    for number, seen in enumerate(captures):
        if seen.layers and seen.layers[0].shape[0] != 1:
            raise ValueError(
                f"captures: expected one text in each, got {seen.layers[0].shape[0]} in number {number}: "
                "capture the texts one at a time"
            )
        # next with a default: fewer spans than captures are an error of the caller's, worded below.
        own = spans(seen) if callable(spans) else next(known, None) if known is not None else None
        if own is None:
            raise ValueError(f"spans: expected spans for every capture, got none for number {number}")
        rows, cols = own if isinstance(own, tuple) else (own, own)
        for name, part in (("rows", rows), ("cols", cols)):
            if len(set(part.names)) != len(part):
                raise ValueError(
                    f"spans: expected {name} with different names, which texts share, got {part.names!r:.80}"
                )
        tables.append(measure_spans(seen, rows, cols, stack=stack))
        if tables[-1].places != tables[0].places:
            raise ValueError(
                f"captures: expected the same layers and heads in each, not so in number {number}"
            )
    if not tables:
        raise ValueError("captures: expected at least one, got none")
    if known is not None and next(known, None) is not None:
        raise ValueError(f"spans: expected one for each of the {len(tables)} captures, got more")
    # dict.fromkeys keeps the order of the first text that has a name.
    rows_of_all = tuple(dict.fromkeys(name for table in tables for name in table.rows))
    names = dict.fromkeys(name for table in tables for name in table.cols)
    last = [name for name in (SINK_NAME, REST_NAME) if name in names]
    # These two come last in every table, whichever texts have them.
    cols_of_all = (*(name for name in names if name not in last), *last)
    masses, uniform_masses = (
        torch.stack(
            [_in_place(x, table, rows_of_all, cols_of_all) for x, table in zip(of_all, tables, strict=True)]
        )
        for of_all in ([table.masses[0] for table in tables], [table.uniform_masses[0] for table in tables])
    )
    return SpanTable(rows_of_all, cols_of_all, tables[0].places, masses, uniform_masses, tables[0].model)


def _in_place(masses: Tensor, table: SpanTable, rows: Sequence[str], cols: Sequence[str]) -> Tensor:
    """The numbers of a table (heads, rows, cols) among these rows and columns, NaN where it has none."""
    placed = masses.new_full((len(masses), len(rows), len(cols)), torch.nan)
    if REST_NAME in cols:
        placed[..., cols.index(REST_NAME)] = 0.0  # a text whose spans have no gaps gives nothing to them
    own_rows, own_cols = (
        [names.index(name) for name in own] for names, own in ((rows, table.rows), (cols, table.cols))
    )
    placed[:, torch.tensor(own_rows, device="cpu")[:, None], torch.tensor(own_cols, device="cpu")] = masses
    absent = [number for number, name in enumerate(rows) if name not in table.rows]
    placed[:, absent] = torch.nan
    return placed
