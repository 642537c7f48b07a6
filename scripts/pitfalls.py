"""The pages of the mistakes: an index, a page for each one of the catalogue, and the tests that find them.

    python -m scripts.pitfalls            rewrite the index, docs/pitfalls/index.md
    python -m scripts.pitfalls --check    exit with 1 if it is out of date

Everything on a page comes from the catalogue (`src/regard/checker/mistakes`), from `programs.toml` and
`properties.toml` beside it, and from the trainings of `scripts.tiny_training`. The repository holds the
index, which links to the files of the catalogue; the site (`scripts.docs`) makes a page of each of them.
`tests/test_pitfalls.py` fails if the index is out of date.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from regard.checker.catalogue import CATALOGUE, THEMES, Mistake
from regard.checker.examples import (
    PROPERTY_TESTS,
    PropertyTest,
    clearest_kind,
    code_of_test,
    kinds_with_a_test,
    make_snippet,
)
from regard.support.files import atomic_write
from scripts.tiny_training import RESULTS, SEEDS, STEPS, WIDE_HEAD, WIDE_STEPS

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "docs" / "pitfalls" / "index.md"
MISTAKES = ROOT / "src" / "regard" / "checker" / "mistakes"
PROPERTIES = ROOT / "src" / "regard" / "checker" / "properties.toml"
TESTS = "../../src/regard/checker/properties.toml"  # as a file in docs/pitfalls links to it
WIDTH = 120
NOTE = "<!-- generated from the catalogue by scripts/pitfalls.py -->\n"
LEARNERS = (  # what people write in their first attention, in the order of the lessons
    "no-scale",
    "scaled-twice",
    "softmax-over-queries",
    "no-mask",
    "inverted-mask",
    "missing-diagonal",
    "one-token-ahead",
    "zero-times-infinity",
    "mask-after-softmax",
    "masked-with-zero",
    "one-projection",
    "dot-t-on-a-batch",
    "heads-split-by-view",
    "heads-merged-by-view",
    "plain-attribute",
    "dropout-in-eval",
    "top-left-causal",
    "positions-restart",
)
SIGHTS = {
    "The loss is NaN at the first step": (
        "inverted-mask",
        "missing-diagonal",
        "zero-times-infinity",
        "softmax-over-heads",
        "softmax-over-batch",
        "dropout-on-scores",
    ),
    "The loss becomes NaN later": (
        "softmax-overflow",
        "empty-row-nan",
        "nan-in-padding",
        "renormalised-after-softmax",
    ),
    "The training loss is too good, and what the model writes is garbage": (
        "no-mask",
        "one-token-ahead",
        "transposed-mask",
        "mask-after-softmax",
        "softmax-over-queries",
        "masked-with-zero",
        "mask-added-as-zero-one",
        "heads-merged-by-view",
        "heads-split-by-view",
        "weak-mask-value",
    ),
    "The loss falls too slowly, or stops too high": (
        "weights-detached",
        "softmax-twice",
        "one-projection",
        "scaled-twice",
        "scaled-by-width",
        "scale-multiplied",
        "scale-after-softmax",
        "plain-list",
    ),
    "Training is right, and generation is wrong": (
        "top-left-causal",
        "cache-ignored",
        "cache-overwritten",
        "positions-restart",
        "new-token-unseen",
        "empty-slot-read",
    ),
    "Training is right, and loaded weights give noise": (
        "key-value-swapped",
        "roles-shuffled",
        "heads-interleaved",
        "grouped-heads-tiled",
        "rotary-pairing-mixed",
        "alibi-slopes",
    ),
    "The output changes with the batch": (
        "batch-items-mixed",
        "softmax-over-batch",
        "padded-keys-leak",
        "dot-t-on-a-batch",
    ),
    "The output changes from call to call": (
        "dropout-in-eval",
        "input-overwritten",
        "state-between-calls",
        "stale-cache",
        "page-tail-read",
    ),
    "The map is flat": ("softmax-twice", "scaled-by-width", "scaled-twice", "softcap-not-multiplied"),
    "Every row of the map is one-hot at the start": ("no-scale", "scale-multiplied"),
    "Rows of the map do not sum to 1": (
        "softmax-over-queries",
        "mask-after-softmax",
        "softmax-missing",
        "sum-not-divided",
        "scale-after-softmax",
    ),
    "It fails on the GPU, on a longer text, or when a checkpoint is loaded": (
        "plain-attribute",
        "persistent-mask",
        "obscure-length-error",
        "view-of-strided",
    ),
}
_ATOM = (
    r"(?:[\w.~]+(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])+(?:\.\w+(?:\([^()]*\))?)*"  # a call, a slice
    r"|\b[A-Za-z_]\w*(?:\.\w+)+\b"  # a dotted name
    r"|\b\w+=[\w.]+\b"
    r"|\b\w*_\w*\b"
    r"|(?<=\s)\.[A-Za-z]\w*)"
)
_CODE = re.compile(
    r"(?P<marked>`[^`]*`)"
    rf"|(?:\w+(?:, \w+)* = )?(?:\w+ [@*/] )*{_ATOM}(?: (?:@|\*\*|\*|/) (?:{_ATOM}|-?[\w.]*\w))*"
)


def generated_page(path: Path) -> str:
    """Return the page that the site makes of a file of the catalogue, or of the properties.

    Its links are those of a file in docs/pitfalls.
    """
    return tests_page() if path == PROPERTIES else page(CATALOGUE[path.stem])


def page(mistake: Mistake) -> str:
    """Return the page of one mistake."""
    kind = clearest_kind(mistake, kinds_with_a_test(mistake))
    test = PROPERTY_TESTS[mistake.test]
    theme = next(theme for theme, mistakes in THEMES.items() if mistake in mistakes)
    parts = [
        f"{NOTE}\n# {mistake.name}",
        prose(f"Attention {mistake.what}. {mistake.effect}"),
        "## Symptom",
        prose(mistake.symptom),
        *measured(mistake),
        "## The line",
        fenced("diff", "\n".join(f"{mark} {text}".rstrip() for mark, text in make_snippet(mistake, kind))),
        prose(f"Where it comes from: {mistake.origin}."),
        "## Why",
        prose(mistake.why),
        "## The mend",
        mend(mistake.fix),
        "## How to test for it",
        prose(test.property),
        fenced("python", code_of_test(mistake, kind).rstrip()),
        also_found(mistake, test),
        prose(warning_or_check(mistake)),
        prose(f"More of the theme: [{theme}](index.md#{anchor(theme)}). [All mistakes](index.md)."),
    ]
    return "\n\n".join(parts) + "\n"


def measured(mistake: Mistake) -> list[str]:
    """Return what a tiny training with the mistake showed, or nothing if there was none."""
    results = trainings()
    if mistake.name not in results["mistakes"]:
        return []
    kind, losses = results["mistakes"][mistake.name].values()
    where = "[tiny training](index.md#what-the-loss-shows)"
    if losses is None:
        return [prose(f"In a {where} it fails with an error in the first step.")]
    right = results["right"][kind]
    if losses["training"] is None:
        return [prose(f"In a {where} the loss is NaN at the first step.")]
    if verdict(mistake.name) == "nothing":
        parts = [
            prose(f"A {where} does not show it: the loss is {losses['training']:.2f}, as without a mistake.")
        ]
        return parts + wide_head(mistake)
    steps = losses["steps"]
    after = f"comes within 0.1 of the best possible one after {steps} steps" if steps else "never comes close"
    return [
        prose(
            f"In a {where}, where the best possible loss is {results['best']:.2f}, the loss ends at "
            f"{losses['training']:.2f} and {after} (right: {right['training']:.2f}, {right['steps']} steps). "
            f"On prefixes alone, as in generation, it is {losses['alone']:.2f} (right: {right['alone']:.2f})."
        )
    ]


def wide_head(mistake: Mistake) -> list[str]:
    """Return what a training with a wide head showed, which is there for the missing scale only."""
    if mistake.name != "no-scale":
        return []
    right, wrong = (trainings()["wide"][name] for name in ("right", "no-scale"))
    stuck = sum(loss > max(right) + 0.05 for loss in wrong)
    text = (
        f"With a head of width {WIDE_HEAD} it may show: of {len(wrong)} runs without the scale, {stuck} "
        f"stand above {max(right) + 0.05:.2f} after {WIDE_STEPS} steps, the worst at {max(wrong):.2f}; all "
        f"runs with it stand below {max(right) + 0.005:.2f}."
    )
    return [prose(text)]


def verdict(name: str) -> str:
    """Return what the loss of a training shows of a mistake."""
    results = trainings()
    kind, losses = results["mistakes"][name].values()
    if losses is None:
        return "an error"
    if losses["training"] is None:
        return "NaN at the first step"
    if losses["training"] < results["best"] - 0.02:
        return "better than possible"
    if losses["training"] > results["best"] + 0.02:
        return "too high"
    return "slower" if losses["steps"] >= 1.2 * results["right"][kind]["steps"] else "nothing"


def trainings() -> dict[str, Any]:
    """Return the results of `scripts.tiny_training`."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8")))


