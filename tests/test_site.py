"""The documentation site: no warning, every link leads somewhere, and nothing is loaded from elsewhere.

`tests/browser/test_site.py` opens it in Chromium.
"""

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from regard.checker.catalogue import CATALOGUE
from scripts import docs
from tests.built_site import broken_links, external_resources, pages, read, targets

pytestmark = pytest.mark.at_length("test_sphinx_follows_every_link_of_the_documents")
STATE = docs.ROOT / "src" / "regard" / "show" / "web" / "state.js"
STATE_NAMES = set(re.findall(r"^  (\w+): ", STATE.read_text(encoding="utf-8").split("};")[0], re.MULTILINE))


def test_no_link_or_anchor_is_broken(site):
    assert list(broken_links(site)) == []


def test_nothing_is_loaded_from_elsewhere(site):
    assert list(external_resources(site)) == []


def test_a_broken_link_and_a_foreign_resource_are_found(tmp_path):
    (tmp_path / "here.css").write_text("@import 'https://fonts.example/a.css'; p { background: url(b.png) }")
    (tmp_path / "a.html").write_text(
        '<p id="top"><a href="#top">good</a><a href="#bottom">bad</a><a href="b.html#x">bad</a>'
        '<a href="gone.html">bad</a><a href="https://example.org">elsewhere</a>'
        '<script src="//cdn.example/x.js"></script><img src="https://example.org/y.png">'
    )
    (tmp_path / "b.html").write_text("<style>p { background: url('http://example.org/z.png') }</style>")
    assert list(broken_links(tmp_path)) == ["a.html: #bottom", "a.html: b.html#x", "a.html: gone.html"]
    assert sorted(external_resources(tmp_path)) == [
        "a.html: //cdn.example/x.js",
        "a.html: https://example.org/y.png",
        "b.html: http://example.org/z.png",
        "here.css: https://fonts.example/a.css",
    ]


def test_every_document_has_its_page(site):
    documents = [path for path in (docs.ROOT / "docs").rglob("*.md")]
    documents += [lesson.folder / "lesson.md" for lesson in docs.LESSONS]
    assert len(docs.LESSONS) >= 1
    for path in documents:
        assert (site / docs.place(path)).with_suffix(".html").is_file(), path


def test_links_lead_from_the_first_page_to_every_other(site):
    found, waiting = set(), [site / "index.html"]
    while waiting:
        path = waiting.pop()
        if path not in found and path.suffix == ".html" and path.is_relative_to(site):
            found.add(path)
            # A saved page of Regard has megabytes, and no links into the site.
            waiting += [] if (site / "_static" / "pages") in path.parents else targets(path)
    assert set(pages(site)) - found == {site / "search.html"}  # which the search field opens


def test_formulas_are_mathml(site):
    for lesson in docs.LESSONS:
        page = read((site / docs.place(lesson.folder / "lesson.md")).with_suffix(".html"))
        assert page.formulas >= lesson.text.count("$$") // 2
    for path in pages(site):
        assert "$$" not in read(path).prose, path
        assert not [address for address in read(path).loaded if "mathjax" in address.lower()], path


def test_a_lesson_has_its_notebook_and_the_page_at_that_step(site):
    for lesson in docs.LESSONS:
        path = (site / docs.place(lesson.folder / "lesson.md")).with_suffix(".html")
        (notebook,) = (link for link in read(path).links if link.endswith(".ipynb"))
        assert json.loads((path.parent / notebook).read_text(encoding="utf-8"))["nbformat"] == 4
        frames = [address for address in read(path).loaded if "_static/pages" in address]
        assert bool(frames) == (lesson.noun in docs.STEPS or "<!-- live: " in lesson.text)


def test_the_page_is_shown_in_a_state_that_it_knows(site):
    loaded = {address for path in pages(site) for address in read(path).loaded}
    shown = [urlsplit(address) for address in loaded if "_static/pages/" in address]
    assert len(shown) >= 3
    for address in shown:
        assert set(parse_qs(address.fragment, strict_parsing=True)) <= STATE_NAMES


def test_names_of_mistakes_lead_to_their_pages(site):
    """Wherever inline code is such a name, except on the page itself and in headings."""
    for path in pages(site):
        for text, link in read(path).code:
            if text in CATALOGUE and (site / "pitfalls" / f"{text}.html").exists() and path.stem != text:
                assert str(link).endswith(f"{text}.html"), f"{path}: {text}"


def test_every_page_in_llms_txt_is_there(site):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 60
    assert [link for link in links if not (site / link).is_file()] == []
