"""What the documents say is run: sessions in the Markdown files, docstrings, and the lists of names."""

import doctest
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
from functools import cached_property
from pathlib import Path

import pytest

import regard
from benchmarks import table
from regard.checker import Report, sandbox
from regard.checker.worker import check_request
from scripts import cut_heads, docs, ideas, reference, sessions
from tests import built_site, forks
from tests.sampling import share

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONS = doctest.ELLIPSIS


def has_examples(path):
    return ">>> " in path.read_text(encoding="utf-8")


REFERENCE = sorted(reference.REFERENCE.glob("*.md"))
FIRST = [ROOT / "README.md", *filter(has_examples, REFERENCE)]
OTHERS = [path for path in DOCUMENTS if has_examples(path) and path not in FIRST]


@pytest.mark.parametrize(
    "path", [FIRST[0], *share(FIRST[1:], 4), *share(OTHERS, 9)], ids=lambda path: path.name
)
def test_sessions_in_the_documents_run(path):
    result = doctest.testfile(str(path), module_relative=False, optionflags=OPTIONS, encoding="utf-8")
    assert result.failed == 0


def test_the_readme_and_the_reference_have_sessions():
    parser = doctest.DocTestParser()
    for paths, least in (([ROOT / "README.md"], 5), (REFERENCE, 200)):
        texts = [path.read_text(encoding="utf-8") for path in paths]
        assert sum(len(parser.get_examples(text)) for text in texts) >= least


def test_examples_in_docstrings_run():
    found = [module.name for module in pkgutil.walk_packages(regard.__path__, "regard.")]
    names = [name for name in found if not name.endswith("__main__")]
    names = [name for name in names if has_examples(Path(importlib.util.find_spec(name).origin))]
    tried = 0
    for name in share(names, 4):
        result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
        assert result.failed == 0, name
        tried += result.attempted
    assert tried > 30


def documented(prefix):
    """The names under `## `prefix.name`` headings of the reference."""
    text = "".join(path.read_text(encoding="utf-8") for path in REFERENCE)
    return set(re.findall(rf"^## `{re.escape(prefix)}\.(\w+)`$", text, flags=re.MULTILINE))


PARTS = (
    "auditor",
    "checker",
    "comparison",
    "conformance",
    "gpt",
    "heads",
    "layers",
    "maps",
    "monitor",
    "mutants",
    "policies",
    "recorder",
    "spans",
    "stages",
    "vllm",
)
PACKAGES = ("regard", *(f"regard.{part}" for part in PARTS))


