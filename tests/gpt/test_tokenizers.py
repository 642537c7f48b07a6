"""Tokenizers: texts are decoded to themselves; those that explode are refused before they are built."""

import base64
import json
import struct
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from regard.gpt import tokens
from regard.gpt.files.loader import _read_tokenizer
from regard.gpt.files.tokenizer_limits import MAX_GROWTH, check_limits
from regard.gpt.tokens import bpe_tokenizer
from regard.support.files import ModelFileError

Described = dict[str, Any]


@cache
def plain_text():
    return bpe_tokenizer(["abc text"], 270).to_str()


def described():
    plain = json.loads(plain_text())
    return plain


def template(pieces, specials, ids):
    """A template with so many pieces, and so many ids for each special token."""
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": f"s{i % specials}", "type_id": 0}} for i in range(pieces)],
        "pair": [],
        "special_tokens": {
            f"s{i}": {"id": f"s{i}", "ids": [0] * ids, "tokens": ["a"] * ids} for i in range(specials)
        },
    }


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(field, steps):
    return {"type": "Sequence", field: steps}


def nested(depth):
    step = {"type": "Lowercase"}
    for _ in range(depth):
        step = sequence("normalizers", [step])
    return step


def precompiled(replacement):
    """The table of a SentencePiece model without an index that is of use."""
    table = struct.pack("<I", 1024) + bytes(1024) + replacement + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def unigram_model(pieces):
    vocab = [[piece, -1.0] for piece in pieces]
    return {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": vocab}


SELF = {"Sequence": {"id": "A", "type_id": 0}}
TWICE = {"type": "TemplateProcessing", "single": [SELF, SELF], "pair": [], "special_tokens": {}}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
ADDED = {
    "id": 300,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "special": False,
}
WORD_PIECE = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "", "vocab": {"a": 0}}


HOSTILE = {
    "normalizers": lambda j: j.update(normalizer=sequence("normalizers", [replace("1", "11")] * 24)),
    "empty pattern": lambda j: j.update(normalizer=sequence("normalizers", [replace("", "a")] * 24)),
    "regular expression": lambda j: j.update(
        normalizer=sequence("normalizers", [replace("(?=1)", "1", "Regex")] * 24)
    ),
    "prefixes": lambda j: j.update(normalizer={"type": "Prepend", "prepend": "1" * 10_000}),
    "without a type": lambda j: j.update(normalizer={"normalizers": [{"type": "Lowercase"}] * 10_000}),
    "many steps": lambda j: j.update(normalizer=sequence("normalizers", [{"type": "Lowercase"}] * 10_000)),
    "deep": lambda j: j.update(normalizer=nested(100)),
    "precompiled": lambda j: j.update(normalizer=precompiled(b"1" * 100_000)),
    "pre-tokenizers": lambda j: j.update(pre_tokenizer=sequence("pretokenizers", [BYTE_LEVEL] * 28)),
    "both": lambda j: j.update(
        normalizer=replace("1", "1" * 8000), pre_tokenizer=sequence("pretokenizers", [BYTE_LEVEL] * 4)
    ),
    "decoders": lambda j: j.update(decoder=sequence("decoders", [replace("1", "11")] * 32)),
    "ids": lambda j: j.update(post_processor=template(10_000, 1, 1000)),
    "many special tokens": lambda j: j.update(post_processor=template(10_000, 10_000, 1)),
    "copies": lambda j: j.update(post_processor=sequence("processors", [TWICE] * 24)),
    "added tokens": lambda j: j.update(
        normalizer=replace("1", "1" * 8000), added_tokens=[{**ADDED, "content": "1" * 4000}]
    ),
    "a long token": lambda j: j["model"]["vocab"].update({"1" * 500_000: 999}),
    "a long piece": lambda j: j.update(model=unigram_model(["1" * 257])),
    "long pieces": lambda j: j.update(model=unigram_model([f"{i:0200}" for i in range(4000)])),
    "long words": lambda j: j.update(model={**WORD_PIECE, "max_input_chars_per_word": 1 << 40}),
}


def test_a_tokenizer_that_explodes_is_refused_before_it_is_built(tmp_path, monkeypatch):
    def build(text):
        raise AssertionError("the tokenizer is built")

    monkeypatch.setattr(Tokenizer, "from_str", build, raising=False)
    monkeypatch.setattr(Tokenizer, "from_file", build, raising=False)
    path, message = (
        tmp_path / "tokenizer.json",
        r"tokenizer\.json is not a tokenizer that can be read: .*expected",
    )
    for name, change in HOSTILE.items():
        change(plain := described())
        path.write_text(json.dumps(plain))
        with pytest.raises(ModelFileError, match=message):
            pytest.fail(f"{name}: {_read_tokenizer(path)}")


def gpt2():
    return bpe_tokenizer(["abc text"], 270)


