"""Names become links: a mistake's name to its page of pitfalls, a public name or a command to the reference.

In prose this is inline code such as `no-scale`, `regard.attend(q, k, v)` or `regard inspect --out x.html`;
in blocks of code it is `regard.attend`, and on the pages of the reference also the class `AttentionMap`.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

REFERENCE = "reference/"
DOTTED = re.compile(r"(regard(?:\.\w+)+)(?:\(.*\))?")
COMMAND = re.compile(r"(regard [a-z-]+)(?: .*)?")
SPAN = '<span class="{}">{}</span>'
NAME_CODE = re.compile(
    rf"{SPAN.format('n', 'regard')}(?:{SPAN.format('o', '[.]')}{SPAN.format('n', '[A-Za-z_0-9]+')})+"
    rf"|{SPAN.format('n', '[A-Z][A-Za-z_0-9]+')}"
)


class NameLinks:
    """The address of every name that has one, as a page of `app` links to it."""

    def __init__(self, app: Any, page: str) -> None:
        self.app, self.page = app, page
        self.slugs = {
            slug: (document, anchor, title)
            for document in app.env.found_docs
            if document.startswith(REFERENCE)
            for slug, (_, anchor, title) in app.env.metadata[document].get("myst_slugs", {}).items()
        }

    def find(self, text: str) -> str | None:
        """Return the address that inline code leads to, or None."""
        if f"pitfalls/{text}" in self.app.env.found_docs:
            return self._address(f"pitfalls/{text}", "")
        if name := DOTTED.fullmatch(text):
            return self.public(name[1])
        if command := COMMAND.fullmatch(text):
            return self._anchor(command[1].replace(" ", "-"))
        return None

    def public(self, name: str) -> str | None:
        """Return the address of a name in the reference, or of the class whose method it is."""
        while "." in name:
            if address := self._anchor(name.replace(".", "").lower()):
                return address
            name = name.rpartition(".")[0]
        return None

    def class_name(self, name: str) -> str | None:
        """Return the address of a class by its last name, if the reference has one class of this name."""
        ends = [slug for slug, (_, _, title) in self.slugs.items() if title.rpartition(".")[2] == name]
        return self._anchor(ends[0]) if len(ends) == 1 else None

    def _anchor(self, slug: str) -> str | None:
        if slug not in self.slugs:
            return None
        document, anchor, _ = self.slugs[slug]
        return self._address(document, "#" + anchor)

    def _address(self, target: str, anchor: str) -> str | None:
        if target == self.page:
            return anchor or None
        return str(self.app.builder.get_relative_uri(self.page, target)) + anchor


def link_prose(app: Any, doctree: nodes.document, page: str) -> None:
    links = NameLinks(app, page)
    for literal in list(doctree.findall(nodes.literal)):
        address = links.find(literal.astext())
        if address is None or _is_within(literal, nodes.reference, nodes.title):
            continue
        link = nodes.reference("", "", internal=True, refuri=address)
        literal.replace_self(link)
        link += literal


def _is_within(node: nodes.Node, *kinds: type[nodes.Node]) -> bool:
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


def link_code(app: Any, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    if "body" not in context or doctree is None:
        return
    links = NameLinks(app, page)

    def link(match: re.Match[str]) -> str:
        name = re.sub(r"<[^>]*>", "", match[0])
        if "." in name:
            address = links.public(name)
        else:
            address = links.class_name(name) if page.startswith(REFERENCE) else None
        return match[0] if address is None else f'<a class="name" href="{address}">{match[0]}</a>'

    context["body"] = NAME_CODE.sub(link, context["body"])


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-resolved", link_prose)
    app.connect("html-page-context", link_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