def test_every_public_name_is_documented_and_nothing_else():
    """A name that is public in `regard` itself is documented there, and not again in its own package."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        top = {name for name in regard.__all__ if getattr(module, name, None) is getattr(regard, name)}
        assert documented(package) == set(module.__all__) - (top if package != "regard" else set())


def test_the_reference_is_up_to_date():
    """Its signatures, methods and commands are those of the code; `make reference` writes them."""
    for path in REFERENCE:
        text = path.read_text(encoding="utf-8")
        assert reference.reference(text) == text, path.name


def check_here(spec, options, **limits):
    """Check a file in this process, which importing it leaves as it was."""
    with sessions.restored_imports():
        return Report.from_dict(check_request({"spec": spec, "options": options}, lambda **line: None))


@pytest.mark.parametrize(
    "path",
    share([path for path in sessions.DOCUMENTS if path != sessions.VISIBILITY], 6),
    ids=lambda path: path.name,
)
def test_the_commands_in_the_documents_print_what_they_show(path, monkeypatch):
    """`make sessions` runs them and writes their output. `test_visibility` has one that takes long.

    Each check of the README is in a process of its own, as yours are; the many of check.md are in this one.
    """
    if path.name == "check.md":
        monkeypatch.setattr(sandbox, "check_in_process", check_here)
    text = path.read_text(encoding="utf-8")
    assert sessions.run_sessions(text) == text


def public_callables():
    """Every public function and class, and every public method of those classes."""
    names = []
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            thing = reference.resolve(f"{package}.{name}")
            if not callable(thing) or isinstance(thing, regard.Mask):
                continue
            names.append(f"{package}.{name}")
            if inspect.isclass(thing):
                methods = reference.public_members(thing)
                names += [f"{package}.{name}.{method}" for method, _ in methods if not method.startswith("_")]
    return sorted(names)


def undescribed(name):
    """The parameters that the docstring of a function, method or class does not name; or "docstring"."""
    package = max((p for p in PACKAGES if name.startswith(f"{p}.")), key=len)
    thing = importlib.import_module(package)
    for part in name.removeprefix(f"{package}.").split("."):
        thing = inspect.getattr_static(thing, part) if inspect.isclass(thing) else getattr(thing, part)
    if isinstance(thing, property | cached_property):
        return set() if inspect.getdoc(thing) else {"docstring"}
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return set()
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        text += inspect.getsource(thing).partition("def ")[0] + (inspect.getdoc(thing.__init__) or "")
    parameters = set(inspect.signature(thing).parameters) - {"self", "cls", "args", "kwargs"}
    unnamed = {parameter for parameter in parameters if not re.search(rf"\b{parameter}\b", text)}
    return unnamed if text else {"docstring"}


def test_every_public_parameter_is_described():
    missing = {name: lacking for name in public_callables() if (lacking := undescribed(name))}
    assert missing == {}


def test_links_and_pictures_in_the_documents_exist():
    for path in (*DOCUMENTS, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"""(?:\]\(|\bsrc=["']|\bsrcset=["'])([^)#"']+)""", text):
            assert target.startswith("https://") or (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_tree_in_the_readme_is_there():
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## The tree")[1].split("```")[1]
    package = ""
    for line in tree.splitlines():
        found = re.match(r"(├── |└── |[│ ]   (?:├── |└── ))([\w./]+)", line)
        if found is None:
            continue
        name = found[2]
        if found[1] in ("├── ", "└── "):
            package = name
            assert (ROOT / "src" / "regard" / name).exists(), name
        else:
            assert (ROOT / "src" / "regard" / package / name).exists(), package + name


def test_the_effects_of_cut_heads_are_those_that_were_measured():
    """`python -m scripts.cut_heads` measures them; the page's sentences hold for them."""
    results = json.loads(cut_heads.RESULTS.read_text(encoding="utf-8"))
    page = cut_heads.PAGE.read_text(encoding="utf-8")
    assert results.keys() == cut_heads.TEXTS.keys()
    assert cut_heads.write_table(page, results) == page
    for name, edit, words in (
        ("default", "cut induction heads", "all 3 induction heads"),
        ("smollm2", "cut 18.6", "18.6 (induction"),
    ):
        effects = results[name]["effects"][edit]
        assert f"| {cut_heads.NAMES[name]} | {words}" in page
        assert effects["repeated"]["beyond"]
        assert effects["repeated"]["low"] > 0
        assert not effects["first"]["beyond"]
    alone = sum(results["default"]["effects"][f"cut {head}"]["repeated"]["value"] for head in ("4.0", "4.2"))
    assert results["default"]["effects"]["cut induction heads"]["repeated"]["low"] > alone


def test_where_each_idea_is_taught_is_up_to_date():
    """`python -m scripts.ideas` writes it; an idea whose line is gone is an error."""
    assert ideas.PAGE.read_text(encoding="utf-8") == ideas.page()
    assert sum(map(len, ideas.IDEAS.values())) >= 47


def test_sphinx_follows_every_link_of_the_documents(tmp_path):
    """`test_site` looks at the site that it makes of them."""
    process = forks.context().Process(target=built_site.link_documents, args=(tmp_path,))
    process.start()
    process.join()
    warnings = tmp_path / "warnings"
    assert process.exitcode == 0, warnings.read_text() if warnings.exists() else "nothing was gathered"


@pytest.mark.parametrize("path", table.documents(), ids=lambda path: path.name)
def test_the_tables_of_performance_are_up_to_date(path):
    """`python -m benchmarks.table` writes them."""
    assert table.documents()[path] == path.read_text(encoding="utf-8")


def test_links_lead_to_pages_of_the_site():
    lesson = docs.LESSON_FILES / "01_similarity" / "lesson.md"
    fence = "```\n[f](lesson.md)\n```\n"
    text = f"[a](../../../stages/causal.py#L3-L9) [b](https://x.org) `[c](d.md)` [e](gone.md)\n{fence}"
    rewritten, linked = docs.relink(text, lesson)
    assert rewritten == text.replace(
        "../../../stages/causal.py#L3-L9", "../source/src/regard/stages/causal.py.md#L3"
    )
    assert linked == [docs.ROOT / "src" / "regard" / "stages" / "causal.py"]
