"""`compare`: two captures side by side, of two prompts or of two models that read one text.

Tokens are aligned by their ids, layers and heads by their numbers in the model. What cannot be compared is
refused in a sentence. How far two rows are apart is computed in `compared_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.comparison.compared_text import (
    Alignment,
    ComparedText,
    align,
    select_positions,
    total_variation,
)
from regard.comparison.first_difference import Parting, find_parting
from regard.maps import AttentionMap
from regard.spans.text_maps import choose_text
from regard.support.cell_output import PrintedOutput
from regard.support.characters import escape
from regard.support.table import Column, Table, find_head

if TYPE_CHECKING:
    from regard.maps import DifferenceMap
    from regard.recorder.capture_result import Capture

SHOWN = 10  # heads in the printed comparison
COLUMNS = Column("layer", right=True), Column("head", right=True), Column("distance", ".3f", right=True)


class HeadDifference(NamedTuple):
    """How much the attention of one head differs."""

    layer: int | str
    head: int
    distance: float
    """The mean over the shared tokens of the total variation distance: 0 for equal rows, 1 for disjoint."""


class UnsharedToken(NamedTuple):
    """A token that only one of two texts has at its place."""

    position: int
    text: str


@dataclass(frozen=True)
class Comparison(PrintedOutput):
    """Two captures, head by head, on the tokens that they share: the result of `regard.compare`."""

    a: ComparedText
    b: ComparedText
    places: tuple[tuple[int | str, int], ...]
    """The key of the layer and the number of the head, for each head that both have."""
    distances: tuple[Tensor, ...]
    """For each head the total variation distance of every shared query, (n,), from 0 to 1."""
    alignments: dict[str, tuple[Alignment, Alignment]]
    """By stack, the shared queries and the shared keys, each as positions in a and in b."""
    left_out: tuple[int | str, ...]
    """The keys of layers that only one capture has, or whose rows are not known to be tokens."""

    @property
    def heads(self) -> list[HeadDifference]:
        """Every head, the one that differs most first."""
        heads = [
            HeadDifference(layer, head, float(distance.mean()))
            for (layer, head), distance in zip(self.places, self.distances, strict=True)
        ]
        return sorted(heads, key=lambda head: -head.distance)

    @property
    def only_a(self) -> list[UnsharedToken]:
        """The tokens of the first text that the second does not share."""
        return self._unshared(0)

    @property
    def only_b(self) -> list[UnsharedToken]:
        """The tokens of the second text that the first does not share."""
        return self._unshared(1)

    def _unshared(self, side: int) -> list[UnsharedToken]:
        """The tokens of one text that the other does not share; of an encoder's, if there is one."""
        texts = self.a, self.b
        ids = [text.sequences("")[1] or [] for text in texts]
        shared = set(align(*ids)[side].tolist())
        names = texts[side].texts()
        return [
            UnsharedToken(position, names.get(number, f"<{number}>"))
            for position, number in enumerate(ids[side])
            if position not in shared
        ]

    def __getitem__(self, place: tuple[int | str, int]) -> DifferenceMap:
        """The difference a − b of one head at the shared queries and keys, (T, S): `comparison[3, 5]`."""
        expected = "a layer and a head that both captures have"
        key, head = self.places[find_head(self.places, place, expected)]
        maps = []
        for side, text in enumerate((self.a, self.b)):
            layer = text.seen.layer(key)
            rows, keys = (alignment[side] for alignment in self.alignments[layer.stack])
            m = text.map(layer, (rows, keys))
            maps.append(m[0, layer.heads.index(head)])
        difference: DifferenceMap = maps[0] - maps[1]
        return difference

    @torch.no_grad()
    def parting(self) -> Parting:
        """Where two runs on one text part: the first layer that differs by more than rounding, and what.

        For captures of another implementation, dtype, engine or number of ranks. What parts is one or more of
        queries, keys, values (if both captures have them), mask, bias, scale, soft cap, sink logits, and the
        output, if it is not that of its inputs. Errors are judged by what the dtypes round to and by how
        far earlier layers are apart. Two texts are refused: where their tokens differ, so does everything.

        >>> import regard
        >>> from regard.gpt import GPT
        >>> model = GPT.from_pretrained("default")
        >>> a = regard.capture(model, text="Mary kept the lamp lit.", values=True)
        >>> b = regard.capture(model.bfloat16(), text="Mary kept the lamp lit.", values=True)
        >>> regard.compare(a, b).parting().rounding_only
        True
        """
        for name, tokens in (("only in a", self.only_a), ("only in b", self.only_b)):
            if tokens:
                listed = ", ".join(repr(token.text) for token in tokens[:SHOWN])
                raise ValueError(
                    f"parting: expected two runs on one text, got tokens {name}: {escape(listed)}"
                )
        keys = list(dict.fromkeys(key for key, _ in self.places))
        found = find_parting(self.a, self.b, keys, self.alignments)
        return replace(found, left_out=self.left_out)

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each head, the one that differs most first."""
        return Table(COLUMNS, self.heads).to_pandas()

    def __repr__(self) -> str:
        shared = len(next(iter(self.alignments.values()))[0].a)
        queries = "query" if shared == 1 else "queries"
        return f"Comparison({len(self.places)} heads, {shared} shared {queries})"

    def __str__(self) -> str:
        """The tokens that differ, and the heads that differ most."""
        lines = [repr(self)]
        for name, tokens in (("only in a", self.only_a), ("only in b", self.only_b)):
            if tokens:
                listed = " ".join(f"{token.text!r}" for token in tokens[:SHOWN])
                lines.append(f"{name}: {escape(listed)}" + (" …" if len(tokens) > SHOWN else ""))
        lines += Table(COLUMNS, self.heads[:SHOWN]).lines()
        if len(self.places) > SHOWN:
            lines.append(f"… and {len(self.places) - SHOWN} more")
        return "\n".join(lines)


@torch.no_grad()
def compare(seen_a: Capture, seen_b: Capture, *, batch: int | tuple[int, int] | None = None) -> Comparison:
    """Compare two captures: two prompts, or two models or checkpoints that read one text.

    - `seen_a`, `seen_b`: the captures. Tokens are aligned by their ids, as `difflib` aligns lines, so the
      tokenizer has to be the same; layers and heads by their numbers in the model.
    - `batch`: which text of each capture, if it has several: one number for both, or a pair.

    For each head that both have, the comparison gives the total variation distance between the rows of every
    shared token, half of Σ|A − B|: the attention that would have to move. What a row gives to tokens that the
    other text does not have counts in full. `comparison.heads` has the mean for each head, the largest first,
    and `comparison[layer, head]` is the lazy difference of two maps.

    >>> import regard
    >>> from regard.gpt import GPT
    >>> model = GPT.from_pretrained("default")
    >>> a, b = (regard.capture(model, text=f"Mary kept the {thing} lit.") for thing in ("lamp", "fire"))
    >>> comparison = regard.compare(a, b)
    >>> comparison
    Comparison(24 heads, 7 shared queries)
    >>> [token.text for token in comparison.only_a], [token.text for token in comparison.only_b]
    ([' l', 'amp'], [' fire'])
    """
    for name, seen in (("seen_a", seen_a), ("seen_b", seen_b)):
        if not hasattr(seen, "layers"):
            raise ValueError(
                f"{name}: expected a capture, as regard.capture returns, got {type(seen).__name__}"
            )
    batches = batch if isinstance(batch, tuple) else (batch, batch)
    if len(batches) != 2:
        raise ValueError(f"batch: expected one number, or one for each capture, got {batch!r}")
    a, b = (
        ComparedText(seen, choose_text(seen, number))
        for seen, number in zip((seen_a, seen_b), batches, strict=True)
    )
    _check_tokenizers(a, b)
    keys_a, keys_b = ([layer.key for layer in text.seen.layers] for text in (a, b))
    layers_of_both = [layer for text in (a, b) for layer in text.seen.layers]
    others = {x.key for x in layers_of_both if x.is_linear or x.evidence.unplaced is not None}
    shared_keys = [key for key in keys_a if key in keys_b and key not in others]
    alignments: dict[str, tuple[Alignment, Alignment]] = {}
    places: list[tuple[int | str, int]] = []
    distances: list[Tensor] = []
    for key in shared_keys:
        layers = a.seen.layer(key), b.seen.layer(key)
        stack = layers[0].stack
        maps = a.map(layers[0]), b.map(layers[1])
        if stack not in alignments:
            alignments[stack] = _align(a, b, stack, maps)
        rows, keys = alignments[stack]
        shared_a, shared_b = (len(keys[side]) == m.matrix[3] for side, m in enumerate(maps))
        for in_a, in_b in _shared_heads(layers[0].heads, layers[1].heads):
            part_a, part_b = (
                select_positions(m.select(slice(0, 1), chosen), rows[side], keys[side])
                for side, (m, chosen) in enumerate(zip(maps, (in_a, in_b), strict=True))
            )
            distance = total_variation(part_a, part_b.to(part_a.device), shared_a=shared_a, shared_b=shared_b)
            places += [(key, head) for head in layers[0].heads[in_a]]
            distances += [*distance[0].cpu()]
    if not places:
        raise ValueError(
            f"seen_b: expected layers and heads that both captures have, got layers {_listed(keys_a)} and "
            f"{_listed(keys_b)}"
        )
    left_out = tuple(key for key in dict.fromkeys([*keys_a, *keys_b]) if key not in shared_keys)
    return Comparison(a, b, tuple(places), tuple(distances), alignments, left_out)


def _listed(keys: Sequence[int | str]) -> str:
    shown = ", ".join(map(str, keys[:6])) or "none"
    return shown + (", …" if len(keys) > 6 else "")


def _shared_heads(heads_a: tuple[int, ...], heads_b: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """Where the heads that both layers have are in each: all at once, or one by one."""
    if heads_a == heads_b:
        return [(slice(0, len(heads_a)), slice(0, len(heads_b)))]
    shared = [(heads_a.index(head), heads_b.index(head)) for head in heads_a if head in heads_b]
    return [(slice(i, i + 1), slice(j, j + 1)) for i, j in shared]


def _check_tokenizers(a: ComparedText, b: ComparedText) -> None:
    """Raise ValueError if the ids of two captures are not those of one tokenizer."""
    texts_a, texts_b = a.texts(), b.texts()
    for number in texts_a.keys() & texts_b.keys():
        if texts_a[number] != texts_b[number]:
            raise ValueError(
                f"seen_b: expected a capture with the same tokenizer, but token {number} is "
                f"{texts_a[number]!r} in one and {texts_b[number]!r} in the other"
            )


def _align(
    a: ComparedText, b: ComparedText, stack: str, maps: tuple[AttentionMap, AttentionMap]
) -> tuple[Alignment, Alignment]:
    """The shared queries and the shared keys of two texts in a stack."""
    shapes = [m.matrix[2:] for m in maps]
    sequences = a.sequences(stack), b.sequences(stack)
    aligned = []
    for side, name in enumerate(("queries", "keys")):
        ids_a, ids_b = sequences[0][side], sequences[1][side]
        # Under a cache, the first tokens may have keys and no queries.
        first = [0, 0] if side or stack == "cross" else [S - T for T, S in shapes]
        lengths = [shape[side] + skipped for shape, skipped in zip(shapes, first, strict=True)]
        if ids_a is None or ids_b is None or [len(ids_a), len(ids_b)] != lengths:
            if shapes[0][side] != shapes[1][side]:
                raise ValueError(
                    f"seen_b: expected as many {name} as the other capture, since the tokens are not known, "
                    f"got {shapes[0][side]} and {shapes[1][side]}"
                )
            same = torch.arange(shapes[0][side], device="cpu")
            aligned.append(Alignment(same, same))
            continue
        alignment = align(ids_a, ids_b)
        inside = (alignment.a >= first[0]) & (alignment.b >= first[1])
        alignment = Alignment(alignment.a[inside] - first[0], alignment.b[inside] - first[1])
        if not len(alignment.a):
            raise ValueError(
                f"seen_b: expected a text that shares {name} with the other, but no token is in both: are "
                "they of another tokenizer?"
            )
        aligned.append(alignment)
    return aligned[0], aligned[1]
