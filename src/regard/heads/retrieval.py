"""`needle`: which heads copy from a place far back in the context (retrieval heads, Wu et al. 2024).

A needle, a sentence that nothing else can tell, is hidden in filler text; its beginning stands again at the
end. While the model writes the answer, a retrieval head attends most to the very token that is to be written
next, inside the needle. This file builds the contexts and counts; how a head earns its label is in `labels`.
"""

from __future__ import annotations

import inspect
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.heads.labels import earned_labels
from regard.heads.measures.running_sums import Estimates, ratio_intervals
from regard.heads.measures.visible_keys import uniform
from regard.heads.needle_texts import FILLER, NEEDLES, Needle
from regard.heads.tables.description import LayerHeads, name_layer
from regard.heads.tables.table import HeadRow, HeadTable, Score, split_key
from regard.heads.tables.table_text import summary_text
from regard.maps import AttentionMap

if TYPE_CHECKING:
    from regard.recorder import Capture

SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)")


class NeedleContext(NamedTuple):
    """One context with a needle, as tokens."""

    ids: list[int]
    """Filler with the needle in it, and the needle's beginning again at the end."""
    needle: range
    """The positions of the needle in the filler."""
    answer: list[int]
    """The tokens that continue the context."""
    number: int
    """Which needle it is."""


@dataclass(frozen=True)
class NeedleTest:
    """The result of `needle`. Prints as a sentence and the table of the retrieval heads."""

    table: HeadTable
    """Every head with its score "retrieval". `table.join(test.table)` puts it beside other scores."""
    correct: float
    """The share of the answers' tokens that the model predicted as it read them."""
    contexts: int
    """The number of contexts: needles × lengths × depths."""

    def __str__(self) -> str:
        heads = len(self.table.where(label="retrieval"))
        sentence = (
            f"{heads} of {len(self.table)} heads are retrieval heads ({self.contexts} contexts, "
            f"{self.correct:.0%} of the answers read right)"
        )
        return f"{sentence}\n\n{summary_text(self.table, top=None, label='retrieval')}"


def needle(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    needles: Sequence[Needle | tuple[str, ...]] = NEEDLES,
    filler: str | Sequence[str] = FILLER,
    lengths: Sequence[int] = (128, 256, 512),
    depths: Sequence[float] = (0.1, 0.5, 0.9),
    seed: int = 0,
    report: Callable[[str], None] = lambda message: None,
) -> NeedleTest:
    """Score every head of a causal language model as a retrieval head (Wu et al. 2024).

    The retrieval score of a head is the share of the needle's answer tokens for which, at the step that
    predicts the token, the key with the most attention lies in the needle and is that same token. Its
    baselines are the same of a key drawn at random from the visible ones (`null`) and of the needle's tokens
    in random order (`shuffled`); its 95% interval is over needles. The model reads the answer, so that a
    small model can be scored that would not find it.

    - `model`: a `regard.gpt.GPT`, or a causal language model of Transformers.
    - `tokenizer`: the model's; a GPT brings its own.
    - `needles`: each (prompt, answer) or (prompt, answer, question). The sentence prompt + answer is hidden
      in the filler; the question, by default the prompt again, stands at the end, before the answer. All
      parts begin with a space, as inside a text. If the prompt is repeated, induction heads can find the
      answer; another question asks for more.
    - `filler`: a text, or sentences, in which the needles are hidden between two sentences. Sentences come in
      random order, again and again, until a context is full.
    - `lengths`: of the contexts in tokens, with needle, question and answer.
    - `depths`: where the needle is in the filler, from 0 (first) to 1 (last).
    - `seed`: of the filler's order.
    - `report`: called with a message at every context.
    """
    from regard.recorder.model_inputs import context_length

    for name, numbers in (("lengths", lengths), ("depths", depths)):
        # A single number is a common mistake, and would fail later as "not iterable".
        if not isinstance(numbers, Sequence):
            raise ValueError(f"{name}: expected several, as ({numbers!r},), got {numbers!r}")
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError("tokenizer: expected the model's, got none: AutoTokenizer.from_pretrained(…)")
    longest = context_length(model)
    if longest is not None and max(lengths, default=0) > longest:
        raise ValueError(
            f"lengths: expected at most {longest} tokens, the model's context, got {max(lengths)}"
        )
    contexts = list(_contexts(tokenizer, needles, filler, lengths, depths, seed))
    counts: dict[str, Tensor] = {}  # of each layer: (3, needles, H)
    tokens = torch.zeros(len(needles), dtype=torch.float64, device="cpu")  # of the answers to each needle
    layers: dict[str, LayerHeads] = {}
    correct = total = 0
    for number, context in enumerate(contexts, start=1):
        report(f"reading context {number} of {len(contexts)}, of {len(context.ids):,} tokens")
        # One forward pass over everything but the last token of the answer.
        seen, logits = _run(model, context.ids + context.answer[:-1], len(context.answer))
        choices = [] if logits is None else logits.argmax(-1).tolist()
        # strict=False: a model without logits gives no choices.
        correct += sum(a == b for a, b in zip(choices, context.answer, strict=False))
        total += len(context.answer)
        tokens[context.number] += len(context.answer)
        attention = [layer for layer in seen.layers if not layer.is_linear]
        for i, layer in enumerate(attention):
            key, m = str(layer.key), layer.softmax_map("retrieval")
            layers[key] = name_layer(i, m, [x.key for x in attention], [x.heads for x in attention])
            hits = _count_hits(m, context)
            of_layer = counts.setdefault(key, hits.new_zeros(3, len(needles), hits.shape[1]))
            of_layer[:, context.number] += hits
    rows = [row for key in counts for row in _rows(layers[key], counts[key], tokens)]
    read = sum(len(context.ids) + len(context.answer) for context in contexts)
    table = HeadTable(rows, len(needles), read, "labels", type(model).__name__)
    return NeedleTest(table, correct / total, len(contexts))


