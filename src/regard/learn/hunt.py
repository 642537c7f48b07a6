"""The bug hunt: a program with one mistake of the catalogue in it, and the judge of what you call it.

`make_puzzle` makes a puzzle, `judge_answer` judges an answer to it, and `solve` gives it away. All texts are
plain; the command `regard learn hunt` prints them.
"""

from __future__ import annotations

import difflib
import random
import re
from dataclasses import dataclass

from regard.checker.catalogue import CATALOGUE, THEMES, Mistake
from regard.checker.examples import NAMES, mended_program, plant_mistake

CANDIDATES = 4
# The names of the lessons for those of the templates.
_LESSON_NAMES = {
    r"\bself\.(query|q_proj)\b": "self.W_q",
    r"\bself\.(key|k_proj)\b": "self.W_k",
    r"\bself\.(value|v_proj)\b": "self.W_v",
    r"\bself\.out_proj\b": "self.W_o",
    r"\bhead_size\b": "head_dim",
    r"\bmax_len\b": "max_seq_len",
}
# What a person would not have left standing, or would have written on two lines.
_TIDY = {
    r"^( *)if [^\n]*:\n\1    (?:pass|([\w, ]+) = \2)\n": "",  # a block that does nothing
    r"^ +(?:pass|([\w, ]+) = \1)?\n": "",  # a line that does nothing
    r'^( +)self\.register_buffer\("mask", (.+?\.tri[lu]\(\d?\))(.*)\)$': (
        r'\1mask = \2\n\1self.register_buffer("mask", mask\3)'
    ),
}
# Mistakes with the same numbers: no output tells them apart.
_SAME_NUMBERS = ({"scaled-twice", "scaled-by-width"},)


@dataclass(frozen=True)
class Puzzle:
    """A program with one mistake in it."""

    mistake: str  # the answer: the name of the mistake
    theme: str
    code: str  # the whole program
    subject: str  # the class or function in it that attends
    kind: str  # the template that it was made from
    candidates: tuple[str, ...]  # four names, the answer among them, in no order


@dataclass(frozen=True)
class HuntAnswer:
    """What is said about an answer."""

    right: bool
    name: str | None  # the mistake that was understood; None if there is none of that name
    text: str
    hint: str = ""  # from the second try on


def make_puzzle(name: str) -> Puzzle:
    """Return the puzzle whose answer is the mistake of this name: always the same one.

    An answer that is given in a later process is judged by the puzzle that was shown.
    """
    mistake = CATALOGUE[name]
    # The shortest program, so that a learner reads as little as can be.
    kind = min(mistake.plants, key=lambda kind: len(plant_mistake(mistake, kind)))
    theme = next(theme for theme, mistakes in THEMES.items() if mistake in mistakes)
    code = as_in_a_lesson(plant_mistake(mistake, kind))
    return Puzzle(name, theme, code, NAMES[kind], kind, _candidates(mistake, theme, kind))


def judge_answer(puzzle: Puzzle, answer: str, attempt: int = 1) -> HuntAnswer:
    """Judge an answer: the name of a mistake, or the number of a candidate.

    Case, spaces, underscores and small misspellings do not matter. A wrong answer is told what that mistake
    would look like in this program; from the second attempt on there is a hint, too.
    """
    name = understand_name(answer, puzzle.candidates)
    hint = make_hint(puzzle, attempt) if attempt > 1 else ""
    if name is None:
        near = difflib.get_close_matches(_spelled(answer), CATALOGUE, n=2, cutoff=0.5)
        words = set(_spelled(answer).split("-"))
        # The words in another order, as "scale-no", are not close by their letters.
        near = [name for name in CATALOGUE if words == set(name.split("-"))] or near
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        return HuntAnswer(False, None, f"There is no mistake called {answer.strip()!r}.{meant}", hint)
    mistake = CATALOGUE[puzzle.mistake]
    if name == puzzle.mistake:
        return HuntAnswer(True, name, f"Right: attention {mistake.what}. {mistake.effect}")
    if any({name, puzzle.mistake} <= same for same in _SAME_NUMBERS):
        text = (
            f"Right: the numbers of {name} are the same, and only the source tells them apart. Here it is "
            f"{puzzle.mistake}: attention {mistake.what}."
        )
        return HuntAnswer(True, name, text)
    return HuntAnswer(False, name, tell_apart(puzzle, CATALOGUE[name]), hint)


