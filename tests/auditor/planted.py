"""Faults planted into models, attention functions and batches: what each is, and the name it must get.

The attention functions are registered with Transformers as users register theirs, and compute with PyTorch's
`scaled_dot_product_attention`, or by hand where the name says so.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DataCollatorWithFlattening
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import regard
from tests.auditor.small_models import (
    LENGTH,
    PAD,
    WINDOW,
    PlainGPT,
    packed,
    padded,
    prefixed,
    small_model,
    strengthened,
    tokens,
)

DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7])


def _whole_mask(*args, **kwargs):
    """Return the mask that Transformers makes for SDPA, and never None in its place."""
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **kwargs | skips)


def _later(T):
    """Return how many positions each key stands before its query, (T, T)."""
    return torch.arange(T)[:, None] - torch.arange(T)


class Call(NamedTuple):
    """What an attention function is called with, as far as a rule of what is seen needs it."""

    module: Any
    T: int
    S: int
    mask: Any
    window: int | None


def _attention(rule, factor=1.0, by_hand=False):
    """Return an attention function that shows what a rule says: a mask, True for causal, else everything."""

    def attend(module, q, k, v, mask, scaling=None, sliding_window=None, **_):
        shown = rule(Call(module, q.shape[2], k.shape[2], mask, sliding_window))
        scale = q.shape[-1] ** -0.5 if scaling is None else factor * scaling
        if by_hand:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
            visible = _later(q.shape[2]) >= (0 if shown else -LENGTH)
            out = (q @ k.mT * scale).masked_fill(~visible, float("-inf")).softmax(-1) @ v
        else:
            options = {"attn_mask": shown if isinstance(shown, Tensor) else None, "is_causal": shown is True}
            out = scaled_dot_product_attention(q, k, v, **options, scale=scale, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    return attend


def _inverted(call):
    """The last query of a left-padded text sees every token and no padding."""
    return ((_later(call.T) >= 0) & ~call.mask[:, :, -1:, :]) | torch.eye(call.T, dtype=torch.bool)


def _windows(size):
    """Return an attention function with other windows than it gets, and no other mask than causal."""

    def rule(call):
        distance, n = _later(call.T), size(call.window)
        return ((distance >= 0) & (distance < (LENGTH if n is None else n)))[None, None]

    return _attention(rule)


def _joined_texts(module, q, k, v, mask, **options):
    """Causal attention to the mean of all texts' keys."""
    return _attention(lambda call: True)(module, q, k.mean(0, keepdim=True).expand_as(k), v, mask, **options)


IMPLEMENTATIONS = {
    "joins_texts": _joined_texts,
    "drops_mask": _attention(lambda call: getattr(call.module, "is_causal", True) and call.T == call.S),
    "drops_order": _attention(lambda call: False),
    "always_causal": _attention(lambda call: call.T == call.S),
    "inverts_mask": _attention(_inverted),
    "long_window": _windows(lambda n: n + 1 if n else None),
    "short_window": _windows(lambda n: n - 1 if n else None),
    "twice_window": _windows(lambda n: 2 * n if n else None),
    "swapped_windows": _windows(lambda n: None if n else WINDOW),
    "wrong_scale": _attention(lambda call: call.mask, factor=2.0),
    "only_mask": _attention(lambda call: call.mask),  # neither sinks nor a soft cap
    "by_hand_drops_mask": _attention(lambda call: True, by_hand=True),
    "by_hand_drops_order": _attention(lambda call: False, by_hand=True),
}


@contextmanager
def registered():
    """Inside the block, the attention functions are registered with Transformers."""
    for name, function in IMPLEMENTATIONS.items():
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _whole_mask)
    try:
        yield
    finally:
        for name in IMPLEMENTATIONS:
            del type(ALL_ATTENTION_FUNCTIONS)._global_mapping[name]
            del type(ALL_MASK_ATTENTION_FUNCTIONS)._global_mapping[name]


@dataclass(frozen=True)
class Fault:
    """One planted fault, and the name that the first diagnosis must have."""

    mistake: str
    model: str
    batch: Callable[[], Any]
    note: str
    implementation: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self):
        return f"{self.mistake}, {self.model}, {self.implementation or 'as built'}, {self.note}"

    def audit(self):
        """Plant the fault and audit it."""
        if self.model.startswith("plain GPT without "):
            torch.manual_seed(0)
            model = strengthened(PlainGPT(self.model.removeprefix("plain GPT without ")))
        else:
            model = small_model(self.model, self.implementation)
        return regard.audit(model, self.batch(), **self.options)


def with_ones():
    """Return a packed batch with an all-ones mask, under which Transformers leaves documents joined."""
    return packed() | {"attention_mask": torch.ones(1, LENGTH, dtype=torch.long)}


