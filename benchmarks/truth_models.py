"""The models of `benchmarks.truth`: small, random, and each with something that attention maps get wrong.

The judge is here, too: the weights of every layer in float64, from the queries and keys that hooks on the
model's own projections see. It uses nothing of Regard, nor of any other tool, and it is judged itself: its
weights times the model's values have to be what the model's output projection reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, WINDOW, PADDING, VOCABULARY = 24, 7, 5, 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
MapKey = tuple[str, int]  # the stack ("", "encoder", "decoder" or "cross") and the number of the layer


def plain_batch(seed: int) -> dict[str, Tensor]:
    """One text of random tokens."""
    return {
        "input_ids": torch.randint(3, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(seed))
    }


def left_padded(seed: int) -> dict[str, Tensor]:
    """Two texts, of which the second is shorter and padded on the left, with the positions of its tokens."""
    ids = torch.cat([plain_batch(seed)["input_ids"], plain_batch(seed + 1)["input_ids"]])
    mask = torch.ones_like(ids)
    ids[1, :PADDING], mask[1, :PADDING] = 0, 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
    }


def left_padded_without_positions(seed: int) -> dict[str, Tensor]:
    """The same for models that count positions themselves."""
    batch = left_padded(seed)
    del batch["position_ids"]
    return batch


def packed(seed: int) -> dict[str, Tensor]:
    """Three documents in one row, told apart by positions that begin again."""
    positions = torch.cat([torch.arange(n) for n in (9, 4, LENGTH - 13)])[None]
    return {**plain_batch(seed), "position_ids": positions, "use_cache": False}  # type: ignore[dict-item]


def with_prefix(seed: int) -> dict[str, Tensor]:
    """A text whose first 8 tokens see each other, by a mask of numbers that are added."""
    visible = torch.ones(LENGTH, LENGTH).tril().bool()
    visible[:, :8] = True
    hidden = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~visible, torch.finfo(torch.float32).min)
    return {**plain_batch(seed), "attention_mask": hidden}


def with_boolean_prefix(seed: int) -> dict[str, Tensor]:
    """The same with a Boolean mask."""
    batch = with_prefix(seed)
    return {**batch, "attention_mask": batch["attention_mask"] == 0}


def two_texts(seed: int) -> dict[str, Tensor]:
    """A text to read, with padding on the right, and a text to write."""
    ids = torch.cat([plain_batch(seed)["input_ids"], plain_batch(seed + 1)["input_ids"]])
    mask = torch.ones_like(ids)
    ids[1, -PADDING:], mask[1, -PADDING:] = 0, 0
    written = torch.cat([plain_batch(seed + 2)["input_ids"], plain_batch(seed + 3)["input_ids"]])[:, :9]
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": written}


@dataclass(frozen=True)
class Case:
    """A model and a batch."""

    name: str
    model_type: str
    settings: dict[str, Any]
    batch: Callable[[int], dict[str, Tensor]] = plain_batch
    rule: dict[str, Any] = field(default_factory=dict)
    """What the judge is told: scale, softcap, `windows` by layer."""

    def save(self, folder: Path, seed: int) -> None:
        """Write the model, with weights large enough that every head differs, and a tokenizer."""
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForSeq2SeqLM,
            PreTrainedTokenizerFast,
        )

        torch.manual_seed(seed)
        config = AutoConfig.for_model(self.model_type, **self.settings)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = auto.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.3)
                elif name.endswith("sinks"):
                    parameter.normal_()
        model.save_pretrained(folder)
        tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        words = {"bos_token": "w1", "eos_token": "w2", "unk_token": "w0", "pad_token": "w0"}
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words).save_pretrained(folder)


GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": VOCABULARY}
BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BART = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": 128, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
CASES = [
    Case("grouped heads", "llama", GROUPED),
    Case("QK-norm", "qwen3", GROUPED | {"head_dim": 12}),
    Case("QK-norm over all heads", "olmo2", SIZES),
    Case("window", "mistral", GROUPED | {"sliding_window": WINDOW}, rule={"windows": [WINDOW] * 2}),
    Case(
        "soft cap, window, own scale",
        "gemma2",
        GROUPED | {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 5},
        rule={"windows": [WINDOW, None], "softcap": 2.0, "scale": 5**-0.5},
    ),
    Case(
        "two rotary bases, window",
        "gemma3_text",
        GROUPED | {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"],
                   "query_pre_attn_scalar": 5},
        rule={"windows": [WINDOW, None], "scale": 5**-0.5},
    ),
    Case(
        "local attention, no scale",
        "gpt_neo",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": WINDOW,
         "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 128, **SPECIAL},
        rule={"windows": [None, WINDOW], "scale": 1.0},
    ),
    Case(
        "sink logits, window",
        "gpt_oss",
        GROUPED | {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
        rule={"windows": [WINDOW, None]},
    ),
    Case(
        "scale by layer",
        "gpt2",
        GPT2 | SPECIAL | {"scale_attn_by_inverse_layer_idx": True},
        rule={"scale": [8**-0.5, 8**-0.5 / 2]},
    ),
    Case("ALiBi", "bloom", BLOOM | SPECIAL),
    Case("left padding", "llama", GROUPED, left_padded),
    Case("left padding, window", "mistral", GROUPED | {"sliding_window": WINDOW}, left_padded,
         {"windows": [WINDOW] * 2}),
    Case("left padding, ALiBi", "bloom", BLOOM | SPECIAL, left_padded_without_positions),
    Case("packing", "llama", GROUPED, packed),
    Case("packing, window", "mistral", GROUPED | {"sliding_window": WINDOW}, packed,
         {"windows": [WINDOW] * 2}),
    Case("prefix", "llama", GROUPED, with_prefix),
    Case("prefix, Boolean mask", "llama", GROUPED, with_boolean_prefix),
    Case("cross attention", "bart", BART | SPECIAL, two_texts),
]  # fmt: skip


class Projections:
    """Hooks that keep what the projections of every attention layer give, and what the last one reads."""

    OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense")

    def __init__(self, model: nn.Module) -> None:
        self.layers: dict[MapKey, dict[str, Any]] = {}
        for name, module in model.named_modules():
            output = next((getattr(module, x) for x in self.OUTPUTS if hasattr(module, x)), None)
            if output is None or not any(hasattr(module, x) for x in ("q_proj", "c_attn", "query_key_value")):
                continue
            stack = (
                "cross"
                if "encoder_attn" in name
                else next((x for x in ("encoder", "decoder") if x in name), "")
            )
            number = int(next(part for part in name.split(".") if part.isdigit()))
            kept = self.layers[stack, number] = {"module": module}
            module.register_forward_pre_hook(
                lambda m, args, options, kept=kept: kept.update(options), with_kwargs=True
            )
            output.register_forward_pre_hook(lambda m, args, kept=kept: kept.update(read=args[0]))
            for part, child in module.named_children():
                child.register_forward_hook(
                    lambda m, args, result, kept=kept, part=part: kept.update({part: result})
                )

    def tensors(self, key: MapKey) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values of a layer, in float64, as they enter the scores."""
        kept = self.layers[key]
        width = kept["module"].head_dim
        if "c_attn" in kept:
            parts = [x.unflatten(-1, (-1, width)) for x in kept["c_attn"].chunk(3, -1)]
        elif "query_key_value" in kept:
            parts = list(kept["query_key_value"].unflatten(-1, (-1, 3, width)).unbind(-2))
        else:
            parts = [kept[name].unflatten(-1, (-1, width)) for name in ("q_proj", "k_proj", "v_proj")]
        for i, name in enumerate(("q_norm", "k_norm")):
            if name in kept:  # of each head before or after the axes change places, or of all heads at once
                moved = kept[name].ndim == 4 and kept[name].shape != parts[i].shape
                parts[i] = (kept[name].transpose(1, 2) if moved else kept[name]).reshape(parts[i].shape)
        q, k, v = (x.double().transpose(1, 2) for x in parts)
        if kept.get("position_embeddings") is not None:
            cos, sin = (x.double()[:, None] for x in kept["position_embeddings"])
            if cos.shape[-1] < width:  # gpt-oss keeps each angle once
                cos, sin = (torch.cat([x, x], -1) for x in (cos, sin))
            q, k = (
                x * cos + torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1) * sin for x in (q, k)
            )
        H = q.shape[1]
        return q, k.repeat_interleave(H // k.shape[1], 1), v.repeat_interleave(H // v.shape[1], 1)


def visible_keys(case: Case, batch: dict[str, Tensor], key: MapKey, T: int, S: int) -> Tensor:
    """Which keys each query sees, (B, T, S), from the batch alone."""
    stack, number = key
    B = batch["input_ids"].shape[0]
    distance = torch.arange(T)[:, None] - torch.arange(S)
    seen = torch.ones(B, T, S, dtype=torch.bool)
    mask = batch.get("attention_mask")
    if mask is not None and mask.ndim == 4:
        return (mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0).expand(B, T, S)
    if stack in ("", "decoder"):
        seen &= distance >= 0
    if (window := case.rule.get("windows", [None] * 2)[number]) is not None:
        seen &= distance < window
    if mask is not None and stack != "decoder":
        seen &= mask[:, None].bool()
    if case.batch is packed:
        document = (batch["position_ids"] == 0).cumsum(1)
        seen &= document[:, :, None] == document[:, None]
    return seen


@torch.no_grad()
def true_weights(case: Case, folder: Path, seed: int) -> dict[MapKey, tuple[Tensor, Tensor]]:
    """The weights (B, H, T, S) of each layer, and which of their rows are tokens' (B, T)."""
    model = load(folder)
    batch = case.batch(seed)
    projections = Projections(model)
    model(**batch)
    found = {}
    for key, kept in projections.layers.items():
        q, k, v = projections.tensors(key)
        B, H, T, D = q.shape
        scale = case.rule.get("scale", D**-0.5)
        scores = q @ k.mT * (scale[key[1]] if isinstance(scale, list) else scale)
        if (cap := case.rule.get("softcap")) is not None:
            scores = cap * torch.tanh(scores / cap)
        if case.model_type == "bloom":
            places = batch.get("attention_mask", torch.ones(B, T)).cumsum(1) - 1
            slopes = 2.0 ** (-8 / H * torch.arange(1, H + 1, dtype=torch.float64))
            scores = scores + slopes[:, None, None] * places[:, None, None].double()
        seen = visible_keys(case, batch, key, *scores.shape[2:])[:, None]
        scores = scores.masked_fill(~seen, -torch.inf)
        sinks = getattr(kept["module"], "sinks", None)
        if sinks is not None:
            scores = torch.cat([scores, sinks.double()[:, None, None].expand(B, H, T, 1)], -1)
        weights = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[2]]
        rows = seen[:, 0].any(-1)
        if (mask := batch.get("attention_mask")) is not None and mask.ndim == 2 and key[0] in ("", "encoder"):
            rows &= mask.bool()
        output = (weights @ v).transpose(1, 2)
        error = (output - kept["read"].double().view_as(output))[rows].abs().max() / output[rows].abs().max()
        if not error < 1e-4:
            raise RuntimeError(f"the judge of {case.name!r}, layer {key}, is itself off by {error:.1e}")
        found[key] = weights, rows
    return found


def load(folder: Path, **options: Any) -> Any:
    """The model of a folder, as Transformers loads it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(folder)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return auto.from_pretrained(folder, **options).eval()