def understand_name(answer: str, candidates: tuple[str, ...] = ()) -> str | None:
    """Return the mistake that an answer names, or None."""
    spelled = _spelled(answer)
    if spelled.isdigit() and 1 <= int(spelled) <= len(candidates):
        return candidates[int(spelled) - 1]
    # 0.85 forgives a letter or two; a looser match could take one mistake for another.
    near = difflib.get_close_matches(spelled, CATALOGUE, n=1, cutoff=0.85)
    return near[0] if near else None


def tell_apart(puzzle: Puzzle, named: Mistake) -> str:
    """Say what the named mistake would look like in this program, and what differs."""
    start = f"Not {named.name}: that is attention {named.what}."
    if puzzle.kind not in named.plants:
        return f"{start} This program has no place for it: it is made in other code."
    program, ours = puzzle.code, _changed(puzzle.mistake, puzzle.kind)
    theirs = _changed(named.name, puzzle.kind)
    right = [line for line in theirs.right if line.strip()]
    if ours.lines & theirs.lines:
        wrong = theirs.wrong[0].strip() if theirs.wrong else ""
        would = f"It would read `{wrong}`; read that place again." if wrong else "Its line would be gone."
        return f"{start} You are near: it changes the same place. {would}"
    if right and all(line in program for line in right):
        return f"{start} Its place is right here: `{right[0].strip()}`. Look elsewhere."
    return f"{start} Its place in this program is right. Look elsewhere."


def make_hint(puzzle: Puzzle, attempt: int) -> str:
    """Return a hint: first what you would see, then the line."""
    if attempt <= 2:
        return f"If you ran it: {CATALOGUE[puzzle.mistake].symptom}"
    changed = _changed(puzzle.mistake, puzzle.kind)
    lines = puzzle.code.splitlines()
    at = next((i + 1 for i, line in enumerate(lines) if changed.wrong and line == changed.wrong[0]), None)
    if at is not None:
        return f"Look around line {at}: `{lines[at - 1].strip()}`"
    return f"A line is missing. A right program has `{changed.right[0].strip()}`"


def solve(puzzle: Puzzle) -> str:
    """Return the solution: the name, what it is, why it matters and how to fix it."""
    mistake = CATALOGUE[puzzle.mistake]
    return (
        f"It is {mistake.name}: attention {mistake.what}. {mistake.why}\nThe fix: {mistake.fix}\n"
        f"regard explain-mistake {mistake.name} shows the line; with --test, a test that finds it."
    )


def as_in_a_lesson(program: str) -> str:
    """Return a program with the names that the lessons use, tidied."""
    for pattern, name in (_LESSON_NAMES | _TIDY).items():
        program = re.sub(pattern, name, program, flags=re.MULTILINE)
    return program


@dataclass(frozen=True)
class _Changed:
    """What a mistake changes in a template."""

    lines: frozenset[int]  # of the right program
    right: tuple[str, ...]
    wrong: tuple[str, ...]


def _changed(name: str, kind: str) -> _Changed:
    """Return the lines of a right program that a mistake changes, and what they become."""
    mistake = CATALOGUE[name]
    before = as_in_a_lesson(mended_program(mistake, kind)).splitlines()
    after = as_in_a_lesson(plant_mistake(mistake, kind)).splitlines()
    lines: set[int] = set()
    right: list[str] = []
    wrong: list[str] = []
    # autojunk counts frequent lines of long programs as noise.
    for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            # At least one line: an insertion has no line of the right program, but a place.
            lines |= set(range(a, max(b, a + 1)))
            right += before[a:b]
            wrong += after[c:d]
    return _Changed(frozenset(lines), tuple(right), tuple(line for line in wrong if line.strip()))


def _spelled(answer: str) -> str:
    return re.sub(r"[\s_–-]+", "-", answer.strip().strip("`'\".").lower())


def _candidates(mistake: Mistake, theme: str, kind: str) -> tuple[str, ...]:
    """Return names of the same theme, first of mistakes that this program could have, in no order."""
    chance = random.Random(0)
    same = {name for names in _SAME_NUMBERS if mistake.name in names for name in names} | {mistake.name}
    others = [m for m in CATALOGUE.values() if m.name not in same]
    chance.shuffle(others)
    # Shuffled first and then sorted, which is stable: within a group the order is random.
    others.sort(key=lambda m: (m not in THEMES[theme], kind not in m.plants))
    names = [mistake.name, *(m.name for m in others[: CANDIDATES - 1])]
    chance.shuffle(names)
    return tuple(names)