def mend(fix: str) -> str:
    """Return the fix as code if it is code, and else as a sentence."""
    if is_code(fix):
        return fenced("python", fix)
    first, second = [*fix.split(), ""][:2]
    is_word = len(first) > 1 and first.rstrip(":,").isalpha() and second[:1].isalpha()
    return prose(f"{fix[0].upper() if is_word else fix[0]}{fix[1:]}.")


def is_code(fix: str) -> bool:
    """Whether a fix is Python; `x = f(y), not g(y)` is a sentence."""
    try:
        (statement, *_) = ast.parse(fix).body
    except SyntaxError:
        return False
    value = getattr(statement, "value", None)
    targets = getattr(statement, "targets", [None])
    return not isinstance(value, ast.Tuple) or isinstance(targets[0], ast.Tuple)


def also_found(mistake: Mistake, test: PropertyTest) -> str:
    """Say what else the same test finds."""
    others = [m.name for m in CATALOGUE.values() if m.test == test.name and m is not mistake]
    start = "Put your own class or function in place of `my_attention`'s."
    if not others:
        return prose(start)
    listed = ", ".join(map(link, others[:6]))
    more = f" and [{len(others) - 6} more]({TESTS}#{anchor(test.name)})" if len(others) > 6 else ""
    return prose(f"{start} The same test finds {listed}{more}.")