def _count_hits(m: AttentionMap, context: NeedleContext) -> Tensor:
    """Count for a layer's map (1, H, T, T) of the context and all but the last of the answer's tokens.

    Returns (3, H): the answer tokens on whose own place in the needle the most attention was, the expected
    number for a key drawn from the visible ones, and that for the needle's tokens in random order.
    """
    place = context.needle
    tokens = torch.tensor(context.ids[place.start : place.stop], device="cpu")
    first = len(context.ids) - 1  # the query that predicts the first token of the answer
    rows: AttentionMap = m[:, :, first : first + len(context.answer)]
    best = rows.topk(1).indices[0, :, :, 0].cpu()  # (H, rows)
    same = torch.tensor(context.answer, device="cpu")[:, None] == tokens  # (rows, needle)
    inside = (best >= place.start) & (best < place.stop)  # (H, rows)
    at = (best - place.start).clamp(0, len(place) - 1)
    hits = inside & same.expand(len(best), -1, -1).gather(-1, at.unsqueeze(-1)).squeeze(-1)
    weights = uniform(rows).tile(slice(None), slice(place.start, place.stop))[0].cpu()  # (h, rows, needle)
    chance = (weights * same).sum(-1)
    relabelled = inside * same.double().mean(-1)
    return torch.stack([x.double().sum(-1).expand(len(best)) for x in (hits, chance, relabelled)])


def _rows(layer: LayerHeads, counts: Tensor, tokens: Tensor) -> Iterator[HeadRow]:
    """The rows of a layer from its `counts` (3, needles, H) among the `tokens` (needles,) of the answers."""
    stack, number = split_key(layer.key)
    hits, chance, relabelled = (counts.sum(1) / tokens.sum()).unsqueeze(1)  # (1, H) each
    own, unknown = counts[0], torch.full_like(hits, math.nan)
    total, needles = tokens.sum().expand_as(hits), (tokens > 0).sum().expand_as(hits)
    squares, products = (own**2).sum(0, keepdim=True), (tokens @ own).unsqueeze(0)
    low, high = ratio_intervals(
        hits, total, needles.double(), squares, products, (tokens**2).sum().expand_as(hits)
    )
    low, high = low.clamp(min=0.0), high.clamp(max=1.0)
    estimates = Estimates(hits, chance, relabelled, unknown, low, high, total, unknown)
    scores = torch.cat([hits, chance, relabelled, low, high, unknown]).T.tolist()
    labels = earned_labels(["retrieval"], estimates)
    for head, kv_head, earned, score in zip(layer.heads, layer.kv_heads, labels, scores, strict=True):
        yield HeadRow(number, head, kv_head, earned, None, {"retrieval": Score(*score)}, stack)


