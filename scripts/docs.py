"""Build the documentation site: docs/, the lessons and the source files that they link to, as offline HTML.

    python -m scripts.docs                 write out/docs
    python -m scripts.docs --out FOLDER

First everything that the site shows is gathered in one folder, `FOLDER-source`: the documents, a page for
each lesson with its notebook, a page for each mistake of the catalogue (`scripts.pitfalls`) and for each file
of the repository that a document links to, and saved pages of the included model, one with the model in it.
In the gathered copies the links lead to these pages; in the repository they lead to the files themselves, so
that both GitHub and the site can follow them. Then Sphinx builds that folder. Any warning of Sphinx is an
error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from typer.testing import CliRunner

from regard.cli import app
from regard.learn import LESSONS, Lesson, make_notebook
from regard.learn.page import MOVABLE, movable
from regard.show.data.stage_example import build_example
from scripts import digits_vit, pitfalls, teaching_kit
from scripts.bibliography import bibliography
from scripts.page_list import page_list

ROOT = Path(__file__).parent.parent
PITFALLS = ROOT / "docs" / "pitfalls"  # an index of a hundred pages, which the sidebar does not list
LESSON_FILES = LESSONS[0].folder.parent
EMBEDDED_PAGE = "_static/pages/model.html"
PAGE_WITH_MODEL = "_static/pages/live.html"  # larger: it is shown once
PICTURE_PAGE = "_static/pages/digits.html"
ORPHAN = "---\norphan: true\n---\n"  # a page that other pages link to, and that may be in no list
STEPS = {
    "why": ("text", "What each token of a text takes from the others: point at one"),
    "similarity": (
        "steps&example=Simplified&row=1",
        "The row of “model” without learned weights, step by step",
    ),
    "projections": ("steps&example=Trainable&row=1", "The row of “model” with queries, keys and values"),
    "scale": ("steps&example=Scaled&row=1", "The scores of “model” before and after the division by √d"),
    "mask": ("steps&example=Causal&row=2", "The row of “learns”, which sees no token after it"),
    "head": ("steps", "One row of a trained head with its actual numbers"),
    "heads": ("steps&example=Two_heads&row=2", "The row of “learns” in the first of two heads"),
    "output": ("steps", "One row of a head, whose result W_o then mixes with those of the others"),
    "positions": (
        "map&layer=3&head=3",
        "A head that reads the token before each, which takes positions",
    ),
    "block": ("text", "What the model expects after each token, and what the token read for it"),
    "cache": ("cache", "Tokens written with a cache and without: the time, work and memory of each"),
    "trained_heads": ("heads", "Every head of the included model with its scores"),
    "transplant": ("map", "The map of one head of the included model"),
    "grouped_heads": ("cache", "What a cache takes where every query head has keys and values of its own"),
    "window": ("map&layer=4&head=2", "A head that rests on the first token: what a window alone would evict"),
    "online_softmax": ("steps", "One whole row of scores, as flash attention never holds it"),
    "linear_attention": ("cache", "A cache that grows with every token, which a state replaces"),
    "selection": ("map", "The map of a head in which most keys get hardly any weight"),
}
"""The page of Regard that belongs to a lesson: its view and what to show there, and a sentence about it."""
LINK = re.compile(r"`+[^`\n]*`+|\]\((?P<target>[^()\s]+)\)|\bsrc=\"(?P<source>[^\"]+)\"")
REFERENCES = "<!-- references -->\n"
SITE_PART = re.compile(r"^<!-- (lessons|syllabus|downloads) -->\n\n(?:.+\n)+", re.MULTILINE)
LIVE = re.compile(r"^<!-- live( with model)?: (\S+) -->\n\n!\[([^\]]*)\]\([^)]*\)$", re.MULTILINE)


def gather(source: Path) -> None:
    """Write everything that Sphinx reads into the folder `source`, which is made anew."""
    shutil.rmtree(source, ignore_errors=True)
    waiting = [path for path in sorted((ROOT / "docs").rglob("*")) if path.is_file() and _is_shown(path)]
    waiting += [lesson.folder / "lesson.md" for lesson in LESSONS]
    waiting += sorted(pitfalls.MISTAKES.glob("*.toml"))
    gathered = set()
    while waiting:
        path = waiting.pop()
        # README.md is for GitHub: links to it lead to the first page of the site.
        if path in gathered or path == ROOT / "README.md":
            continue
        gathered.add(path)
        target = source / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if text := page(path):
            rewritten, linked = relink(text, PITFALLS / target.name if _is_generated(path) else path)
            target.write_text(rewritten, encoding="utf-8")
            waiting += linked
        else:
            shutil.copyfile(path, target)
    teaching_kit.write_kit(source)
    (source / "llms.txt").write_text(page_list(ROOT / "docs"), encoding="utf-8")
    for lesson in LESSONS:
        notebook = source / notebook_place(lesson)
        notebook.parent.mkdir(parents=True, exist_ok=True)
        notebook.write_text(json.dumps(make_notebook(lesson), ensure_ascii=False, indent=1), encoding="utf-8")


def _is_shown(path: Path) -> bool:
    return "__pycache__" not in path.parts


def _is_generated(path: Path) -> bool:
    """Whether the page of a file of the repository is written by `scripts.pitfalls`."""
    return path.parent == pitfalls.MISTAKES or path == pitfalls.PROPERTIES


def place(path: Path) -> PurePosixPath:
    """Return where a file of the repository is in the gathered folder."""
    name = PurePosixPath(path.relative_to(ROOT).as_posix())
    if _is_generated(path):
        return PurePosixPath("pitfalls", "tests.md" if path == pitfalls.PROPERTIES else f"{path.stem}.md")
    if name.is_relative_to("docs"):
        return name.relative_to("docs")
    if path.is_relative_to(LESSON_FILES) and path.name == "lesson.md":
        return PurePosixPath("learn", path.parent.name + ".md")
    if path.is_relative_to(LESSON_FILES) and path.suffix != ".py":
        return PurePosixPath("learn", path.parent.name, path.name)
    if str(name) == "README.md":
        return PurePosixPath("index.md")
    if path.suffix == ".py" or path.is_dir():
        return PurePosixPath("source", f"{name}.md")
    if path.suffix == ".md":
        return PurePosixPath("project", name)
    return PurePosixPath("files", name)


def page(path: Path) -> str | None:
    """Return the Markdown of a file's page, or None for a file that is copied as it is."""
    name = path.relative_to(ROOT).as_posix()
    if _is_generated(path):
        return ORPHAN + pitfalls.generated_page(path)
    if path.is_dir():
        files = [file.name for file in sorted(path.iterdir()) if file.suffix == ".py"]
        return f"{ORPHAN}# {name}/\n\n" + "".join(f"- [{file}]({file})\n" for file in files)
    if path.suffix == ".py" and not name.startswith("docs/"):
        return f"{ORPHAN}# {name}\n\n```{{source-file}} {name}\n```\n"
    if path.suffix != ".md":
        return None
    text = LIVE.sub(_live_page, path.read_text(encoding="utf-8"))
    text = SITE_PART.sub(lambda match: SITE_PARTS[match[1]](), text)
    if REFERENCES in text:
        text = text.replace(REFERENCES, bibliography())
    if path.is_relative_to(LESSON_FILES):
        return lesson_page(text, path.parent)
    if path.name == "index.md" and "{toctree}" not in text and path.parent != PITFALLS:
        return text + folder_toctree(text)
    return text if name.startswith("docs/") else ORPHAN + text


