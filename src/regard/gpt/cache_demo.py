"""A measurement of what a KV cache saves: generation with it and without, token by token.

Each `CacheStep` holds, for one token: the time, the tokens computed, the keys read, the bytes cached, the
difference of the logits, and the attention that an eviction policy (first keys and a window) would lose. Both
ways are really run, and the loss is the sum of the weights that the model used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.gpt.map_hooks import LayerInputs, record_layer_inputs
from regard.gpt.sampler import Sampler
from regard.heads.measures.eviction import eviction_loss
from regard.layers import KVCache

if TYPE_CHECKING:
    from regard.gpt.model import GPT


class CacheTiming(NamedTuple):
    """One quantity, measured with a cache and with everything recomputed."""

    cached: float
    recomputed: float


class CacheStep(NamedTuple):
    """The measurements of one generated token."""

    token_id: int
    position: int
    """The number of tokens before it."""
    seconds: CacheTiming
    computed: CacheTiming
    """Tokens that went through the model."""
    keys_read: CacheTiming
    """Keys read by all queries, over all layers and key/value heads."""
    cache_bytes: int
    """Bytes of keys and values in the cache."""
    policy_bytes: int
    """Bytes of keys and values that the eviction policy would keep."""
    difference: float
    """The largest absolute difference between the logits of the two ways."""
    same: bool
    """Whether both ways have the same likeliest token."""
    lost: list[list[float]]
    """For each layer and head, the attention on keys that the policy would have evicted."""


def compare_with_and_without_cache(
    model: GPT,
    prompt: Sequence[int],
    *,
    tokens: int = 32,
    window: int = 64,
    sinks: int = 4,
    temperature: float = 0.0,
) -> Iterator[CacheStep]:
    """Continue `prompt` by up to `tokens` tokens and yield a `CacheStep` for each.

    It takes the likeliest token at `temperature` 0 and else draws one (see `Sampler`). It stops early after
    an end-of-text token or at the end of the context. The eviction policy that is measured keeps the first
    `sinks` keys and the latest `window`, the newest included.
    """
    tokens, window = check_whole_number("tokens", tokens), check_whole_number("window", window)
    sinks = check_whole_number("sinks", sinks, 0)
    context_length = model.config.context_length
    if not 0 < len(prompt) < context_length:
        raise ValueError(f"prompt: expected from 1 to {context_length - 1} tokens, got {len(prompt)}")
    limit = min(tokens, context_length - len(prompt))
    return _steps(model, list(prompt), limit, window, sinks, Sampler(temperature))


def _steps(
    model: GPT, prompt: list[int], limit: int, window: int, sinks: int, sampler: Sampler
) -> Iterator[CacheStep]:
    # A generator must not leave inference mode on while its caller runs between two steps.
    ids = torch.tensor([prompt], device=model.device)
    caches = model.caches(len(prompt) + limit)
    with torch.inference_mode():
        _timed_logits(model, ids, None)  # warm-up: the first pass includes one-time costs
    for _ in range(limit):
        with torch.inference_mode():
            step = _measure_step(model, ids, caches, window, sinks, sampler)
        yield step
        if step.token_id in model.config.eos_token_id:
            return
        ids = torch.cat([ids, ids.new_tensor([[step.token_id]])], 1)


def _measure_step(
    model: GPT, ids: Tensor, caches: list[KVCache], window: int, sinks: int, sampler: Sampler
) -> CacheStep:
    # With the cache: the whole prompt at the first step, then only the newest token.
    new = ids[:, caches[0].length :]
    with record_layer_inputs(model.attention_layers) as records:
        cached, cached_seconds = _timed_logits(model, new, caches)
    lost = [
        _evicted_attention(inputs, cache, window, sinks)
        for inputs, cache in zip(records, caches, strict=True)
    ]
    # Without: everything again.
    recomputed, recomputed_seconds = _timed_logits(model, ids, None)

    T = ids.shape[1]
    # Twice, for keys and values; a head's keys and values have the same width in every model that GPT loads.
    token_bytes = [inputs.k[0, :, 0].numel() * 2 * inputs.k.element_size() for inputs in records]
    cached_tokens = [int(min(T, cache.reach)) for cache in caches]
    kept_tokens = [min(n, window + sinks) for n in cached_tokens]
    return CacheStep(
        token_id=int(sampler.sample(cached[None])),
        position=T,
        seconds=CacheTiming(cached_seconds, recomputed_seconds),
        computed=CacheTiming(new.shape[1], T),
        keys_read=CacheTiming(_keys_read(model, T, new.shape[1]), _keys_read(model, T, T)),
        cache_bytes=sum(n * size for n, size in zip(cached_tokens, token_bytes, strict=True)),
        policy_bytes=sum(n * size for n, size in zip(kept_tokens, token_bytes, strict=True)),
        difference=float((cached - recomputed).abs().max()),
        same=bool(cached.argmax() == recomputed.argmax()),
        lost=lost,
    )


def _timed_logits(model: GPT, ids: Tensor, caches: list[KVCache] | None) -> tuple[Tensor, float]:
    """The logits (V,) after the last token, and the seconds that they took."""
    # CUDA runs asynchronously: without waiting before and after, only the launch would be timed.
    _synchronize(model.device)
    start = time.perf_counter()
    logits = model.logits(model.states(ids, cache=caches)[:, -1])
    _synchronize(model.device)
    # float: differences of logits in bfloat16 would be rounded to its few digits.
    return logits[0].float(), time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _keys_read(model: GPT, T: int, queries: int) -> int:
    """The keys that the last `queries` of T tokens read, over all layers and key/value heads."""
    positions = range(T - queries, T)
    layers = (sum(min(i + 1, n or T) for i in positions) for n in model.config.windows)
    return model.config.num_kv_heads * sum(layers)


def _evicted_attention(inputs: LayerInputs, cache: KVCache, window: int, sinks: int) -> list[float]:
    """The eviction loss of the newest token, for each head."""
    weights = inputs.newest_row()[0].unsqueeze(1)  # (H, 1, S)
    position = torch.tensor([cache.length - 1], device=weights.device)
    first_key = cache.length - weights.shape[-1]  # a cache may hold the latest keys only
    windows = torch.tensor([window], device=weights.device)
    loss: list[float] = eviction_loss(weights, position, windows, sinks, first_key).flatten().tolist()
    return loss
