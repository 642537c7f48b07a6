"""Finds the modules of a model that are linear attention or state-space layers which capture can read.

A module is one if its code calls a function whose arguments are known (`linear_functions.py`), or if it is
lightning attention (MiniMax), which has its recurrence in its own code: its queries, keys and values are what
its projection returns, after its activation, and its output is what its norm receives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.recorder.attention_call import AttentionCall, Recurrence
from regard.recorder.layer import LayerId
from regard.recorder.sources.structure_of_models.code_names import called_names
from regard.recorder.sources.structure_of_models.layer_names import assign_layer_ids
from regard.recorder.sources.structure_of_models.structure import modules_of, remembered
from regard.support.override import MethodWrappers

GATED_DELTA_RULE = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
    "chunk_kda",
    "fused_recurrent_kda",
)
"""Functions of (q, k, v, g, beta), with tensors (B, T, H, D), that compute a gated delta rule."""
MAMBA2_SCAN = ("mamba2_chunk_scan", "mamba_chunk_scan_combined")
"""Functions that compute Mamba-2's recurrence over a text."""
MAMBA2_STEP = ("mamba2_selective_state_update",)
"""Functions that compute it for one more token."""
MAMBA2_WHOLE = ("mamba2_split_conv1d_scan_combined",)
"""Functions that compute a whole layer of Mamba-2 in one kernel, where nothing can be heard."""
FUNCTIONS = (*GATED_DELTA_RULE, *MAMBA2_SCAN, *MAMBA2_STEP, *MAMBA2_WHOLE)
LIGHTNING_PARTS = ("qkv_proj", "act_fn", "norm", "slope_rate", "num_attention_heads", "head_dim")
# Where each linear layer stands next to a layer of attention, as in Falcon-H1 and Zamba2.
LINEAR_STACK = "linear"


def is_lightning(module: nn.Module) -> bool:
    """Whether a module is lightning attention, as MiniMax has it."""
    # By its name and its parts: its recurrence is in its own code, where no function can be intercepted.
    return "LightningAttention" in type(module).__name__ and all(
        hasattr(module, name) for name in LIGHTNING_PARTS
    )


def linear_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers of a model that can be read, by name."""
    names = _linear_names(model)
    return {name: modules_of(model)[name] for name in names}


@remembered
def _linear_names(model: nn.Module) -> tuple[str, ...]:
    return tuple(
        name
        for name, module in model.named_modules()
        if is_lightning(module) or not called_names(cast(Any, type(module))).isdisjoint(FUNCTIONS)
    )


def linear_layer_ids(model: nn.Module, attention: Mapping[str, nn.Module]) -> dict[nn.Module, LayerId]:
    """Return the layer id of each linear layer of a model, whose attention modules are `attention`.

    They are numbered in one sequence with the layers of attention, if each has a number of its own; where a
    block holds both, the linear ones are in the stack "linear".
    """
    linear = linear_modules(model)
    names = {name: module for name, module in model.named_modules() if name in linear or name in attention}
    together, alone = assign_layer_ids(names), assign_layer_ids(attention)
    if all(together[module] == layer_id for module, layer_id in alone.items()):
        return {module: together[module] for module in linear.values()}
    return {
        module: layer_id._replace(stack=".".join(filter(None, (layer_id.stack, LINEAR_STACK))))
        for module, layer_id in assign_layer_ids(linear).items()
    }


Take = Callable[[nn.Module, AttentionCall], object]


@contextmanager
def watch_lightning(modules: Iterable[nn.Module], take: Take) -> Iterator[None]:
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