def folder_toctree(index: str) -> str:
    """Return what puts the pages beside an index into the sidebar, in the order of its links."""
    pages = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md\)", index))
    return "\n```{toctree}\n:hidden:\n:titlesonly:\n\n" + "\n".join(pages) + "\n```\n"


def lesson_table() -> str:
    """Return the table of the lessons, in place of the paragraph that GitHub shows."""
    rows = [f"| [{x.number} {x.title}]({x.folder.name}.md) | {x.idea} | {x.goal or '–'} |" for x in LESSONS]
    return "\n".join(["| lesson | the idea | what you do |", "|---|---|---|", *rows, ""])


SITE_PARTS = {
    "lessons": lesson_table,
    "syllabus": teaching_kit.syllabus,
    "downloads": teaching_kit.downloads,
}
"""What the site shows in place of the paragraph below a comment of this name, which is for GitHub."""


def notebook_place(lesson: Lesson) -> PurePosixPath:
    """Return where the notebook of a lesson is in the gathered folder."""
    return PurePosixPath("learn", lesson.folder.name, f"lesson{lesson.number}.ipynb")


def lesson_page(text: str, folder: Path) -> str:
    """Return a lesson with what only the site has: Regard's page at that step, and the notebook."""
    lesson = next(lesson for lesson in LESSONS if lesson.folder == folder)
    text = MOVABLE.sub(lambda found: f"```{{raw}} html\n{movable(lesson, found[1])}\n```", text)
    notebook = (
        f"\n---\n\n[Download this lesson as a notebook]({notebook_place(lesson).relative_to('learn')})\n"
    )
    if lesson.noun in STEPS:
        view, sentence = STEPS[lesson.noun]
        live = LIVE.sub(_live_page, f"<!-- live: view={view} -->\n\n![{sentence}](picture.svg)")
        text = text.replace("\n## The picture\n", f"\n{live}\n\n## The picture\n", 1)
    return text + notebook


