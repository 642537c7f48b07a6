"""Finds the modules of a model that are linear attention or state-space layers which capture can read.

A module is one if its code calls a function whose arguments are known (`linear_functions.py`), or if it is
lightning attention (`lightning_attention.py`), which has its recurrence in its own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from regard.recorder.layer import LayerId
from regard.recorder.sources.structure_of_models.code_names import called_names
from regard.recorder.sources.structure_of_models.layer_names import assign_layer_ids
from regard.recorder.sources.structure_of_models.structure import modules_of, remembered

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
