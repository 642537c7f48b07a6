"""Labels of heads: a head has a label only if the score is clearly above all of its baselines.

A score earns its label if all of these hold:
- it is at least the minimum: 0.2, for a sink (Gu 2024), a fixed offset and one token 0.3, for local 0.5, for
  retrieval 0.1 (Wu 2024);
- the lower end of its interval, taken twice as wide as the 95% interval that is shown, since many heads are
  tested, is 0.1 or more above its baselines: uniform attention and, for scores that depend on which tokens
  are equal, the same attention with the tokens shuffled;
- it is defined for at least six queries; if for fewer than sixteen, it has to be at least 0.8;
- a sink is the same position in all texts, a fixed offset the same distance, one token the same token id: it
  receives the minimum, and two thirds of what earns the score, over all texts together.

Explanations of the same attention are told apart. Induction and duplicate have a third baseline: the same
score if the head attended to its fixed offset whatever is there, as far as it does where no copy is. A fixed
offset is measured only where no copy is. A sink is no sink if the token there takes the attention with it, to
other texts or to other places of the same text shuffled: then the head attends to one token.

The first label of a head is the one furthest above its baseline. Sink and local count half there: many heads
have them beside their main function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.heads.measures.running_sums import Estimates, RunningSums

MIN_SCORES = {
    "induction": 0.2,
    "duplicate": 0.2,
    "retrieval": 0.1,
    "previous_token": 0.2,
    "itself": 0.2,
    "fixed_offset": 0.3,
    "sink": 0.3,
    "one_token": 0.3,
    "local": 0.5,
    "neighbours": 0.5,
    "cls": 0.3,
    "registers": 0.3,
}
SECONDARY = ("sink", "one_token", "local", "cls", "registers")
REPEATS = "_on_repeats"  # ends the names of scores on random repeated tokens
MARGIN = 0.1  # above the baselines
WIDENING = 2  # times the 95% interval
MIN_QUERIES = 6
FEW_QUERIES, MIN_SCORE_OF_FEW = 16, 0.8
IN_COMMON = 2 / 3  # of what earns a score, which is each text's own position, offset or token
MAX_NUMBERS = 1 << 25  # of tallies that are joined: 256 MiB


class Targets(NamedTuple):
    """What a head attends to in all texts: the position, token id and offset that received the most."""

    sink_key: int | None = None
    token: int | None = None
    offset: int | None = None
    shares: Mapping[str, float] = {}
    """Their mean weights, by label."""
    scores: Mapping[str, float] = {}
    """The mean weights of what each text has in their place, which earn these labels."""
    follows_token: bool = False
    """Whether the attention goes where the token id is, rather than to the position."""

    def agrees(self, label: str) -> bool:
        """Whether the same position, token id or offset earned the label in all texts."""
        if label in ("sink", "one_token") and self.follows_token != (label == "one_token"):
            return False
        # Other labels have no target that could differ from text to text.
        if label not in self.shares:
            return True
        return self.shares[label] >= max(MIN_SCORES[label], IN_COMMON * self.scores[label])


def find_targets(layers: Sequence[RunningSums], shuffled: Sequence[RunningSums] | None) -> list[Targets]:
    """What every head of some layers attends to, one layer after another, from its sums over texts.

    `shuffled` are the sums over the same texts shuffled, if any.
    """
    targets: list[Targets] = []
    for group in _groups([layer.tallies.keys for layer in layers]):
        own = both = RunningSums.join(layers[group])
        if shuffled is not None:
            # The same tokens stand elsewhere in a shuffled text: what takes the attention along?
            both = own + RunningSums.join(shuffled[group])
        (keys, tokens), (positions, tokens_of_both) = (
            (x.tallies.best_keys(x.queries("entropy")), x.tallies.best_tokens(x.queries("one_token")))
            for x in (own, both)
        )
        offsets = own.tallies.best_offsets(own.queries("entropy"))
        scores = [own.means(name) for name in ("sink", "one_token", "fixed_offset")]
        of_heads = zip(keys, tokens, offsets, positions, tokens_of_both, *scores, strict=True)
        for key, token, offset, at_position, at_token, sink, one_token, fixed_offset in of_heads:
            shares = {"sink": key.share, "one_token": token.share, "fixed_offset": offset.share}
            own_scores = {"sink": sink, "one_token": one_token, "fixed_offset": fixed_offset}
            follows_token = at_token.share > at_position.share + MARGIN
            targets.append(
                Targets(key.target, token.target, offset.target, shares, own_scores, follows_token)
            )
    return targets


def _groups(keys: Sequence[Tensor]) -> Iterator[slice]:
    """Neighbouring layers whose tallies (2, H, S) of keys can be joined, and copied without much memory."""
    start, numbers = 0, 0
    for stop, x in enumerate(keys):
        first = keys[start]
        fits = numbers + x.numel() <= MAX_NUMBERS and (x.shape, x.device) == (first.shape, first.device)
        if stop > start and not fits:
            yield slice(start, stop)
            start, numbers = stop, 0
        numbers += x.numel()
    if keys:
        yield slice(start, len(keys))


def earned_labels(
    names: Sequence[str], estimates: Estimates, targets: Sequence[Targets] | None = None
) -> list[tuple[str, ...]]:
    """The labels that every head earns by its scores `names`, the first one first.

    Scores on repeated tokens may be among them. `targets` are what every head attends to in all texts, for
    the labels that need the same one.
    """
    labels = [name.removesuffix(REPEATS) for name in names]
    baseline = _baseline(estimates)
    above, clear = estimates.value - baseline, _is_clear(labels, estimates, baseline)
    excess: list[dict[str, float]] = [{} for _ in range(clear.shape[1])]
    for head, score in clear.T.nonzero().tolist():
        label = labels[score]
        if targets is None or targets[head].agrees(label):
            # A label may be earned on the text and on random repeats: the clearer one counts.
            found = _distinction(label, float(above[score, head]))
            excess[head][label] = max(found, excess[head].get(label, found))
    return [tuple(sorted(earned, key=lambda label: -earned[label])) for earned in excess]


def sort_labels(labels: Iterable[str], scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Labels of a head by how far their `Score`s are above uniform attention, the furthest first."""

    def distinction(label: str) -> float:
        found = [scores[name] for name in (label, label + REPEATS) if name in scores]
        return max((_distinction(label, score.value - score.null) for score in found), default=-math.inf)

    return tuple(sorted(labels, key=distinction, reverse=True))


def _distinction(label: str, above: float) -> float:
    """How distinct a label makes a head whose score is so far above its baseline."""
    return above * (0.5 if label in SECONDARY else 1.0)


def _is_clear(labels: Sequence[str], scores: Estimates, baseline: Tensor) -> Tensor:
    """Whether scores (score, head) meet the three conditions of their labels; NaN meets none.

    A score without an interval comes from one observation, which no label can rest on.
    """
    least = [MIN_SCORES.get(label, math.inf) for label in labels]  # inf: a score that earns no label
    minimum = torch.tensor(least, dtype=torch.float64, device="cpu").unsqueeze(-1)
    minimum = torch.where(scores.queries < FEW_QUERIES, minimum.clamp(min=MIN_SCORE_OF_FEW), minimum)
    low = scores.value - WIDENING * (scores.value - scores.low)
    is_above = (scores.value >= minimum) & (low >= baseline + MARGIN)
    return is_above & (scores.queries >= MIN_QUERIES)


def _baseline(scores: Estimates) -> Tensor:
    """The highest of the baselines that are known; −inf where none is."""
    baselines = torch.stack([scores.null, scores.relabelled, scores.positional])
    return baselines.masked_fill(baselines.isnan(), -torch.inf).amax(0)
