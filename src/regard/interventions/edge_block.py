"""`block`: cuts edges of heads before the softmax, so that some queries cannot attend to some keys.

This is attention knock-out. The head's attention is computed again, fused, under the model's own mask without
these edges; no matrix is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, grid
from regard.attention.masks.named_masks import Rectangle
from regard.attention.masks.tensor_masks import TensorMask
from regard.attention.masks.views import Submatrix
from regard.interventions.edit import (
    PATCHED,
    CallPlace,
    Edit,
    Positions,
    PositionSet,
    check_no_dropout,
    head_mask,
    replace_weights,
    with_heads,
)
from regard.interventions.head_selection import Heads, Layer, select_heads
from regard.recorder.attention_call import AttentionCall

Edges = Mask | tuple[Positions, Positions]
"""A mask rule that is True for the edges, or the positions of queries and of keys between which they are."""
CHECKED_ENTRIES = 1 << 22  # entries of a mask that are evaluated at a time


def block(
    layer: Layer | None = None,
    head: int | Sequence[int] | None = None,
    edges: Edges | None = None,
    *,
    heads: Heads | None = None,
) -> Edit:
    """An edit that cuts edges before the softmax: attention knock-out.

    - `layer`: the layer's number, or its key such as "decoder.3" where the model has several stacks.
    - `head`: the head's number, several, or None for all heads of the layer.
    - `edges`: the edges to cut: a mask rule that is True for them, such as `regard.prefix(1)` (every edge to
      the first token), `regard.window(4)` or `regard.rule(lambda b, h, q, k: q - k == 1)`; or a pair
      (queries, keys) of positions, each a number, a list, a slice, spans or one span: `(slice(None), 0)`.
      Positions count the tokens of the input from 0, padding included; −1 is the last token so far.
    - `heads`: instead of layer and head, as in `regard.ablate`.

    A query that loses its last visible key attends to nothing, and the head gives 0 there.

    >>> import regard
    >>> print(regard.block(5, 3, edges=(slice(None), 0)))
    head 5.3 without the edges from all to 0
    """
    if isinstance(edges, Mask):
        if edges.biased:
            raise ValueError(f"edges: expected a rule that says yes or no, but {edges} adds to the scores")
    elif isinstance(edges, tuple) and len(edges) == 2:
        between = (PositionSet.of("edges", edges[0]), PositionSet.of("edges", edges[1]))
        return EdgeBlock(select_heads(layer, head, heads), between)
    else:
        got = "nothing" if edges is None else type(edges).__name__
        fix = ": write regard.tensor_mask(edges)" if isinstance(edges, Tensor) else ""
        raise ValueError(
            f"edges: expected a mask rule or a pair (queries, keys) of positions, got {got}{fix}"
        )
    return EdgeBlock(select_heads(layer, head, heads), edges)


@dataclass(frozen=True)
class EdgeBlock(Edit):
    """Cuts edges of heads; see `block`."""

    edges: Mask | tuple[PositionSet, PositionSet]

    rank = 1

    def with_weights(
        self, call: AttentionCall, heads: list[int], place: CallPlace, rows: Tensor | None
    ) -> AttentionCall:
        place.check()
        (B, H, T, _), (G, S) = call.q.shape, call.k.shape[1:3]
        edges = self.edges_in(place, T, S, call.q.device)
        if (error := edges.shape_error(B, call.total_heads, T, S)) is not None:
            raise ValueError(f"edges: {error}")
        # A rule that names heads means those of the model, of which a rank has some.
        if call.heads is not None:
            edges = edges.select(slice(None), call.heads)
        cut = (call.mask & edges).select(slice(None), heads)
        # The call itself shows that the edit has not acted: the model hides these edges already.
        if not self._cuts_any(cut, (B, len(heads), T, S), call.q.device):
            return call
        check_no_dropout(call, place, "edges are cut")
        if call.problem == PATCHED:
            raise RuntimeError(
                f"layer {place.layer}: edges cannot be cut beside a pattern that is patched at some "
                "positions or under another bias: make one of the two edits"
            )
        everything = heads == list(range(H))
        # All heads keep their groups; some of them may be unequal parts of groups, and get keys each.
        kv_heads = list(range(G)) if everything else [head // (H // G) for head in heads]
        edited = call._replace(
            q=call.q if everything else call.q[:, heads],
            k=call.k if everything else call.k[:, kv_heads],
            v=call.v if everything else call.v[:, kv_heads],
            mask=(call.mask & ~edges).select(slice(None), slice(None) if everything else heads),
            sinks=None if call.sinks is None else call.sinks[heads],
        )
        output, lse = edited.attend_to(edited.v)
        if call.softly_masked_rows:  # rows of padding, which had no visible key before either
            own = call.with_lse().lse
            assert own is not None
            was_empty = (own[:, heads] == -torch.inf).unsqueeze(-1)
            output = torch.where(was_empty, call.output[:, heads], output)
        replaced = replace_weights(
            call, heads, output, lambda: edited._replace(lse=lse).attention_map().to_dense()
        )
        # All heads share a mask, so it says for which of them the edges are cut.
        cut = edges if everything else head_mask(call, heads) & edges
        lse_of_all = None if call.lse is None else with_heads(call.lse, heads, lse)
        return replaced._replace(lse=lse_of_all, mask=call.mask & ~cut)

    def edges_in(self, place: CallPlace, T: int, S: int, device: torch.device) -> Mask:
        """Return the edges as a mask of a call's T queries and S keys."""
        if isinstance(self.edges, Mask):
            if (error := self.edges.shape_error(None, None, place.T, place.S)) is not None:
                raise ValueError(f"edges: {error}")
            if (place.first_row, place.first_key, place.T) == (0, 0, place.S):
                return self.edges
            return Submatrix(self.edges, place.first_row, place.first_key, place.T, place.S)
        queries, keys = self.edges
        rows = queries.flags(place.T, device)[place.first_row : place.first_row + T]
        cols = keys.flags(place.S, device)[place.first_key : place.first_key + S]
        row_run, key_run = _as_run(rows), _as_run(cols)
        if row_run is not None and key_run is not None:  # of which kernels skip whole blocks
            return Submatrix(Rectangle(*row_run, *key_run), 0, 0, T, S)
        return TensorMask(rows.view(1, 1, T, 1)) & TensorMask(cols.view(1, 1, 1, S))

    def _cuts_any(self, cut: Mask, shape: tuple[int, int, int, int], device: torch.device) -> bool:
        """Whether a mask of the visible edges to cut has any, looked for in a few rows at a time."""
        _, _, T, S = shape
        step = max(1, CHECKED_ENTRIES // max(S, 1))
        return any(
            bool(cut.allowed(grid(slice(i, min(i + step, T)), slice(0, S), shape, device)).any())
            for i in range(0, T, step)
        )

    def __str__(self) -> str:
        if isinstance(self.edges, Mask):
            return f"{self.selection} without the edges of {self.edges}"
        queries, keys = self.edges
        return f"{self.selection} without the edges from {queries} to {keys}"


def _as_run(flags: Tensor) -> tuple[int, int] | None:
    """Return the first and the last position of flags (n,) that are one run, or None if they are not."""
    positions = flags.nonzero().flatten().tolist()
    if not positions or positions[-1] - positions[0] + 1 != len(positions):
        return None
    return positions[0], positions[-1]
