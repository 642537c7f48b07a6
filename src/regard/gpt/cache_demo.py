"""A measurement of what a KV cache saves: generation with it and without, token by token.

Each `CacheStep` holds, for one token: the time, the tokens computed, the keys read, the bytes cached and the
difference of the logits. Both ways are really run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.gpt.sampler import Sampler
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
    difference: float
    """The largest absolute difference between the logits of the two ways."""
    same: bool
    """Whether both ways have the same likeliest token."""


def compare_with_and_without_cache(
    model: GPT,
    prompt: Sequence[int],
    *,
    tokens: int = 32,
    temperature: float = 0.0,
) -> Iterator[CacheStep]:
    """Continue `prompt` by up to `tokens` tokens and yield a `CacheStep` for each.

    It takes the likeliest token at `temperature` 0 and else draws one (see `Sampler`). It stops early after
    an end-of-text token or at the end of the context.
    """
    tokens = check_whole_number("tokens", tokens)
    context_length = model.config.context_length
    if not 0 < len(prompt) < context_length:
        raise ValueError(f"prompt: expected from 1 to {context_length - 1} tokens, got {len(prompt)}")
    limit = min(tokens, context_length - len(prompt))
    return _steps(model, list(prompt), limit, Sampler(temperature))


def _steps(model: GPT, prompt: list[int], limit: int, sampler: Sampler) -> Iterator[CacheStep]:
    # A generator must not leave inference mode on while its caller runs between two steps.
    ids = torch.tensor([prompt], device=model.device)
    caches = model.caches(len(prompt) + limit)
    with torch.inference_mode():
        _timed_logits(model, ids, None)  # warm-up: the first pass includes one-time costs
    for _ in range(limit):
        with torch.inference_mode():
            step = _measure_step(model, ids, caches, sampler)
        yield step
        if step.token_id in model.config.eos_token_id:
            return
        ids = torch.cat([ids, ids.new_tensor([[step.token_id]])], 1)


def _measure_step(model: GPT, ids: Tensor, caches: list[KVCache], sampler: Sampler) -> CacheStep:
    # With the cache: the whole prompt at the first step, then only the newest token.
    new = ids[:, caches[0].length :]
    cached, cached_seconds = _timed_logits(model, new, caches)
    # Without: everything again.
    recomputed, recomputed_seconds = _timed_logits(model, ids, None)

    T = ids.shape[1]
    # Twice, for keys and values; a head's keys and values have the same width in every model that GPT loads.
    token_bytes = (
        2 * model.config.num_kv_heads * model.config.head_dim * model.token_embedding.weight.itemsize
    )
    return CacheStep(
        token_id=int(sampler.sample(cached[None])),
        position=T,
        seconds=CacheTiming(cached_seconds, recomputed_seconds),
        computed=CacheTiming(new.shape[1], T),
        keys_read=CacheTiming(_keys_read(model, T, new.shape[1]), _keys_read(model, T, T)),
        cache_bytes=sum(int(min(T, cache.reach)) for cache in caches) * token_bytes,
        difference=float((cached - recomputed).abs().max()),
        same=bool(cached.argmax() == recomputed.argmax()),
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