def with_labels():
    """Return a packed batch whose labels hold the first token of each document."""
    batch = packed()
    return batch | {"labels": batch["input_ids"].clone()}


def with_causal_mask():
    """Return a packed batch with the mask of one long text."""
    return packed() | {"attention_mask": (_later(LENGTH) >= 0)[None, None]}


def flattened(**more):
    """Return a batch as Transformers' collator makes it for FlashAttention, with the borders of documents."""
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    examples = [{"input_ids": tokens(1, n, seed=n)[0].tolist()} for n in (5, 7)]
    return dict(collator(examples)) | more


def without_mask(side):
    """Return a padded batch that does not say what is padding."""
    return {"input_ids": padded(side)["input_ids"]}


def inverted(side):
    """Return a padded batch with a mask that is 1 for padding."""
    ids = padded(side, (7, 5))["input_ids"]
    return {"input_ids": ids, "attention_mask": (ids == PAD).long()}


def pairs():
    """Return a batch for a model with an encoder and a decoder."""
    return {"input_ids": tokens(), "decoder_input_ids": tokens(2, 7, seed=1)}


def seq2seq(side="right", mask=True):
    """Return a batch for a model with an encoder and a decoder, its source padded."""
    batch = padded(side) | {"decoder_input_ids": tokens(2, 7, seed=1)}
    return batch if mask else {k: v for k, v in batch.items() if k != "attention_mask"}


def blocks_mask():
    """Return the causal mask of two documents, (1, 1, T, T)."""
    return (DOCUMENTS[:, None, :, None] == DOCUMENTS[:, None, None, :]) & (_later(LENGTH) >= 0)


def with_blocks_mask():
    """Return a batch with that mask."""
    return {"input_ids": tokens(1), "attention_mask": blocks_mask()}


def plain():
    return tokens()


def idx(**more):
    """Return a batch of `PlainGPT`."""
    return {"idx": tokens(), **more}


def padded_idx(side):
    batch = padded(side)
    return {"attention_mask": batch["attention_mask"], "idx": batch["input_ids"]}


def packed_idx():
    return {"idx": tokens(1), "document_ids": DOCUMENTS}


def left():
    return padded("left")


def right():
    return padded("right")


PER_DOCUMENT = {"documents": DOCUMENTS}


def faults(mistake, models, batch, note, implementation=None, **options):
    """Return one fault planted into each of these models."""
    return [Fault(mistake, model, batch, note, implementation, options) for model in models.split(", ")]