def _contexts(
    tokenizer: Any,
    needles: Sequence[Needle | tuple[str, ...]],
    filler: str | Sequence[str],
    lengths: Sequence[int],
    depths: Sequence[float],
    seed: int,
) -> Iterator[NeedleContext]:
    """Every needle at every depth of contexts of every length."""
    from regard.recorder.tokens_of_maps.tokens import encode_ids, start_tokens

    if not needles or not lengths or not depths:
        raise ValueError("needles, lengths, depths: expected at least one of each, got none")
    if any(not 0 <= depth <= 1 for depth in depths):
        raise ValueError(f"depths: expected numbers from 0 to 1, got {list(depths)}")
    sentences = SENTENCE_END.split(filler) if isinstance(filler, str) else list(filler)
    # An empty sentence, as after the last full stop, would never fill a context.
    pieces = [ids for ids in (encode_ids(tokenizer, sentence) for sentence in sentences) if ids]
    if not pieces:
        raise ValueError("filler: expected some text to hide the needles in, got none")
    encoded = []
    for parts in needles:
        if len(parts) not in (2, 3) or not all(encode_ids(tokenizer, part) for part in parts[:2]):
            raise ValueError(
                f"needles: expected (prompt, answer) or (prompt, answer, question), got {parts!r}"
            )
        asked = Needle(*parts)
        texts = (asked.prompt, asked.answer, asked.question or asked.prompt)
        encoded.append(tuple(encode_ids(tokenizer, text) for text in texts))
    start = start_tokens(tokenizer)
    generator = random.Random(seed)
    for length in lengths:
        length = check_whole_number("lengths", length, 1)
        for number, parts in enumerate(needles):
            prompt, answer, question = encoded[number]
            inserted = prompt + answer
            room = length - len(start) - len(inserted) - len(question) - len(answer)
            if room < 1:
                raise ValueError(
                    f"lengths: expected at least {length - room + 1} tokens for the needle {parts[0]!r}, its "
                    f"question and some filler, got {length}"
                )
            for depth in depths:
                before, after = _hide(pieces, room, depth, generator)
                place = len(start) + len(before)
                ids = [*start, *before, *inserted, *after, *question]
                yield NeedleContext(ids, range(place, place + len(inserted)), answer, number)


def _hide(
    pieces: list[list[int]], room: int, depth: float, generator: random.Random
) -> tuple[list[int], list[int]]:
    """Filler of `room` tokens, cut at the end of a sentence that is nearest to `depth`."""
    order: list[list[int]] = []
    while sum(map(len, order)) < room:
        # sample without replacement: every sentence comes once before any comes again.
        order += generator.sample(pieces, len(pieces))
    tokens: list[int] = []
    ends = [0]
    for piece in order:
        tokens += piece
        ends.append(min(len(tokens), room))
    cut = min(ends, key=lambda end: abs(end - depth * room))
    return tokens[:cut], tokens[cut:room]


@torch.no_grad()
def _run(model: nn.Module, ids: list[int], last: int) -> tuple[Capture, Tensor | None]:
    """The capture of a forward pass, and the logits (last, V) of the last tokens, if the model has any."""
    # Imported late: files of the recorder import files of `regard.heads`.
    from regard.gpt.model import GPT
    from regard.recorder.capture_block import capture
    from regard.recorder.model_inputs import model_inputs

    inputs = model_inputs(model, {"input_ids": torch.tensor([ids], device="cpu")})
    with capture(model) as seen:
        if isinstance(model, GPT):
            # Only the last logits: those of a long context over a large vocabulary take gigabytes.
            return seen, model.logits(model.states(inputs["input_ids"])[0, -last:])
        # The same for Transformers, where not every model has the argument.
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            inputs["logits_to_keep"] = last
        output = model(**inputs)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    return seen, None if logits is None else logits[0, -last:]
