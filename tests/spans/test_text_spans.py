"""Words, sentences and turns as spans of tokens: they cover every token, and give the text back."""

from functools import cache
from itertools import pairwise

import pytest
import regex
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.gpt import GPT
from regard.gpt.tokens import bpe_tokenizer
from regard.maps.spans import Spans
from regard.spans import segments
from regard.spans.token_offsets import locate_tokens
from tests.spans.trained_tokenizers import MAKERS, TEXTS, byte_level, slow_bytes

TOKENIZERS = {make.__name__: cache(make) for make in MAKERS} | {
    "the included model's": cache(lambda: GPT.from_pretrained("default").tokenizer)
}
# Characters that are hard to cut: marks, joiners, flags, Hangul, scripts without spaces, spaces, signs.
HARD = "ae\u0301\u0308 \t\n\r\u200d\u200b\u00a0.!?'’,-“”…。！'👩👧🇩🇪👍🏽☺️가ᄀ각ᅡ你好กำผู้हिन्दीمرحباß"
texts = st.one_of(
    st.text(st.sampled_from(HARD), max_size=24),
    st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=16),
    st.lists(st.sampled_from([*TEXTS, " ", "<|endoftext|>", "[CLS]", "<s>"]), max_size=3).map("".join),
).filter(lambda text: not text.rstrip().endswith("</s>"))  # of which ByT5 warns


def ids(tokenizer, text):
    return tokenizer.encode(text).ids if hasattr(tokenizer, "encode_batch") else tokenizer(text)["input_ids"]


def characters(text):
    """The edges of the characters of a text, by the `regex` package."""
    return {match.start() for match in regex.finditer(r"\X", text)} | {0, len(text)}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=texts)
def test_spans_cover_all_tokens_and_give_the_text_back(name, text):
    tokenizer = TOKENIZERS[name]()
    tokens = locate_tokens(tokenizer, text)
    assert len(tokens) == len(ids(tokenizer, text))
    for cut in (regard.spans.words, regard.spans.sentences):
        spans = cut(tokenizer, text)
        assert [*spans.starts, len(tokens)] == [0, *spans.stops]
        added = {
            number for number, token in enumerate(tokens) if token.is_special and token.start == token.stop
        }
        names = [span.name for span in spans if span.start not in added]
        if names:  # there may be no token for any character
            assert "".join(names) == text
        edges = [sum(map(len, names[:number])) for number in range(len(names) + 1)]
        special = {edge for token in tokens if token.is_special for edge in (token.start, token.stop)}
        assert set(edges) - special <= characters(text), names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop, l’eau!", ["Don't", " stop", ",", " l’eau", "!"]),
        ("3.14 and 1,000.", ["3.14", " and", " 1,000", "."]),
        ("well-known... (yes) ", ["well", "-", "known", "...", " (", "yes", ") "]),
        ("你好, world", ["你", "好", ",", " world"]),
        ("ภาษาไทย", ["ภ", "า", "ษ", "า", "ไ", "ท", "ย"]),
        ("أهلا بك", ["أهلا", " بك"]),
        ("a👩‍👩‍👧b", ["a", "👩‍👩‍👧", "b"]),
        ("e\u0301tude\n\nnew", ["e\u0301tude", "\n\nnew"]),
        ("  ", ["  "]),
        ("", []),
    ],
)
def test_words(text, expected):
    assert [text[a:b] for a, b in pairwise(segments.words(text))] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", " Two!", " Three?"]),
        ("J. S. Bach wrote it. e.g. this. And that.", ["J. S. Bach wrote it. e.g. this.", " And that."]),
        ("“Who?” she said. “I.”", ["“Who?” she said.", " “I.”"]),
        ("It cost 3.14 euros... or so.", ["It cost 3.14 euros... or so."]),
        ("Title\n\nText here.\n", ["Title", "\n\nText here.\n"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("कैसे हो। ठीक।", ["कैसे हो।", " ठीक।"]),
        ("كيف حالك؟ بخير.", ["كيف حالك؟", " بخير."]),
    ],
)
def test_sentences(text, expected):
    assert [text[a:b] for a, b in pairwise(segments.sentences(text))] == expected


