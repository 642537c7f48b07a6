"""llms.txt: the pages of the site with a sentence each, for code assistants. `scripts.docs` writes it.

The sentence of a page is the first one of its text; a lesson has its idea, a page of the reference its names.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from regard.learn import LESSONS

LONGEST = 200  # characters of a sentence
HEAD = """\
# Regard

> Attention you can read, check and see, at any length: a Python library, a command and a page. It captures
> the attention of PyTorch models with a certificate, checks attention code against a float64 oracle and names
> the mistake, audits what a model reads on a batch, and has a course.

Start with [how a code assistant uses Regard](project/AGENTS.html) and
[which question, which call](which-call.html). Install: pip install "regard[app,transformers]".
"""
SECTIONS = {
    "Guides": ("capture", "check", "heads", "inspector", "gpt", "training", "packing", "testing-kernels"),
    "What works, how fast": ("compatibility", "transformers", "performance"),
    "Words": ("glossary", "faq"),
}
FOLDERS = {"How to": "how-to", "Reference": "reference", "Explanation": "explanation"}


def page_list(docs: Path) -> str:
    """Return the text of llms.txt for the documents in the folder `docs`."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(_section(title, [docs / f"{name}.md" for name in names], docs))
    for title, folder in FOLDERS.items():
        index = (docs / folder / "index.md").read_text(encoding="utf-8")
        names = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md\)", index))
        parts.append(_section(title, [docs / folder / f"{name}.md" for name in names], docs))
    lessons = [
        f"- [{lesson.number} {lesson.title}](learn/{lesson.folder.name}.html): {lesson.idea}\n"
        for lesson in LESSONS
    ]
    parts.append("## The course\n\n" + "".join(lessons))
    return "\n".join(parts)


def _section(title: str, pages: list[Path], docs: Path) -> str:
    lines = []
    for path in pages:
        text = path.read_text(encoding="utf-8")
        name = re.search(r"^# (.*)$", text, flags=re.MULTILINE)
        assert name is not None, path
        address = PurePosixPath(path.relative_to(docs).as_posix()).with_suffix(".html")
        documented = re.findall(r"^## `(regard[. ].+)`$", text, flags=re.MULTILINE)
        about = f": {', '.join(documented)}" if documented else first_sentence(text)
        lines.append(f"- [{name[1].replace('`', '')}]({address}){about}\n")
    return f"## {title}\n\n" + "".join(lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a document after its title, with a colon before it; "" if there is none.

    >>> first_sentence("# Masks\\n\\nWhich [keys](a.md) are\\nvisible. A mask is a predicate.\\n")
    ': Which keys are visible.'
    """
    _, _, body = text.partition("\n\n")
    paragraph = " ".join(body.split("\n\n")[0].split())
    if not re.match(r"[\w`*\[]", paragraph):
        return ""  # a table, a picture or code
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", paragraph)
    sentence = re.split(r"(?<=[.?])\s", plain)[0]
    return f": {sentence}" if len(sentence) <= LONGEST else f": {sentence[: LONGEST - 1]}…"
