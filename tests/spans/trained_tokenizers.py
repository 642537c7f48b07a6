"""Tokenizers of every kind that cuts text in its own way, trained on a few sentences in several scripts."""

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.gpt.tokens import bpe_tokenizer, character_tokenizer

TEXTS = [
    "The lamp at Farrow Point was old, and Mary Ellis kept it lit. Don't ask why; it's 3.14 miles away!",
    "Der Leuchtturm ist alt. „Warum?“, fragte sie. Über uns: Möwen, naïve cafés… e\u0301tude.",
    "你好，世界。这是一个测试！ こんにちは、元気ですか？ สวัสดีครับ",
    "مرحبا بالعالم. كيف حالك؟ हिन्दी में नमस्ते। 안녕하세요",
    "👩‍👩‍👧 and 🇩🇪🇫🇷 and 👍🏽 ☺️ !!! ... \n\n Tabs\tand\r\nlines.",
]


def _template(tokenizer, first, last=None):
    """Put a special token before a text, and perhaps one after it."""
    special = [x for x in (first, last) if x is not None]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A" + (f" {last}" if last else ""),
        special_tokens=[(x, tokenizer.token_to_id(x)) for x in special],
    )


def byte_level():
    """As GPT-2's and SmolLM2's, with a token before the text: that of a `GPT`."""
    return bpe_tokenizer(TEXTS, 320)


def byte_level_with_trimmed_offsets():
    """As RoBERTa's: its offsets leave out the space before a word."""
    tokenizer = bpe_tokenizer(TEXTS, 300)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def word_piece():
    """As BERT's: without case, accents and spaces, and with an unknown token."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    _template(tokenizer, "[CLS]", "[SEP]")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def unigram():
    """As T5's: SentencePiece's unigrams, with its normal form and a token at the end."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=250, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    _template(tokenizer, "<s>", "</s>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def byte_fallback():
    """As Llama 2's: SentencePiece's pairs, and bytes for what has no token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokens = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<unk>", "<s>", *tokens], limit_alphabet=40, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    _template(tokenizer, "<s>")
    return tokenizer


def characters():
    """One token for each character of a text; others have none."""
    return character_tokenizer("".join(TEXTS))


def slow_bytes():
    """As ByT5's: a tokenizer that knows no offsets."""
    return transformers.ByT5Tokenizer()


MAKERS = (
    byte_level,
    byte_level_with_trimmed_offsets,
    word_piece,
    unigram,
    byte_fallback,
    characters,
)