@pytest.mark.parametrize("make", [byte_level])
def test_the_bytes_of_one_character_belong_together(make):
    tokenizer = make()
    text = "A🦉你 e\u0301"
    spans = regard.spans.words(tokenizer, text)
    counts = {span.name: span.stop - span.start for span in spans}
    assert counts["🦉"] > 1
    assert counts["你"] > 1
    assert list(counts)[-1] in (" e\u0301", "</s>")


def test_a_text_and_a_tokenizer_are_needed():
    for tokenizer in (None, slow_bytes()):
        with pytest.raises(ValueError, match=r"tokenizer: expected a fast one.*got .*, which has no offsets"):
            regard.spans.words(tokenizer, "a")
    with pytest.raises(ValueError, match="text: expected a text, got list"):
        regard.spans.words(byte_level(), ["a", "b"])


def test_documents():
    spans = regard.spans.documents(torch.tensor([[0, 4, 5, 0, 0, 6]]), separator=0)
    assert list(spans) == [(1, 3, "document 1"), (5, 6, "document 2")]
    assert list(regard.spans.documents([7, 7, 3, 3, 3])) == [(0, 2, "document 1"), (2, 5, "document 2")]
    assert len(regard.spans.documents([0, 0], separator=0)) == 0
    with pytest.raises(ValueError, match=r"ids: expected whole numbers \(T,\).*got \(2, 2\)"):
        regard.spans.documents(torch.zeros(2, 2, dtype=torch.long))


def test_grid():
    spans = regard.spans.grid(2, 3, first=3)
    assert list(spans)[2:] == [(2, 3, "register 2"), (3, 6, "row 0"), (6, 9, "row 1")]
    spans = regard.spans.grid(2, 2, first=["class"], by="patch")
    assert spans.names == ("class", "0,0", "0,1", "1,0", "1,1")
    assert spans.stops[-1] == 5
    with pytest.raises(ValueError, match="by: expected 'row' or 'patch', got 'column'"):
        regard.spans.grid(2, 2, by="column")
    with pytest.raises(ValueError, match="h: expected"):
        regard.spans.grid(0, 2)


def test_custom():
    assert regard.spans.custom([(0, 2), (5, 6)], ["a", "b"]) == Spans([0, 5], [2, 6], ["a", "b"])
    assert regard.spans.custom([0, 2, 6]) == Spans.from_edges([0, 2, 6])
    with pytest.raises(ValueError, match="edges: expected positions, or pairs"):
        regard.spans.custom([(0, 2), 5])


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


def chat_tokenizer(template):
    bpe = bpe_tokenizer(TEXTS, 320)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )
    made.chat_template = template
    return made


def chat_texts(template, chat, **options):
    """The text of the tokens of each span."""
    made = chat_tokenizer(template)
    spans = regard.spans.turns(chat, made, **options)
    rendered = made.apply_chat_template(chat, tokenize=True, return_dict=True, **options)["input_ids"]
    return {span.name: made.decode(rendered[span.start : span.stop]) for span in spans}


@pytest.mark.parametrize("template", [CHATML, MERGING, MOVING], ids=["in order", "merged", "moved"])
def test_every_message_is_found_by_rendering(template):
    found = chat_texts(template, CHAT)
    assert {name: text.strip() for name, text in found.items()} == {
        "system": "You keep the lamp.",
        "user 1": "Was it lit? 🦉",
        "assistant": "It was lit.",
        "user 2": "It was lit.",
    }
    assert list(found)[-1] == ("system" if template == MOVING else "user 2")


def test_content_may_have_parts():
    template = (
        "{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
        "{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}\n{% endfor %}"
    )
    parts = [
        {"type": "text", "text": "Look at"},
        {"type": "image"},
        {"type": "text", "text": "the lamp."},
    ]
    assert chat_texts(template, [{"role": "user", "content": parts}]) == {"user": "Look at<image>the lamp."}


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
def test_a_message_that_cannot_be_located_is_named(template, chat, message):
    with pytest.raises(ValueError, match=message):
        regard.spans.turns(chat, chat_tokenizer(template))


def test_a_tokenizer_without_templates_is_refused():
    with pytest.raises(ValueError, match="tokenizer: expected one of Transformers with a chat template, got"):
        regard.spans.turns(CHAT, bpe_tokenizer(TEXTS, 300))
