"""Any module as a source, by an adapter: `regard.capture(model, adapters={"encoder.attn": adapter})`.

An adapter is a function that receives one call of a module and describes its attention:

    def adapter(module, args, kwargs, output):
        q, k, v = …                                   # (B, H, T, D), (B, G, S, D), (B, G, S, E)
        return {"q": q, "k": k, "v": v, "output": …, "mask": regard.causal}

An adapter is checked like any other source: without the output of the attention itself, before any
projection, its layer cannot be certified.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.inputs import check_inputs
from regard.recorder.attention_call import AttentionCall
from regard.recorder.call_receiver import CallReceiver
from regard.recorder.layer import LayerId
from regard.recorder.sources.structure_of_models.model_parts import look_at
from regard.support.override import MethodWrappers, Wrapper

Adapter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]
REQUIRED, OPTIONAL = ("q", "k", "v"), ("output", "lse", "mask", "scale", "softcap", "sinks", "problem")


def layer_ids(
    model: nn.Module, adapters: Mapping[str, Adapter], first: int = 0
) -> dict[str, tuple[LayerId, Adapter]]:
    """Return the id and the adapter of every module that `adapters` names, in the model's order.

    A name may be a pattern such as "blocks.*.attn". Layers are numbered from `first`.
    """
    names = [name for name, _ in model.named_modules()]
    adapter_of: dict[str, Adapter] = {}
    for pattern, adapter in adapters.items():
        if not callable(adapter):
            raise ValueError(
                f"adapters[{pattern!r}]: expected a function of (module, args, kwargs, output), "
                f"got {type(adapter).__name__}"
            )
        # A name with brackets in it does not match itself as a pattern.
        matching = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not matching:
            similar = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
            hint = f"; similar names are {', '.join(map(repr, similar))}" if similar else ""
            raise ValueError(f"adapters: expected names of modules in the model, got {pattern!r}{hint}")
        adapter_of |= dict.fromkeys(matching, adapter)
    ordered = [name for name in names if name in adapter_of]
    return {name: (LayerId(first + i, name), adapter_of[name]) for i, name in enumerate(ordered)}


def attention_names(
    model: nn.Module, adapters: Mapping[str, Callable[..., Any]] | None = None
) -> frozenset[str]:
    """Return the names of the modules whose attention is heard: by their `adapters`, if there are some."""
    if adapters is not None:
        return frozenset(layer_ids(model, adapters))
    return look_at(model).parts.softmax_attention


def attach_adapters(
    model: nn.Module, receiver: CallReceiver, adapters: Mapping[str, Adapter], wrappers: MethodWrappers
) -> None:
    """Add wrappers that call the adapters after every call of their modules."""
    modules, targets = dict(model.named_modules()), layer_ids(model, adapters)
    receiver.expect([layer_id for layer_id, _ in targets.values()])
    for name, (layer_id, adapter) in targets.items():
        wrappers.add(modules[name], "forward", _adapted_forward(modules[name], layer_id, adapter, receiver))


def _adapted_forward(
    module: nn.Module, layer_id: LayerId, adapter: Adapter, receiver: CallReceiver
) -> Wrapper:
    """Return a wrapper of a module's `forward` that has its adapter describe every call to the receiver."""

    def adapted(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if receiver.selects(layer_id):
            # An adapter may compute projections again, whose graph nobody needs.
            with torch.no_grad():
                description = adapter(module, args, kwargs, result)
                # An adapter returns None for a call that computed no attention.
                if description is not None:
                    call = _checked_call(f"adapters[{layer_id.name!r}]", description)
                    receiver.record(layer_id, call)
        return result

    return adapted


def _checked_call(name: str, description: Any) -> AttentionCall:
    """Check what an adapter returned and turn it into a call; `name` begins every error message."""
    # An adapter may also return a NamedTuple, such as an `AttentionCall`.
    fields = description._asdict() if hasattr(description, "_asdict") else description
    expected = ", ".join(REQUIRED) + " and optionally " + ", ".join(OPTIONAL)
    if not isinstance(fields, Mapping):
        raise ValueError(f"{name}: expected a dict of {expected}, got {type(description).__name__}")
    # The fields of a NamedTuple that are not given are None.
    fields = {key: x for key, x in fields.items() if x is not None}
    if unknown := sorted(fields.keys() - {*REQUIRED, *OPTIONAL}):
        raise ValueError(f"{name}: expected {expected}, got also {', '.join(map(str, unknown))}")
    if missing := [key for key in REQUIRED if key not in fields]:
        raise ValueError(f"{name}: expected {expected}; missing: {', '.join(missing)}")

    # Tensors of a single sequence get a batch dimension.
    for key in (*REQUIRED, "output", "lse"):
        x = fields.get(key)
        rank = 3 if key == "lse" else 4
        if x is not None and (not isinstance(x, Tensor) or x.ndim not in (rank - 1, rank)):
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name}: {key}: expected (batch, heads, length, width), got {shape}")
        if x is not None and x.ndim == rank - 1:
            fields[key] = x[None]

    options: dict[str, Any] = {key: fields.get(key) for key in ("mask", "scale", "softcap", "sinks")}
    try:
        _, mask, scale = check_inputs(fields["q"], fields["k"], fields["v"], **options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    options |= {"mask": mask, "scale": scale}

    # The attention is computed here too, for the shapes to expect and for what the adapter left out.
    computed, lse = attend(fields["q"], fields["k"], fields["v"], **options, return_lse=True)
    problem = fields.get("problem")
    if "output" not in fields:
        problem = problem or "its adapter gives no output to compare with"
    elif fields["output"].shape != computed.shape:
        raise ValueError(
            f"{name}: output: expected {tuple(computed.shape)}, before any projection, "
            f"got {tuple(fields['output'].shape)}"
        )
    if "lse" in fields and fields["lse"].shape != lse.shape:
        raise ValueError(f"{name}: lse: expected {tuple(lse.shape)}, got {tuple(fields['lse'].shape)}")
    return AttentionCall(
        fields["q"],
        fields["k"],
        fields["v"],
        fields.get("output", computed),
        fields.get("lse", lse),
        **options,
        own_lse="lse" in fields,
        problem=problem,
        against="the output that its adapter gave",
    )