def warning_or_check(mistake: Mistake) -> str:
    """Say how the checker names it."""
    named = f"`regard check` names this mistake `{mistake.name}`"
    if mistake.warning:
        return f"{named}, as a warning: it does not make the verdict wrong."
    return f"{named}, and `regard explain-mistake {mistake.name} --code` prints a program with it, to run."


def index() -> str:
    """Return the index: the usual ones, the symptoms, the measured losses, and all mistakes by theme."""
    results = trainings()
    names = list(results["mistakes"])
    silent = [name for name in names if verdict(name) == "nothing"]
    parts = [
        f"{NOTE}\n# Pitfalls",
        prose(
            f"The {len(CATALOGUE)} mistakes that [`regard check`](../check.md) knows by name, each on a page "
            "of its own: what you see, the wrong line and the right one, why, and a test of a few lines that "
            f"finds it. [The tests]({TESTS}) are on one page, too. To try yourself: `regard learn hunt` "
            "shows you a program, and you name its mistake."
        ),
        "## The usual ones",
        prose("What people write in their first attention, in the order of the lessons."),
        table(LEARNERS),
        "## What do you see?",
        *(f"**{sight}**\n\n" + prose(", ".join(map(link, found)) + ".") for sight, found in SIGHTS.items()),
        "## What the loss shows",
        prose(
            f"A tiny model was trained {SEEDS} times for {STEPS} steps with each mistake that may show in a "
            f"loss, on a task whose best possible loss is known: {results['best']:.2f}. A text is eight "
            "random letters, twice: the first copy cannot be guessed, the second can be read off the "
            "first. *Loss* is the training loss at the end, *alone* the loss on prefixes, as in "
            "generation, and *steps* how many it took to come within 0.1 of the best. Medians; `python -m "
            "scripts.tiny_training` measures them anew."
        ),
        prose(
            f"**{len(silent)} of {len(names)} mistakes leave the loss as it is.** A falling loss is no "
            "evidence that attention is right; a test is."
        ),
        loss_table(names),
        prose("The others, which the loss does not show: " + ", ".join(map(link, silent)) + "."),
    ]
    for theme, mistakes in THEMES.items():
        parts += [f"## {theme.capitalize()}", table([m.name for m in mistakes])]
    return "\n\n".join(parts) + "\n"


