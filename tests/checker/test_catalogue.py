"""The catalogue reads well and every entry has an example that runs."""

import ast
import itertools
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from regard import checker
from regard.checker.catalogue import CATALOGUE, get_mistake, read_themes
from regard.checker.examples import LENGTH, example_program, make_snippet, mended_program, plant_mistake
from regard.checker.oracle.cache_variant import CacheVariant
from regard.checker.oracle.variant import AttentionVariant
from regard.checker.session import DOUBTS


def test_an_entry_says_everything():
    for entry in CATALOGUE.values():
        assert all((entry.what, entry.fix, entry.origin, entry.plants)), entry.name
        assert all(text.endswith(".") for text in (entry.effect, entry.symptom, entry.why)), entry.name
        compile(example_program(entry), entry.name, "exec")
        for kind in entry.plants:
            compile(plant_mistake(entry, kind), entry.name, "exec")


def test_a_change_has_a_field_of_its_variant_and_a_word_that_the_field_knows():
    for variant, forms in ((AttentionVariant, "changes"), (CacheVariant, "cache_changes")):
        types = get_type_hints(variant)
        for entry in CATALOGUE.values():
            for name, value in itertools.chain(*(change.items() for change in getattr(entry, forms))):
                known = get_args(types[name])
                assert value in known if isinstance(value, str) else True, f"{entry.name}: {name} = {value}"


def test_a_snippet_is_short_and_cut_from_the_programs_that_are_tested():
    for entry in CATALOGUE.values():
        snippet = make_snippet(entry)
        assert 0 < len(snippet) <= LENGTH + 2, entry.name
        marks = {line.mark for line in snippet}
        assert marks & {"+", "-"}, entry.name
        ast.parse("\n".join(line.text for line in snippet if line.mark != "+" or "-" not in marks))
        assert any(
            all(_holds(mended_program(entry, kind), line.text) for line in snippet if line.mark != "-")
            and all(_holds(plant_mistake(entry, kind), line.text) for line in snippet if line.mark != "+")
            for kind in entry.plants
        ), entry.name


def _holds(program, line):
    """Whether a program has this line, however indented."""
    return line.strip() in {text.strip() for text in program.splitlines()}


def test_what_a_probe_finds_has_words_in_the_catalogue():
    probes = Path(checker.__file__).parent.rglob("*.py")
    calls = [
        re.findall(r'\.find\("([\w-]+)", "([^"]+)"', path.read_text(encoding="utf-8")) for path in probes
    ]
    for name, check in itertools.chain(*calls):
        assert check in CATALOGUE[name].found, name


def test_what_leaves_the_verdict_open_has_words():
    probes = Path(checker.__file__).parent.rglob("*.py")
    doubts = [re.findall(r'\.leave_open\(\s*"([\w-]+)"', path.read_text(encoding="utf-8")) for path in probes]
    assert set(itertools.chain(*doubts)) == set(DOUBTS)


def test_an_unknown_name_is_answered_with_its_neighbours():
    with pytest.raises(ValueError, match=r"'no-scal'.*no-scale"):
        get_mistake("no-scal")
    with pytest.raises(ValueError, match="--list"):
        get_mistake("zzzzzz")


COMPLETE = """
what = "that looks away"
effect = "Nothing is seen."
symptom = "None."
why = "Because."
origin = "here"
fix = "look"
test = "rows-sum-to-one"
changes = [{ axis = [0, 1], causal = "later", window = "none" }, { roles = [[1, 0, 2]] }]

[[plants]]
in = ["head", "layer"]
replace = "softmax"
with = "sigmoid"
"""


def folder_with(path, text, listed="looking-away"):
    """A catalogue of one mistake."""
    (path / "mistakes").mkdir()
    (path / "mistakes" / "looking-away.toml").write_text(text, encoding="utf-8")
    (path / "themes.toml").write_text(f'gaze = ["{listed}"]\n', encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('why = "Because."\n', "", "missing .* 'why'"),
        ("symptom", "symptoms", "unexpected keyword argument 'symptoms'"),
        ('fix = "look"', "fix = look", "Invalid value"),
        ("with =", "by =", "with"),
    ],
)
def test_a_wrong_field_is_answered_with_the_name_of_the_file(tmp_path, old, new, message):
    assert old in COMPLETE
    with pytest.raises(ValueError, match=rf"^looking-away\.toml: .*{message}"):
        read_themes(folder_with(tmp_path, COMPLETE.replace(old, new)))


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("looking-on", r"^looking-away\.toml: expected .* themes\.toml"),
        ('looking-away", "looking-on', r"^themes\.toml: there is no file mistakes/looking-on\.toml"),
    ],
)
def test_files_and_themes_agree(tmp_path, listed, message):
    with pytest.raises(ValueError, match=message):
        read_themes(folder_with(tmp_path, COMPLETE, listed))