FAULTS = [
    # Documents: the batch, or the implementation, joins them.
    *faults("documents-leak", "Llama, Mistral, Gemma 3, GPT-2, Llama 4", with_ones, "all-ones mask"),
    *faults("documents-leak", "Llama", with_ones, "all-ones mask", "eager"),
    *faults("documents-leak", "Llama", with_ones, "all-ones mask", "flex_attention"),
    *faults("documents-leak", "Llama", lambda: packed() | {"use_cache": True}, "a cache is made"),
    *faults("documents-leak", "gpt-oss, BERT", packed, "which does not look at positions"),
    *faults("documents-leak", "Qwen3-Next", packed, "whose linear layers run on"),
    *faults("documents-leak", "GPT", lambda: tokens(1), "no mask", **PER_DOCUMENT),
    *faults("documents-leak", "plain GPT without documents", packed_idx, "document_ids are ignored"),
    *faults("documents-leak", "Llama", packed, "dropped", "drops_mask"),
    *faults("documents-leak", "Llama", packed, "dropped", "by_hand_drops_mask"),
    *faults(
        "documents-leak",
        "Llama",
        lambda: {"input_ids": tokens(1), "cu_seq_lens_q": torch.tensor([0, 5, 12], dtype=torch.int32)},
        "borders that SDPA ignores",
    ),
    # As people met and reported them: nanoVLM #204, wrinklefree #53, TRL #5316.
    *faults("documents-leak", "Llama", with_causal_mask, "positions restart and the mask does not"),
    *faults("documents-leak", "Llama", lambda: tokens(1), "nothing says it", **PER_DOCUMENT),
    *faults("documents-leak", "Llama", flattened, "flattened, and a cache is made"),
    # Padding.
    *faults(
        "padding-seen",
        "Llama, Mistral, gpt-oss, GPT-2, Qwen3-Next, Llama 4",
        lambda: without_mask("left"),
        "no mask",
    ),
    *faults("padding-seen", "Llama", lambda: without_mask("left"), "no mask", "eager"),
    *faults("padding-seen", "BERT", lambda: without_mask("right"), "no mask"),
    *faults("padding-seen", "T5, BART", lambda: seq2seq(mask=False), "no mask of the source"),
    *faults("mask-dropped", "Llama, Mistral, GPT-2", left, "padding", "drops_mask"),
    *faults("mask-dropped", "BERT", right, "padding", "drops_mask"),
    *faults("mask-dropped", "BART", seq2seq, "padding of the source", "drops_order"),
    *faults("mask-dropped", "plain GPT without padding", lambda: padded_idx("left"), "padding"),
    *faults("mask-dropped", "Llama", with_blocks_mask, "a mask of documents", "drops_mask"),
    *faults("mask-inverted", "Llama, GPT-2", lambda: inverted("left"), "by the collator"),
    *faults("mask-inverted", "Llama", lambda: inverted("right"), "by the collator", "eager"),
    *faults("mask-inverted", "BERT", lambda: inverted("right"), "by the collator"),
    *faults("mask-inverted", "Llama", left, "by the implementation", "inverts_mask"),
    # Texts.
    *faults("batch-items-mixed", "Llama, GPT-2", plain, "a mean of keys", "joins_texts"),
    *faults("batch-items-mixed", "plain GPT without texts", idx, "a mean in the residual stream"),
    # Order.
    *faults("future-seen", "Llama, Gemma 3, gpt-oss, GPT-2, Qwen3-Next", plain, "not causal", "drops_order"),
    *faults("future-seen", "PaliGemma", prefixed, "after the prefix too", "drops_order"),
    *faults("future-seen", "BART", pairs, "the decoder is not causal", "drops_order"),
    *faults("future-seen", "Llama", plain, "not causal", "by_hand_drops_order"),
    *faults("future-seen", "plain GPT without causal", idx, "not causal"),
    *faults("causal-where-bidirectional", "BERT", plain, "causal", "always_causal"),
    *faults("causal-where-bidirectional", "BART", pairs, "the encoder", "always_causal"),
    *faults("causal-where-bidirectional", "PaliGemma", prefixed, "the prefix", "always_causal"),
    *faults(
        "causal-where-bidirectional",
        "Llama",
        plain,
        "a prefix is expected",
        expect=regard.causal | regard.prefix(4),
    ),
    # Windows.
    *faults("window-ignored", "Mistral, Gemma 3", plain, "never reaches SDPA", "drops_mask"),
    *faults("window-ignored", "Llama 4", plain, "chunks never reach SDPA", "drops_mask"),
    *faults("window-ignored", "Mistral", plain, "dropped by hand", "by_hand_drops_mask"),
    *faults("window-ignored", "Llama", plain, "expected", expect=regard.causal & regard.window(4)),
    *faults("window-off-by-one", "Mistral, Gemma 3", plain, "too long", "long_window"),
    *faults("window-off-by-one", "Mistral", plain, "too short", "short_window"),
    *faults("window-wrong-size", "Mistral", plain, "twice as long", "twice_window"),
    *faults(
        "window-on-wrong-layers", "Gemma 3, Gemma 2, gpt-oss", plain, "counted from 1", "swapped_windows"
    ),
    # What an implementation has no argument for.
    *faults("sinks-lost", "gpt-oss", plain, "no argument", "only_mask"),
    *faults("sinks-lost", "gpt-oss", left, "no argument", "only_mask"),
    *faults("softcap-lost", "Gemma 2", plain, "no argument", "only_mask"),
    *faults("softcap-lost", "Gemma 2", packed, "no argument", "only_mask"),
    *faults("implementations-differ", "Llama", plain, "twice the scale", "wrong_scale"),
    *faults("implementations-differ", "Mistral", packed, "twice the scale", "wrong_scale"),
    # Positions and targets.
    *faults("left-padding-shifts-positions", "GPT-2, BERT", left, "no position_ids"),
    *faults("left-padding-shifts-positions", "plain GPT", lambda: padded_idx("left"), "no position_ids"),
    *faults("positions-do-not-restart", "plain GPT without positions", packed_idx, "counted through"),
    *faults(
        "positions-do-not-restart",
        "GPT with learned positions",
        lambda: {"input_ids": tokens(1), "mask": regard.documents(DOCUMENTS)},
        "counted through",
        **PER_DOCUMENT,
    ),
    *faults("positions-do-not-restart", "GPT-2", with_blocks_mask, "counted through", **PER_DOCUMENT),
    *faults("targets-cross-documents", "Llama, GPT-2", with_labels, "labels are the ids"),
    # Any other mask that the caller expects.
    *faults("unexpected-mask", "Llama", plain, "chunks", expect=regard.causal & regard.chunks(4)),
    *faults(
        "unexpected-mask",
        "GPT-2",
        plain,
        "one cell less",
        expect=regard.tensor_mask((_later(LENGTH) >= 0) & (_later(LENGTH) != 3)),
    ),
]
