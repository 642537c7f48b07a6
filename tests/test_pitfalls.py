"""The pages of the mistakes: the index is up to date, all are complete, and true about the loss."""

import re

import pytest

from regard.checker.catalogue import CATALOGUE, THEMES
from scripts import pitfalls, tiny_training
from tests.sampling import share

MISTAKES = [pitfalls.MISTAKES / f"{name}.toml" for name in CATALOGUE]


@pytest.fixture(scope="module")
def pages():
    """Every page, by the file or folder of the repository that links lead to."""
    made = {path: pitfalls.generated_page(path) for path in (*MISTAKES, pitfalls.PROPERTIES)}
    return made | {pitfalls.INDEX: pitfalls.index()}


def test_the_index_is_up_to_date(pages):
    """`make pitfalls` writes it."""
    assert pitfalls.INDEX.read_text(encoding="utf-8") == pages[pitfalls.INDEX]


def test_a_page_says_everything(pages):
    for path in MISTAKES:
        headings = re.findall(r"^## (.*)$", pages[path], flags=re.MULTILINE)
        assert headings == ["Symptom", "The line", "Why", "The mend", "How to test for it"], path


def test_lines_of_prose_are_short_and_links_lead_somewhere(pages):
    """Links to the page of a mistake lead to its file; `test_site` follows them on the site."""
    for text in pages.values():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        long = [line for line in prose.splitlines() if len(line) > pitfalls.WIDTH]
        assert all(line.startswith("|") or "](" in line for line in long), long
        for target, heading in re.findall(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)", prose):
            path = (pitfalls.INDEX.parent / target).resolve()
            assert path.exists(), target
            headings = re.findall(r"^#+ (.*)$", pages.get(path, ""), flags=re.MULTILINE)
            assert not heading or heading in {pitfalls.anchor(found) for found in headings}, heading


def test_the_index_has_every_mistake_under_its_theme(pages):
    for theme, mistakes in THEMES.items():
        section = pages[pitfalls.INDEX].split(f"\n## {theme.capitalize()}\n")[1].split("\n## ")[0]
        assert re.findall(r"^\| \[([\w-]+)\]", section, flags=re.MULTILINE) == [m.name for m in mistakes]


def test_every_mistake_that_may_show_in_a_loss_was_trained():
    expected = {name: tiny_training.trained_kind(mistake) for name, mistake in CATALOGUE.items()}
    trained = {name: result["kind"] for name, result in pitfalls.trainings()["mistakes"].items()}
    assert trained == {name: kind for name, kind in expected.items() if kind}


def test_what_the_loss_shows_agrees_with_what_the_page_lists():
    """A mistake that is listed under a symptom of the loss has it in the trainings, and the reverse."""
    leaks = "The training loss is too good, and what the model writes is garbage"
    for name in pitfalls.trainings()["mistakes"]:
        verdict = pitfalls.verdict(name)
        sights = [sight for sight, names in pitfalls.SIGHTS.items() if name in names]
        assert (verdict == "NaN at the first step") == ("The loss is NaN at the first step" in sights), name
        assert (verdict == "better than possible") == (leaks in sights), name
        if verdict in ("too high", "slower"):
            assert "The loss falls too slowly, or stops too high" in sights, name


def test_the_page_of_myths_quotes_what_a_wide_head_without_the_scale_did():
    wide = pitfalls.trainings()["wide"]
    stuck = [loss for loss in wide["no-scale"] if loss > max(wide["right"]) + 0.05]
    assert (len(stuck), len(wide["no-scale"])) == (3, 8)
    assert stuck == pytest.approx([1.11] * 3, abs=0.01)
    text = (pitfalls.ROOT / "docs" / "myths.md").read_text(encoding="utf-8")
    assert "three of eight runs stay at a loss of 1.11 instead of 0.97" in " ".join(text.split())


@pytest.mark.at_length("test_what_the_loss_shows_agrees_with_what_the_page_lists")
@pytest.mark.parametrize(
    "name",
    [None, *share(["no-mask", "missing-diagonal", "weights-detached", "mask-after-softmax"], 4)],
)
def test_a_short_training_shows_the_same(name):
    steps = 450 if name == "mask-after-softmax" else 250  # a leak that takes longer to find
    losses = tiny_training.train(CATALOGUE[name] if name else None, "head", steps=steps)
    best = tiny_training.BEST_LOSS
    if name == "missing-diagonal":
        assert losses.training is None
        return
    if name is None:
        assert losses.training == pytest.approx(best, abs=0.03)
        assert losses.alone == pytest.approx(best, abs=0.03)
    elif name == "weights-detached":
        assert losses.training > best + 0.5
    else:  # the future leaks, and is missed in generation
        assert losses.training < best - 0.1
        assert losses.alone > best + 1
