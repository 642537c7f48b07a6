"""What a cache saves, measured: text is generated with it and without, token by token, side by side.

For every token: how long it took, what was computed, read and held, how far the logits are apart, and what
each head would lose if only the first few keys and the latest were kept. Nothing is simulated: both ways
really run, and the loss is summed from the weights that the model used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import whole
from regard.gpt.map_hooks import LayerInputs, watched
from regard.heads.eviction import eviction_loss
from regard.layers import KVCache

if TYPE_CHECKING:
    from regard.gpt.model import GPT


class CacheTiming(NamedTuple):
    """The same of both ways."""

    cached: float
    anew: float


class CacheStep(NamedTuple):
    """What one token took."""

    id: int
    position: int
    """Where it stands: so many tokens came before it."""
    seconds: CacheTiming
    computed: CacheTiming
    """Tokens that went through the model."""
    keys_read: CacheTiming
    """Keys that queries looked at, over all layers and key/value heads."""
    held: int
    """Bytes of keys and values that the cache holds."""
    held_by_policy: int
    """Bytes of those that the first keys and the latest would be."""
    difference: float
    """The largest between the two ways' logits."""
    same: bool
    """Whether both choose this token."""
    lost: list[list[float]]
    """For each layer and head the attention that falls on keys which the policy would have forgotten."""


def compare_with_and_without_cache(
    model: GPT, prompt: Sequence[int], *, tokens: int = 32, window: int = 64, sinks: int = 4
) -> Iterator[CacheStep]:
    """Go on with a prompt by the best token each time, up to an end token; a `CacheStep` for each.

    The policy that is judged keeps the first `sinks` keys and the `window` latest, the newest included.
    """
    for name, value, least in (("tokens", tokens, 1), ("window", window, 1), ("sinks", sinks, 0)):
        whole(name, value, least)
    context = model.config.context
    if not 0 < len(prompt) < context:
        raise ValueError(f"prompt: expected from 1 to {context - 1} tokens, got {len(prompt)}")
    limit = min(tokens, context - len(prompt))
    return _steps(model, list(prompt), limit, window, sinks)


def _steps(model: GPT, prompt: list[int], limit: int, window: int, sinks: int) -> Iterator[CacheStep]:
    # A generator must not stay in inference mode while others run between its steps.
    ids = torch.tensor([prompt], device=model.device)
    caches = model.caches(len(prompt) + limit)
    with torch.inference_mode():
        _timed(model, ids, None)  # the first pass of all pays for what is set up once
    for _ in range(limit):
        with torch.inference_mode():
            step = _step(model, ids, caches, window, sinks)
        yield step
        if step.id in model.config.end:
            return
        ids = torch.cat([ids, ids.new_tensor([[step.id]])], 1)


def _step(model: GPT, ids: Tensor, caches: list[KVCache], window: int, sinks: int) -> CacheStep:
    new = ids[:, caches[0].length :]  # the whole prompt first, then the newest token
    with watched([block.attention for block in model._blocks()]) as looks:
        cached, with_cache = _timed(model, new, caches)
    lost = [_lost(look, cache, window, sinks) for look, cache in zip(looks, caches, strict=True)]
    anew, without = _timed(model, ids, None)
    T = ids.shape[1]
    width = [look.k[0, :, 0].numel() * 2 * look.k.element_size() for look in looks]  # bytes of one token
    held = [int(min(T, cache.reach)) for cache in caches]  # tokens
    kept = [min(n, window + sinks) for n in held]
    return CacheStep(
        id=int(cached.argmax()),
        position=T,
        seconds=CacheTiming(with_cache, without),
        computed=CacheTiming(new.shape[1], T),
        keys_read=CacheTiming(_read(model, T, new.shape[1]), _read(model, T, T)),
        held=sum(n * size for n, size in zip(held, width, strict=True)),
        held_by_policy=sum(n * size for n, size in zip(kept, width, strict=True)),
        difference=float((cached - anew).abs().max()),
        same=bool(cached.argmax() == anew.argmax()),
        lost=lost,
    )


def _timed(model: GPT, ids: Tensor, caches: list[KVCache] | None) -> tuple[Tensor, float]:
    """The logits after the last token, and the seconds that they took."""
    _wait(model.device)
    began = time.perf_counter()
    logits = model.logits(model.states(ids, cache=caches)[:, -1])
    _wait(model.device)
    return logits[0].float(), time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _read(model: GPT, T: int, queries: int) -> int:
    """Keys that the last `queries` of T tokens look at, over all layers and key/value heads."""
    positions = range(T - queries, T)
    layers = (sum(min(i + 1, n or T) for i in positions) for n in model.config.windows)
    return model.config.kv_heads * sum(layers)


def _lost(look: LayerInputs, cache: KVCache, window: int, sinks: int) -> list[float]:
    """The eviction loss of the newest token, by head."""
    weights = look.map()[0, :, -1].unsqueeze(1)  # (H, 1, S)
    position = torch.tensor([cache.length - 1], device=weights.device)
    first_key = cache.length - weights.shape[-1]  # a cache may hold the latest keys only
    windows = torch.tensor([window], device=weights.device)
    loss: list[float] = eviction_loss(weights, position, windows, sinks, first_key).flatten().tolist()
    return loss
