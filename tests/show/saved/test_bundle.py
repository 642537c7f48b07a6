"""The page's modules as one script: every import is followed, and what cannot be bundled is refused."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.show.saved import bundle

MODULES = sorted(path.relative_to(bundle.FOLDER).as_posix() for path in bundle.FOLDER.rglob("*.js"))


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Bundles modules, passed by name, from `main`."""
    monkeypatch.setattr(bundle, "FOLDER", tmp_path)

    def bundle_texts(**texts: str) -> str:
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.js"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        bundle.bundle_modules.cache_clear()
        try:
            return bundle.bundle_modules("main")
        finally:
            bundle.bundle_modules.cache_clear()

    return bundle_texts


def bundled(entry: str, after: str | None = None) -> set[str]:
    """The modules in the script of an entry."""
    script = bundle.bundle_modules(entry, after)
    return {name for name in MODULES if f"const {bundle._variable(name.removesuffix('.js'))} = " in script}


SERVED = {"served_page.js", *(f"source/{name}.js" for name in ("early_meta", "http", "over_http"))}


def test_every_module_of_the_page_is_in_a_script() -> None:
    of_model = {name for name in MODULES if name.startswith("model/")}
    alone = {"source/arithmetic/worker.js", "notebook/host.js", "inflated_script.js"}  # scripts of their own
    assert bundled("whole_page") == set(MODULES) - alone - of_model - SERVED
    assert of_model <= bundled("model/worker")


def test_a_served_page_asks_first_and_has_no_code_twice() -> None:
    early, rest = bundled("source/early_meta"), bundled("served_page", after="source/early_meta")
    assert early & rest == set()
    assert early | rest >= SERVED
    assert {"map/map.js", "text/text.js", "main.js", "steps/steps.js"} <= rest
    # It computes nothing itself.
    assert not {"source/saved.js", "source/arithmetic/worker.js"} & (early | rest)


def test_every_style_sheet_of_the_page_is_linked_and_saved() -> None:
    sheets = sorted(path.relative_to(bundle.FOLDER).as_posix() for path in bundle.FOLDER.rglob("*.css"))
    links = re.findall(r'href="web/([^"]+)"', (bundle.FOLDER / "index.html").read_text("utf-8"))
    assert sorted(links) == sheets
    saved, _, _ = bundle._shell("a model", "source/arithmetic/worker")
    for name in sheets:
        assert (bundle.FOLDER / name).read_text("utf-8") in saved, name


def test_the_worker_has_the_arithmetic_and_knows_no_page() -> None:
    worker = bundled("source/arithmetic/worker")
    assert {f"source/arithmetic/{name}.js" for name in ("weights", "row_steps")} <= worker
    for name in worker | bundled("model/worker"):
        text = (bundle.FOLDER / name).read_text("utf-8")
        assert not re.search(r"\b(document|window|location|navigator)\.", text), name


def test_what_views_share_knows_no_view() -> None:
    """`data` imports nothing else, and `parts` only `data`."""
    allowed = {"data": r"\./\w+", "parts": r"(\.|\.\./data)/\w+"}
    for path in MODULES:
        if (folder := path.partition("/")[0]) in allowed:
            for _, other in bundle.IMPORT.findall((bundle.FOLDER / path).read_text("utf-8")):
                assert re.fullmatch(allowed[folder], other), f"{path} imports {other}"
