"""Listens to lightning attention (MiniMax), which computes its recurrence in the module's own code.

Its queries, keys and values are what its projection returns, after its activation, and its output is what its
norm receives. The certificate compares the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.recorder.attention_call import AttentionCall, Recurrence
from regard.recorder.sources.linear_attention.linear_modules import is_lightning
from regard.support.override import MethodWrappers

Take = Callable[[nn.Module, AttentionCall], None]


@contextmanager
def watched(modules: Iterable[nn.Module], take: Take) -> Iterator[None]:
    """Inside the block, `take` receives the calls of those modules that are lightning attention."""
    wrappers = MethodWrappers()
    for module in modules:
        if is_lightning(module):
            run = LightningRun(module, take)
            wrappers.add(module, "forward", run.run_module)
            wrappers.add(module.qkv_proj, "forward", run.note_projection)
            wrappers.add(module.norm, "forward", run.note_output)
    with wrappers.active():
        yield


class LightningRun:
    """What is heard of one module while it runs."""

    def __init__(self, module: Any, take: Take) -> None:
        self.module, self.take = module, take
        self.projected: Tensor | None = None
        self.output: Tensor | None = None

    def note_projection(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the projection and note what it returns."""
        self.projected = forward(*args, **kwargs)
        return self.projected

    def note_output(self, forward: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Note what the norm receives and run it."""
        self.output = x.detach()
        return forward(x, *args, **kwargs)

    def run_module(
        self,
        forward: Callable[..., Any],
        hidden_states: Tensor,
        position_embeddings: Any = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run the module and pass on what was heard."""
        read_state = functools.partial(_state, past_key_values, getattr(self.module, "layer_idx", None))
        # The cache gets the new state from the module, and the old one is gone then.
        before = read_state()
        result = forward(
            hidden_states,
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            **kwargs,
        )
        # Compiled code is traced and not run.
        if not torch.compiler.is_compiling() and self.projected is not None and self.output is not None:
            with torch.no_grad():
                self.take(self.module, self._call(attention_mask, before, read_state()))
        self.projected = self.output = None
        return result

    def _call(self, mask: Tensor | None, before: Tensor | None, after: Tensor | None) -> AttentionCall:
        module, projected, output = self.module, self.projected, self.output
        assert projected is not None
        assert output is not None
        B, T, _ = projected.shape
        heads, width = module.num_attention_heads, module.head_dim
        qkv = module.act_fn(projected.detach())
        # MiniMax sets padding to zero after the activation (`apply_mask_to_padding_states`).
        if mask is not None:
            qkv = (qkv * mask[:, :, None]).to(qkv.dtype)
        # MiniMax has q, k and v of a head next to one another, not those of all heads.
        q, k, v = qkv.view(B, T, heads, 3 * width).transpose(1, 2).split(width, -1)
        slope = module.slope_rate.detach().float().view(1, heads, 1)
        decay = -slope.expand(B, heads, T)
        recurrence = Recurrence(decay, initial_state=before, final_state=after)
        return recurrence.call(q, k, v, output.view(B, T, heads, width).transpose(1, 2))


def _state(cache: Any, layer: int | None) -> Tensor | None:
    """Return a copy of the state that a cache holds for a layer, or None if it holds none."""
    # Only MiniMax's own cache has it; others hold no state.
    if cache is None or not hasattr(cache, "get_linear_cache"):
        return None
    state = cache.get_linear_cache(layer)
    return state.detach().clone() if isinstance(state, Tensor) else None