def table(names: tuple[str, ...] | list[str]) -> str:
    """Return a table of mistakes: name and what it is."""
    rows = [f"| {link(name)} | Attention {code_spans(CATALOGUE[name].what)}. |" for name in names]
    return "\n".join(["| mistake | |", "|---|---|", *rows])


def loss_table(names: list[str]) -> str:
    """Return the measured losses of the mistakes that show, the right programs first."""
    results = trainings()
    lines = ["| | the loss is | loss | alone | steps |", "|---|---|---|---|---|"]
    for kind, label in (("head", "one head, right"), ("layer", "two heads, right")):
        lines.append(f"| {label} | | {numbers(results['right'][kind])} |")
    order = ("NaN at the first step", "an error", "better than possible", "too high", "slower")
    shown = sorted((name for name in names if verdict(name) in order), key=lambda n: order.index(verdict(n)))
    for name in shown:
        losses = results["mistakes"][name]["losses"]
        lines.append(f"| {link(name)} | {verdict(name)} | {numbers(losses)} |")
    return "\n".join(lines)


def numbers(losses: dict[str, float | None] | None) -> str:
    """Return three cells of a table."""
    if losses is None or losses["training"] is None:
        return " | | "
    steps = "never" if losses["steps"] is None else f"{losses['steps']:.0f}"
    return f"{losses['training']:.2f} | {losses['alone']:.2f} | {steps}"


def tests_page() -> str:
    """Return the page of all tests, each with the mistakes that it finds."""
    parts = [
        f"{NOTE}\n# Tests of properties",
        prose(
            f"{len(PROPERTY_TESTS)} tests that right attention passes. Together they find every one of the "
            f"{len(CATALOGUE)} [pitfalls](index.md): each fails on the programs with the mistakes named "
            "under it, and passes on the right ones. Here each has the version that most of them need; the "
            "page of a mistake has the one for its kind of code. Put your own class or function in place of "
            "`my_attention`'s, and paste those that fit."
        ),
    ]
    ordered = sorted(PROPERTY_TESTS.values(), key=lambda test: -len(mistakes_of(test)))
    for test in ordered:
        kinds = [kind for mistake in mistakes_of(test) for kind in kinds_with_a_test(mistake)]
        code = test.codes[max(test.codes, key=kinds.count)]  # the version that most of them need
        found = ", ".join(link(mistake.name) for mistake in mistakes_of(test))
        parts += [f"## {test.name}", prose(test.property), fenced("python", code.rstrip())]
        parts += [prose(f"Finds {found}.")]
    return "\n\n".join(parts) + "\n"


def mistakes_of(test: PropertyTest) -> list[Mistake]:
    """Return the mistakes that name a test."""
    return [mistake for mistake in CATALOGUE.values() if mistake.test == test.name]


def link(name: str) -> str:
    """Return a link to the file of a mistake, which the site has a page for."""
    return f"[{name}](../../src/regard/checker/mistakes/{name}.toml)"


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def code_spans(text: str) -> str:
    """Return a text with the code in it marked as code."""
    return _CODE.sub(lambda found: found[0] if found["marked"] else f"`{found[0]}`", text)


def prose(text: str) -> str:
    """Return a paragraph with its code marked, unless it has links, which are marked already."""
    return wrapped(text if "](" in text else code_spans(text))


def wrapped(text: str) -> str:
    """Return a paragraph in lines of at most `WIDTH` characters."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def fenced(language: str, code: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{code}\n```"


def main() -> None:
    """Rewrite the index, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the index is out of date")
    if parser.parse_args().check:
        sys.exit(int(index() != INDEX.read_text(encoding="utf-8")))
    with atomic_write(INDEX) as temporary:
        temporary.write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