def llama2():
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2}, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<unk> $A", pair="<unk> $A <unk> $B", special_tokens=[("<unk>", 0)]
    )
    return tokenizer


def llama3():
    tokenizer = bpe_tokenizer(["abc text"], 270)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), tokenizer.post_processor]
    )
    return tokenizer


def bert():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "[CLS]": 1, "a": 2, "##b": 3}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[UNK]", "[CLS]"])
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [CLS]", pair="[CLS] $A [CLS] $B:1 [CLS]:1", special_tokens=[("[CLS]", 1)]
    )
    return tokenizer


def clip():
    tokenizer = Tokenizer(
        models.BPE({"<unk>": 0, "a</w>": 1}, [], unk_token="<unk>", end_of_word_suffix="</w>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("<unk>", 0), ("<unk>", 0))
    return tokenizer


def whisper():
    tokenizer = gpt2()
    names = [f"<|{seconds / 50:.2f}|>" for seconds in range(1501)]
    tokenizer.add_tokens(names)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|0.00|> <|0.02|> $A <|0.04|>",
        pair="<|0.00|> $A $B:1 <|0.04|>:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names[:3]],
    )
    return tokenizer


def unigram(steps):
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -2.0)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_tokens([f"<extra_id_{i}>" for i in range(100)])
    plain = json.loads(tokenizer.to_str())
    return Tokenizer.from_str(json.dumps({**plain, "normalizer": sequence("normalizers", steps)}))


REAL = {
    "GPT-2": gpt2,
    "Llama 2": llama2,
    "Llama 3": llama3,
    "BERT": bert,
    "CLIP": clip,
    "Whisper": whisper,
    # The longest replacement of NFKC is that of U+FDFA, of 33 bytes.
    "T5": lambda: unigram([precompiled(b"1" * 33), replace(" {2,}", "▁", "Regex")]),
    "ALBERT": lambda: unigram(
        [
            replace("``", '"'),
            replace("''", '"'),
            {"type": "NFKD"},
            {"type": "StripAccents"},
            {"type": "Lowercase"},
            precompiled(b"1" * 33),
            replace(" {2,}", " ", "Regex"),
        ]
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_tokenizers_of_real_models_are_read(name, tmp_path):
    tokenizer = REAL[name]()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "a aab 1234,  a"
    assert _read_tokenizer(tmp_path / "tokenizer.json").encode(text).ids == tokenizer.encode(text).ids


def test_the_limit_of_growth_is_sharp():
    plain = described() | {"pre_tokenizer": None}
    check_limits(plain | {"normalizer": replace("1", "1" * MAX_GROWTH)})
    with pytest.raises(ValueError, match="expected at most 8,192, got 8,193"):
        check_limits(plain | {"normalizer": replace("1", "1" * (MAX_GROWTH + 1))})


TEXT = "the cat sees the dog, and the dog hears the old cat\n" * 50
PAIRS = tokens.bpe_tokenizer([TEXT], 300)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_characters_come_back(text):
    tokenizer = tokens.character_tokenizer(text)
    ids = tokens.encode(tokenizer, text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids.tolist()) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_pairs_write_any_text(text):
    assert PAIRS.decode(tokens.encode(PAIRS, text).tolist()) == text.replace(tokens.BOS_TOKEN, "")


def test_characters_outside_the_vocabulary_are_named():
    with pytest.raises(
        ValueError, match=r"expected only characters of the model's vocabulary, got \['x', 'ß'\]"
    ):
        tokens.encode(tokens.character_tokenizer("abc"), "abxß")


def test_a_prompt_loses_nothing_in_silence():
    letters = tokens.character_tokenizer("abc ")
    assert tokens.encode_prompt(letters, "a cab") == letters.encode("a cab").ids
    with pytest.raises(ValueError, match=r"of the model's vocabulary, got \['\\t', 'x', 'ß'\]"):
        tokens.encode_prompt(letters, "xab\tßa")
    assert tokens.encode_prompt(letters, "") == []


def test_a_tokenizer_may_rewrite_the_text_and_drop_spaces():
    words = Tokenizer(models.WordLevel({"cat": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert tokens.encode_prompt(words, " cat  dog ") == [0, 1]  # 1 is the unknown token
    words.normalizer = normalizers.Replace("!", "")
    assert tokens.encode_prompt(words, "cat!") == [0]


@pytest.mark.parametrize("size", [0, 256, 70000])
def test_a_vocabulary_size_that_is_refused(size):
    with pytest.raises(ValueError, match="vocab_size: expected from 257"):
        tokens.bpe_tokenizer([TEXT], size)


def test_chunks_join_to_the_text():
    text = ("line\n" * 7 + "x" * 50) * 3000
    cut = list(tokens.split_lines(text))
    assert "".join(cut) == text
    assert len(cut) > 1
    assert all(piece.endswith("\n") for piece in cut[:-1])
