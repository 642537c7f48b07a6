"""What a layer should see: from the batch, the model's configuration and the kind of the layer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask, conjunction, full
from regard.attention.masks.named_masks import Chunks, Window, causal
from regard.attention.masks.tensor_masks import Documents, Padding, TensorMask
from regard.auditor.batch import TextBatch, text_config
from regard.checker.subject.vocabulary import predicts_next_token
from regard.recorder.layer import Layer
from regard.recorder.sources.mask_tensors import masked_entries

_BOTH_WAYS = re.compile(r"MaskedLM|SequenceClassification|TokenClassification|PreTraining|Encoder(?!Decoder)")
_CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec", re.I)
_ENCODER = re.compile(r"(^|\.)(\w*_)?encoder(\.|$)", re.I)
# Towers of multimodal models attend over patches or frames, which only their names tell.
_OTHER_TOKENS = re.compile(r"vision|visual|image|audio|speech|pixel|qformer|perceiver|resampler", re.I)
SLIDING, CHUNKED, FULL, LINEAR = (
    "sliding_attention",
    "chunked_attention",
    "full_attention",
    "linear_attention",
)


@dataclass(frozen=True)
class Expectation:
    """What one layer should see, as parts that must all hold. A part that is None is not asked for."""

    order: Mask | None = None
    """`causal`, or `full` for a layer that reads both ways; None if it is not known which."""
    block: Mask | None = None
    """What is seen in spite of `order`: tokens of a prefix see each other both ways."""
    window: Mask | None = None
    window_known: bool = True
    """Whether the configuration says what window the layer has, if any."""
    documents: Mask | None = None
    padding: Mask | None = None
    given: Mask | None = None
    """What else the caller's mask, passed or expected, hides."""
    sinks: bool | None = None
    softcap: float | None = None
    kind: str = "self"
    """"self", "encoder", "cross", or "other" for layers whose tokens are not those of the batch."""

    @property
    def is_known(self) -> bool:
        """Whether it is known which tokens the layer should see."""
        return self.order is not None or self.given is not None

    def parts(self) -> dict[str, Mask]:
        """Return the masks that must all hold, by the question that each of them answers."""
        order = None if self.order is full else self.order
        parts = {
            "future": order if order is None or self.block is None else order | self.block,
            "window": self.window,
            "given": self.given,
            "documents": self.documents,
            "padding": self.padding,
        }
        return {question: part for question, part in parts.items() if part is not None}

    def mask(self) -> Mask:
        """Return the whole mask that the layer should have."""
        parts = [*self.parts().values()]
        return conjunction(parts) if parts else full


def expect_layer(
    model: nn.Module,
    layer: Layer,
    heard: Mask,
    shape: tuple[int, int, int, int],
    batch: TextBatch,
    order: bool | None,
    expect: Mask | None,
) -> Expectation:
    """Return what a captured layer should see.

    Arguments:
        model: the model.
        layer: the layer as it was captured.
        heard: the mask that it was heard to use.
        shape: (B, H, T, S) of that mask.
        batch: the batch.
        order: whether the model is causal; None if that is not known.
        expect: the mask that the caller expects of every self-attention layer, if any.
    """
    module = _module(model, layer.name)
    kind = _kind(module, layer, shape, batch)
    if kind == "other":
        return Expectation(kind=kind)
    tokens = batch.source if kind in ("cross", "encoder") and batch.source is not None else batch
    padding = Padding(tokens.real) if tokens.has_padding else None
    if kind == "cross":
        return Expectation(full, padding=padding, kind=kind)
    config = text_config(getattr(module, "config", None) or getattr(model, "config", None))
    # The sink logits of gpt-oss have this name.
    sinks = True if isinstance(getattr(module, "sinks", None), Tensor) else None
    softcap = next(
        (
            float(x)
            for name in ("attn_logit_softcapping", "attn_logit_softcap")
            if (x := getattr(config, name, None))
        ),
        None,
    )
    documents = None if tokens.documents is None else Documents(tokens.documents)
    if kind == "self" and (expect is not None or batch.given_mask is not None):
        parts = mask_parts(expect) if expect is not None else {"given": _as_mask(batch.given_mask)}
        common = {"documents": documents, "padding": padding, "sinks": sinks, "softcap": softcap}
        return Expectation(**{name: part for name, part in common.items() if part is not None} | parts)
    is_causal = False if kind == "encoder" else order
    window, known = _window(config, module, layer, heard, is_causal, tokens.real)
    block = _block(batch, config, window) if kind == "self" else None
    # PaliGemma 2 shows its prefix beyond the window, Gemma 3 its pictures within it (transformers 5.22).
    if block is not None and window is not None and model_type(model) == "paligemma":
        window = window | block
    return Expectation(
        order=None if is_causal is None else causal if is_causal else full,
        block=block,
        window=window,
        window_known=known,
        documents=documents,
        padding=padding,
        sinks=sinks,
        softcap=softcap,
        kind=kind,
    )


