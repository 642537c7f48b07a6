"""The page's modules as one script: every import is followed, and what cannot be bundled is refused."""

import re
from collections import Counter
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


def test_comments_are_left_out_and_template_literals_are_not(modules: Callable[..., str]) -> None:
    text = "// one\nexport const a = `\n\n// two\n/** three */\n`;\n/**\n * five\n */\n"
    script = modules(main=text + 'let b = " // six"; // seven\n')
    assert 'const a = `\n\n// two\n/** three */\n`;\nlet b = " // six";\n' in script


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


def test_every_exported_name_exists_once() -> None:
    texts = [(bundle.FOLDER / path).read_text("utf-8") for path in MODULES]
    names = Counter(name for text in texts for name in bundle.EXPORT.findall(text))
    assert [name for name, count in names.items() if count > 1] == []


def test_what_views_share_knows_no_view() -> None:
    """`data` imports nothing else, and `parts` only `data`."""
    allowed = {"data": r"\./\w+", "parts": r"(\.|\.\./data)/\w+"}
    for path in MODULES:
        if (folder := path.partition("/")[0]) in allowed:
            for _, other in bundle.IMPORT.findall((bundle.FOLDER / path).read_text("utf-8")):
                assert re.fullmatch(allowed[folder], other), f"{path} imports {other}"


def test_imports_follow_folders(modules: Callable[..., str]) -> None:
    script = modules(
        main='import { a } from "./map/b.js";\na();\n',
        map__b='import {\n  c as d,\n} from "../common/c.js";\nexport function a() {\n  return d;\n}\n',
        common__c="export const c = 3;\n",
    )
    order = [script.index(f"const module_{name} = ") for name in ("common$c", "map$b", "main")]
    assert order == sorted(order)
    assert "c: d,\n} = module_common$c;" in script
    assert "export" not in script


@pytest.mark.parametrize(
    "text",
    [
        'import b from "./b.js";\n',
        'import * as b from "./b.js";\n',
        'import "./b.js";\n',
        'import { b } from "b";\n',
        'export { b } from "./b.js";\n',
        "export default 3;\n",
        'const b = await import("./b.js");\n',
        "const b = import.meta.url;\n",
        'import { b } from "../b.js";\n',
        'const b = "</SCRIPT>";\n',
    ],
)
def test_what_it_does_not_understand_is_refused(text: str, modules: Callable[..., str]) -> None:
    with pytest.raises(RuntimeError):
        modules(main=text, b="export const b = 1;\n")


def test_a_circle_is_refused(modules: Callable[..., str]) -> None:
    with pytest.raises(RuntimeError, match="main → a → main"):
        modules(main='import { a } from "./a.js";\n', a='import { b } from "./main.js";\n')
