"""Turns: which tokens of a rendered chat belong to which message, whatever the template does with them."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

import regard
from regard.gpt.tokens import bpe_tokenizer
from tests.spans.trained_tokenizers import TEXTS

CHAT = [
    {"role": "system", "content": "You keep the lamp."},
    {"role": "user", "content": "  Was it lit? 🦉 "},
    {"role": "assistant", "content": "It was lit."},
    {"role": "user", "content": "It was lit."},
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGING = (  # the system message stands inside the first of the user, and texts are trimmed, as in Llama 2
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}"
    "{% if m.role == 'user' %}[INST] {% if loop.first and system %}"
    "<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
    "{{ m.content.strip() }} [/INST]{% else %} {{ m.content.strip() }} <|im_end|>{% endif %}{% endfor %}"
)
MOVING = (  # the system message comes last
    "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role == 'system' %}# {{ m.content }}{% endfor %}"
)
DROPPING = "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
REPEATING = "{{ messages[0].content }} {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CHANGING = (
    "{% for m in messages %}{{ m.role }}: "
    "{{ m.content[3:] if 'lit' in m.content else m.content }}\n{% endfor %}"
)


def tokenizer(template: str) -> Any:
    bpe = bpe_tokenizer(TEXTS, 320)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )
    made.chat_template = template
    return made


def texts(template: str, chat: list[dict[str, Any]], **options: Any) -> dict[str, str]:
    """The text of the tokens of each span."""
    made = tokenizer(template)
    spans = regard.spans.turns(chat, made, **options)
    rendered = made.apply_chat_template(chat, tokenize=True, return_dict=True, **options)["input_ids"]
    return {span.name: made.decode(rendered[span.start : span.stop]) for span in spans}


@pytest.mark.parametrize("template", [CHATML, MERGING, MOVING], ids=["in order", "merged", "moved"])
def test_every_message_is_found_by_rendering(template: str) -> None:
    found = texts(template, CHAT)
    assert {name: text.strip() for name, text in found.items()} == {
        "system": "You keep the lamp.",
        "user 1": "Was it lit? 🦉",
        "assistant": "It was lit.",
        "user 2": "It was lit.",
    }
    assert list(found)[-1] == ("system" if template == MOVING else "user 2")


def test_content_may_have_parts() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
        "{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}\n{% endfor %}"
    )
    parts = [
        {"type": "text", "text": "Look at"},
        {"type": "image"},
        {"type": "text", "text": "the lamp."},
    ]
    assert texts(template, [{"role": "user", "content": parts}]) == {"user": "Look at<image>the lamp."}


@pytest.mark.parametrize(
    ("template", "chat", "message"),
    [
        (DROPPING, CHAT, r"the chat template leaves out message 0 \(system\), so it cannot be located"),
        (REPEATING, CHAT, r"the chat template repeats message 0 \(system\), so it cannot be located"),
        (CHANGING, CHAT, r"the chat template changes message 1 \(user\), so it cannot be located"),
        (CHATML, [{"role": "user", "content": " "}], r"message 0 \(user\) has no text.*leave it out"),
        (CHATML, [{"role": "assistant", "content": None}], r"message 0 \(assistant\) has no text"),
    ],
)
def test_a_message_that_cannot_be_located_is_named(template: str, chat: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regard.spans.turns(chat, tokenizer(template))


def test_a_tokenizer_without_templates_is_refused() -> None:
    with pytest.raises(ValueError, match="tokenizer: expected one of Transformers with a chat template, got"):
        regard.spans.turns(CHAT, bpe_tokenizer(TEXTS, 300))