def is_causal_model(model: nn.Module) -> tuple[bool | None, str]:
    """Return whether a model should not see later tokens, and how that is known; None if it is not."""
    config = getattr(model, "config", None)
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        return True, f"the decoder of {name} is causal"
    # Of Gemma's models True reads the whole text both ways; "vision" only pictures, which are no text.
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        return False, f"{name} reads both ways, as its configuration says"
    # XLM's language model is trained on masked tokens by default.
    if getattr(config, "causal", None) is False:
        return False, f"{name} reads both ways, as its configuration says"
    if model_type(model) == "cpmant":  # it reads its prompt both ways, and says not where
        return None, f"{name} reads parts of its text both ways: pass the mask that it should have as expect="
    if model_type(model) == "paligemma":
        return None, f"{name} reads its prefix both ways: pass token_type_ids, 0 for the prefix, or expect="
    # An encoder's class may be built as a decoder, as BertConfig(is_decoder=True) does.
    if predicts_next_token(name) or getattr(config, "is_decoder", False):
        return True, f"{name} is causal, as its class says"
    flags = {
        module.is_causal
        for path, module in model.named_modules()
        if isinstance(getattr(module, "is_causal", None), bool) and not _OTHER_TOKENS.search(path)
    }
    if len(flags) == 1:
        (flag,) = flags
        return flag, f"{name} {'is causal' if flag else 'reads both ways'}, as its layers declare"
    if _BOTH_WAYS.search(name):
        return False, f"{name} reads both ways, as its class says"
    return None, f"whether {name} should be causal is not known: pass expect=regard.causal or regard.full"


def model_type(model: nn.Module) -> str:
    """Return the type of a model of Transformers, as "llama"; "" for others."""
    return str(getattr(getattr(model, "config", None), "model_type", ""))


def mask_parts(expect: Mask) -> dict[str, Any]:
    """Return the parts of an expectation that a mask of the caller's consists of."""
    conjuncts = expect.conjuncts()
    windows = [x for x in conjuncts if x.window_size() is not None]
    others = [x for x in conjuncts if x.window_size() is None and not x.is_causal]
    parts: dict[str, Any] = {} if others else {"order": full}
    parts |= {"order": causal} if len(windows) + len(others) < len(conjuncts) else {}
    parts |= {"window": conjunction(windows)} if windows else {}
    return parts | ({"given": conjunction(others)} if others else {})


def _block(batch: TextBatch, config: Any, window: Mask | None) -> Mask | None:
    """Return the mask of the tokens of a batch that read each other both ways in a layer."""
    if batch.blocks is None:
        return None
    if window is None and str(getattr(config, "model_type", "")).startswith("gemma4"):
        return None  # Gemma 4's layers without a window read pictures in order
    return Documents(batch.blocks) & Padding(batch.blocks >= 0)


def _as_mask(mask: Tensor | None) -> Mask:
    if mask is None:
        raise ValueError("mask: expected a tensor")
    return TensorMask(~masked_entries(mask if mask.ndim == 4 else mask[:, None]))


def _module(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name.partition("#")[0])
    except AttributeError:
        return model