def _live_page(match: re.Match[str]) -> str:
    """Return the directive that shows the page in a state, in place of the picture that GitHub shows."""
    option = ":with-model:\n" if match[1] else ""
    return f"```{{live-page}} {numbered(match[2])}\n:alt: {match[3]}\n{option}```"


def numbered(state: str) -> str:
    """Return a state of the page in which a stage of the running example has its number, not its name."""
    for number, stage in enumerate(build_example()["stages"]):
        _, _, name = stage["name"].partition(" ")  # after the number of its lesson
        state = re.sub(rf"example={name.replace(' ', '_')}\b", f"example={number}", state)
    if re.search("example=[A-Z]", state):
        raise ValueError(f"{state}: the running example has no stage of this name")
    return state


def relink(text: str, path: Path) -> tuple[str, list[Path]]:
    """Return the Markdown of `path` with links between gathered files, and the files that it links to."""
    linked: list[Path] = []

    def rewrite(match: re.Match[str]) -> str:
        address = match["target"] or match["source"]
        if address is None or ":" in address or address.startswith("#"):
            return match[0]
        target, hash_, anchor = address.partition("#")
        file = find_linked(target, path)
        if file is None:
            return match[0]  # Sphinx says that it is not there
        linked.append(file)
        anchor = re.sub(r"^(L\d+)-.*", r"\1", anchor)  # of several lines, the first
        new = os.path.relpath(place(file), place(path).parent).replace(os.sep, "/")
        return match[0].replace(address, new + hash_ + anchor)

    return "".join(_outside_of_fences(text, lambda prose: LINK.sub(rewrite, prose))), linked


def _outside_of_fences(text: str, change: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of Markdown, with `change` made to those that are not in a block of code."""
    fence = None
    for line in text.splitlines(keepends=True):
        opened = re.match(r" *(```+|~~~+)", line)
        if fence is None and opened:
            fence = opened[1]
        elif fence is not None and line.strip() == fence:
            fence = None
        elif fence is None:
            line = change(line)
        yield line


def find_linked(target: str, path: Path) -> Path | None:
    """Return the file or folder of the repository that a link in `path` leads to, if there is one."""
    file = ((path if path.is_dir() else path.parent) / target).resolve()
    return file if file.exists() and file.is_relative_to(ROOT) and file != ROOT else None


def write_embedded_page(path: Path, *options: str) -> None:
    """Save the page of the included model, as the command does with these options."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["inspect", "--out", str(path), *options]
    done = CliRunner().invoke(app, words)
    if done.exit_code:
        sys.exit(f"regard {' '.join(words)} failed:\n{done.output}{done.exception or ''}")


def build(out: Path) -> None:
    """Build the site into the folder `out`, which is made anew; SystemExit if Sphinx complains."""
    from sphinx.cmd.build import build_main

    source = out.with_name(out.name + "-source")
    gather(source)
    write_embedded_page(source / EMBEDDED_PAGE)
    write_embedded_page(source / PAGE_WITH_MODEL, "--with-model")
    digits_vit.write_page(source / PICTURE_PAGE)
    shutil.rmtree(out, ignore_errors=True)
    doctrees = out.with_name(out.name + "-doctrees")
    shutil.rmtree(doctrees, ignore_errors=True)
    options = ["--quiet", "--fail-on-warning", "--nitpicky", "-b", "html", "-d", str(doctrees)]
    if code := build_main([*options, str(source), str(out)]):
        sys.exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "docs", help="the folder to write")
    out = parser.parse_args().out
    build(out.resolve())
    print(f"Open {out / 'index.html'}: it needs no server and no network.")


if __name__ == "__main__":
    main()
