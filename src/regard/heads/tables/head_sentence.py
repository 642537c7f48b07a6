"""What a head does, in one sentence: of its clearest score, with the baseline of uniform attention beside it.

This is the one definition of it: the command line, the page, notebooks and figures use it. It knows rows of
a `HeadTable`; it knows neither maps nor how they are scored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from regard.heads.labels import MARGIN, MIN_SCORES, REPEATS, WIDENING, sort_labels
from regard.heads.tables.score_words import title

if TYPE_CHECKING:
    from regard.heads.tables.table import HeadRow, Score

TARGETS = {
    "induction": "on what came after earlier copies of the token",
    "duplicate": "on earlier copies of the token",
    "previous_token": "on the token before",
    "itself": "on the token itself",
    "sink": "on one key, whatever the token",
    "local": "on the last few tokens",
    "neighbours": "on the patches around the patch itself",
    "cls": "on CLS",
    "registers": "on registers",
}
"""Where the attention of a score goes, as a sentence names it."""
MOST_LETTERS = 24  # of a token that a sentence quotes
WIDE, NARROW = 0.8, 0.4  # normalised entropy from which, and up to which, it is worth a sentence


def describe_head(row: HeadRow, key_text: str | None = None) -> str:
    """Return one sentence that says what a head does, from its row of a table.

    `key_text` is the text of the token that is the head's sink key, if it is known.

    >>> from regard.heads import HeadRow, Score
    >>> score = Score(0.42, 0.02, 0.05, 0.38, 0.47, 0.5)
    >>> describe_head(HeadRow(5, 3, 3, ("previous_token",), None, {"previous_token": score}))
    'It puts 42% of its attention on the token before; uniform attention would put 2% there.'
    """
    if row.label is not None:
        score, on_repeats = best_score(row, row.label)
        sentence = _label_sentence(row, row.label, score, key_text)
        return f"On random tokens, repeated: {_uncapitalised(sentence)}" if on_repeats else sentence
    if not row.scores:
        return "Nothing was measured of this head."
    return _unlabelled_sentence(row, key_text)


def head_title(row: HeadRow) -> str:
    """Return the first label of a head in words, such as "previous token"; "no clear pattern" without one."""
    return "no clear pattern" if row.label is None else label_title(row, row.label)


def label_title(row: HeadRow, name: str) -> str:
    """A label of a head in words, such as "induction", "looks 24 back" or 'attends to "the"'."""
    if name == "fixed_offset" and row.offset is not None:
        return f"looks {row.offset} back"
    if name == "one_token" and row.token is not None:
        return f"attends to {_token_words(row)}"
    return title(name)


def _token_words(row: HeadRow) -> str:
    """The token that a head attends to: its text with spaces shown, or its id."""
    # A space at the beginning is part of a token, and is not seen in quotes.
    text = row.token_text.replace(" ", "·")
    return f'"{_shortened(text)}"' if text else f"token id {row.token}"


def best_score(row: HeadRow, name: str) -> tuple[Score, bool]:
    """The score behind a label, on text or on random repeats, whichever is higher, and whether on repeats."""
    scores = row.scores
    on_repeats = scores.get(name + REPEATS)
    if on_repeats is None:
        return scores[name], False
    # Either may be missing: a text without copies has no induction score, and repeats need not be read.
    if name not in scores or on_repeats.value > scores[name].value:
        return on_repeats, True
    return scores[name], False


def label_words(row: HeadRow, name: str) -> str:
    """A label of a head in words; a sink with its key."""
    return label_title(row, name) + (f" on {row.sink_key}" if name == "sink" else "")


def percentage(share: float) -> str:
    """Return a share as a whole percentage that never claims nothing or everything by rounding.

    >>> percentage(0.424), percentage(0.001), percentage(0.999), percentage(0.0)
    ('42%', 'less than 1%', 'more than 99%', '0%')
    """
    if 0 < share < 0.005:
        return "less than 1%"
    if 0.995 <= share < 1:
        return "more than 99%"
    return f"{share:.0%}"


def _label_sentence(row: HeadRow, name: str, score: Score, key_text: str | None, interval: str = "") -> str:
    """Return what a score says, with the words of an `interval` after it."""
    share = percentage(score.value) + interval
    if name == "retrieval":
        copied = "of the steps that copy a needle it attends most to the token being copied"
        return f"In {share} {copied}{_beside(score, 'would in')}."
    if name == "fixed_offset" and row.offset is not None:
        target = f"on the token {row.offset} back, whatever it is"
    elif name == "one_token" and row.token is not None:
        target = f"on {_token_words(row)}, wherever it stands"
    elif name in TARGETS:
        target = TARGETS[name]
    else:
        return f"Its score of {title(name)} is {score.value:.2f}{_beside(score, 'would score')}."
    if name == "sink" and row.sink_key is not None:
        token = _quoted(key_text)
        target = f"on token {row.sink_key}{token}, whatever the query"
    return f"It puts {share} of its attention {target}{_beside(score, 'would put', ' there')}."


def _quoted(key_text: str | None) -> str:
    """Return the beginning of a token's text in brackets, to be written after its number; "" without one."""
    text = _shortened(" ".join((key_text or "").split()))
    return f" (“{text}”)" if text else ""


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def _beside(score: Score, verb: str, end: str = "") -> str:
    """Return what uniform attention would do, to be written after a score; "" if that is not known."""
    return "" if math.isnan(score.null) else f"; uniform attention {verb} {percentage(score.null)}{end}"


def _unlabelled_sentence(row: HeadRow, key_text: str | None) -> str:
    """Return the most that can be said of a head without a label, and why it has none."""
    entropy = row.scores.get("normalised_entropy")
    if entropy is not None and entropy.value >= WIDE:
        return _entropy_sentence(
            "it spreads its attention almost evenly over the tokens that it sees", entropy
        )
    names = sort_labels([name for name in TARGETS if name in row.scores], row.scores)
    if names and (score := row.scores[names[0]]).value > score.null:
        beginning, interval = "Not clear enough for a label", ""
        if score.value < score.null + MARGIN:
            beginning = "Nothing stands out"
        elif score.value >= MIN_SCORES[names[0]] and not _is_certain(score):
            beginning, interval = "Too few tokens to be sure", _interval(score)
        return f"{beginning}: {_uncapitalised(_label_sentence(row, names[0], score, key_text, interval))}"
    if entropy is not None:
        where = "few tokens at a time" if entropy.value <= NARROW else "some tokens more than on others"
        return _entropy_sentence(f"its attention is on {where}", entropy)
    return "Nothing stands out: no score is above that of uniform attention."


def _is_certain(score: Score) -> bool:
    """Whether the interval of a score, widened as for labels, is above uniform attention by the margin."""
    # A comparison with NaN, of a score without an interval, is False.
    return score.value - WIDENING * (score.value - score.low) >= score.null + MARGIN


def _interval(score: Score) -> str:
    """Return the 95% interval of a share in brackets, to be written after it; "" if it is not known."""
    return "" if math.isnan(score.low) else f" (95% interval {100 * score.low:.0f}–{score.high:.0%})"


def _entropy_sentence(beginning: str, entropy: Score) -> str:
    share = percentage(entropy.value)
    return f"Nothing stands out: {beginning}; its entropy is {share} of that of uniform attention."


def _uncapitalised(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