def _kind(module: nn.Module, layer: Layer, shape: tuple[int, int, int, int], batch: TextBatch) -> str:
    """Return what a layer's queries and keys are: tokens of the batch, of its source, of both, or others."""
    B, _, T, S = shape
    own, source = batch.shape[1], None if batch.source is None else batch.source.shape[1]
    if batch.shape[0] != B:
        return "other"
    # Transformers' GPT-2 and BERT say so by this attribute.
    is_cross = layer.stack == "cross" or getattr(module, "is_cross_attention", False)
    is_cross = is_cross or bool(_CROSS.search(layer.name))
    if is_cross and (own, source) == (T, S):
        return "cross"
    in_encoder = layer.stack == "encoder" or bool(_ENCODER.search(layer.name))
    if source is not None and in_encoder and T == S == source:
        return "encoder"
    if T != S or own != T or is_cross or _OTHER_TOKENS.search(layer.name):
        return "other"
    return "self"


def _window(
    config: Any, module: nn.Module, layer: Layer, heard: Mask, is_causal: bool | None, real: Tensor
) -> tuple[Mask | None, bool]:
    """Return the window that a layer should have, and whether the configuration says so."""
    own_windows = getattr(config, "windows", None)  # of `regard.gpt.Config`
    if isinstance(own_windows, tuple) and layer.number < len(own_windows):
        own = own_windows[layer.number]
        return (None if own is None else _sliding(own, is_causal)), True
    if not hasattr(config, "model_type") and heard.window_size() is not None:
        return None, False  # a model without a configuration may well have a window
    types = getattr(config, "layer_types", None)
    index = getattr(module, "layer_idx", layer.number)
    kind = (
        types[index]
        if isinstance(types, list | tuple) and isinstance(index, int) and index < len(types)
        else None
    )
    size = getattr(config, "sliding_window", None)
    if kind == SLIDING and isinstance(size, int):
        return _sliding(size, is_causal), True
    if kind == CHUNKED and isinstance(chunk := getattr(config, "attention_chunk_size", None), int):
        first = real.int().argmax(1, keepdim=True)  # Llama 4 counts chunks from the first token of each text
        # Padding on the left has negative places, which are rounded down to chunks of their own.
        places = torch.arange(real.shape[1], device="cpu") - first
        return (
            Documents(places.div(chunk, rounding_mode="floor")) if bool(first.any()) else Chunks(chunk)
        ), True
    if kind in (FULL, LINEAR):
        return None, True
    if kind is not None:
        return None, False
    # Qwen2's configuration has the size of a window that is off unless use_sliding_window is True.
    if not isinstance(size, int) or size <= 0 or getattr(config, "use_sliding_window", True) is False:
        others = (
            "window_size",
            "attention_window",
            "local_attention",
            "attention_chunk_size",
            "sliding_windows",
        )
        # ModernBERT, Longformer and GPT-Neo have names of their own; what they count is not known here.
        return None, not any(getattr(config, name, None) for name in others)
    # Gemma 2's layers have one of their own, which is None in those of full attention.
    own = getattr(module, "sliding_window", size)
    return (_sliding(own, is_causal), True) if isinstance(own, int) else (None, own is None)


def _sliding(size: int, is_causal: bool | None) -> Mask:
    """Return a window of Transformers: `size` keys back, its own included, and as many ahead both ways."""
    return Window(size) if is_causal else Window(size, ahead=size - 1)


def rows_of(batch: TextBatch, kind: str) -> Tensor | None:
    """Return the queries (B, T) of a layer that count: those that are no padding."""
    tokens = batch.source if kind == "encoder" and batch.source is not None else batch
    return tokens.real if tokens.has_padding else None


def head_shares(layer: Layer, hidden: Mask, rows: Tensor | None) -> Tensor:
    """Return the mean share of attention that each head gives to the keys of a mask, (H,)."""
    shares = layer.softmax_map("a share of attention").mass(hidden).float().cpu()  # (B, H, T)
    if rows is None:
        return shares.mean((0, 2))
    weight = rows[:, None].float()
    return (shares * weight).sum((0, 2)) / weight.sum().clamp(min=1.0)
