"""Spans of the tokens of a chat: which tokens of a rendered chat template belong to which message.

A template may put messages together, move them, trim them or add text of its own. So it is not read: each
message is found by rendering the chat once more with a marker in the place of its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from regard.maps.spans import Spans
from regard.spans.token_offsets import TextToken, locate_tokens

MARKER = "regardmessagemarker"
Message = Mapping[str, Any]


def turns(messages: Sequence[Message], tokenizer: Any, **options: Any) -> Spans:
    """The messages of a chat as spans of the tokens of `tokenizer.apply_chat_template(messages)`.

    A span holds the text of its message; the template's own tokens, as the names of roles, are in the gaps.
    It is named by its role, and numbered where there are several: "system", "user 1", "user 2".

    - `messages`: dictionaries with "role" and "content", as the template takes them.
    - `tokenizer`: a tokenizer of Transformers with a chat template.
    - `options`: further arguments of `apply_chat_template`, such as `add_generation_prompt=True`.

    A message that the template leaves out, changes or repeats cannot be located; the ValueError names it.
    """
    if not hasattr(tokenizer, "apply_chat_template"):
        raise ValueError(
            "tokenizer: expected one of Transformers with a chat template, got "
            f"{type(tokenizer).__name__}: name the spans yourself with regard.spans.custom"
        )
    chat = [dict(message) for message in messages]
    rendered = _render(tokenizer, chat, options)
    # By place: a template may move messages, as Llama 2's puts the system message into the first user's.
    places = sorted(
        (*_locate(tokenizer, chat, number, rendered, options), number) for number in range(len(chat))
    )
    # The tokens of a rendered chat are those of its text, in which special tokens are written.
    tokens = locate_tokens(_WithoutAddedTokens(tokenizer), rendered)
    names = _names([str(message["role"]) for message in chat])
    spans, taken = [], 0
    for start, stop, number in places:
        first, last = _tokens_of(tokens, rendered, start, stop, taken)
        if first == last:
            raise ValueError(
                f"messages: message {number} ({names[number]}) has no token of its own in the rendered chat: "
                "leave it out"
            )
        spans.append((first, last, names[number]))
        taken = last
    return Spans([x[0] for x in spans], [x[1] for x in spans], [x[2] for x in spans])


class _WithoutAddedTokens:
    """A tokenizer that adds no special tokens to a text, as `apply_chat_template` uses it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> Any:
        return self._tokenizer(text, add_special_tokens=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _render(tokenizer: Any, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    # tokenize=False last, so that options of the user's cannot undo it.
    text: str = tokenizer.apply_chat_template(messages, **{**options, "tokenize": False})
    return text


def _locate(
    tokenizer: Any, messages: list[dict[str, Any]], number: int, rendered: str, options: Mapping[str, Any]
) -> tuple[int, int]:
    """The start and the end of the text of a message in the rendered chat."""
    message = messages[number]
    who = f"message {number} ({message.get('role')})"
    texts = _texts(message)
    if not texts:
        raise ValueError(f"messages: {who} has no text, so no token is its own: leave it out")
    marked = [*messages[:number], _with_marker(message), *messages[number + 1 :]]
    other = _render(tokenizer, marked, options)
    count = other.count(MARKER)
    if count != len(texts):
        happened = "leaves out" if count == 0 else "repeats"
        raise ValueError(f"messages: the chat template {happened} {who}, so it cannot be located")
    # What is before the first marker and after the last is the same in both.
    before, after = other[: other.index(MARKER)], other[other.rindex(MARKER) + len(MARKER) :]
    start, stop = len(before), len(rendered) - len(after)
    same = start <= stop and rendered.startswith(before) and rendered.endswith(after)
    # The first letters must agree, too: a template may put another text in this place.
    if same and texts[0].strip()[:1] == rendered[start:stop].strip()[:1]:
        return start, stop
    # The template looks into the text, or something else depends on it: the text may still be there once.
    content = texts[0].strip()
    if len(texts) == 1 and content and rendered.count(content) == 1:
        start = rendered.index(content)
        return start, start + len(content)
    raise ValueError(f"messages: the chat template changes {who}, so it cannot be located")


def _texts(message: Message) -> list[str]:
    """The texts of a message, whose content is a text or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return [content] if content.strip() else []
    parts = content if isinstance(content, list | tuple) else []
    return [str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text")]


def _with_marker(message: dict[str, Any]) -> dict[str, Any]:
    """A message with a marker in the place of each of its texts."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": MARKER}
    parts = [
        {**part, "text": MARKER} if isinstance(part, Mapping) and part.get("text") else part
        for part in content
    ]
    return {**message, "content": parts}


def _tokens_of(tokens: list[TextToken], text: str, start: int, stop: int, taken: int) -> tuple[int, int]:
    """The first token with a character of text[start:stop], from `taken` on, and the one after the last."""
    while start < stop and text[start].isspace():
        start += 1
    numbers = [
        number
        for number, token in enumerate(tokens)
        # taken: a token that reaches over two messages belongs to the first.
        if number >= taken and token.start < stop and token.stop > start
    ]
    return (numbers[0], numbers[-1] + 1) if numbers else (taken, taken)


def _names(roles: list[str]) -> list[str]:
    """The roles, numbered where one occurs several times.

    >>> _names(["system", "user", "assistant", "user"])
    ['system', 'user 1', 'assistant', 'user 2']
    """
    counts, so_far = Counter(roles), Counter[str]()
    names = []
    for role in roles:
        so_far[role] += 1
        names.append(f"{role} {so_far[role]}" if counts[role] > 1 else role)
    return names
