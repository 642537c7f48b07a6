"""Any module as a source, by an adapter: `regard.capture(model, adapters={"encoder.attn": adapter})`.

An adapter is a function that receives one call of a module and describes its attention:

    def adapter(module, args, kwargs, output):
        q, k, v = …                                   # (B, H, T, D), (B, G, S, D), (B, G, S, E)
        return {"q": q, "k": k, "v": v, "output": …, "mask": regard.causal}

An adapter is checked like any other source: without the output of the attention itself, before any
projection, its layer cannot be certified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.inputs import check_inputs
from regard.recorder.attention_call import AttentionCall
from regard.recorder.call_receiver import CallReceiver
from regard.recorder.layer import LayerId
from regard.recorder.sources.structure_of_models.model_parts import Adapter, adapted_layers
from regard.support.override import MethodWrappers, Wrapper

REQUIRED, OPTIONAL = ("q", "k", "v"), ("output", "lse", "mask", "scale", "softcap", "sinks", "problem")


def attach_adapters(
    model: nn.Module, receiver: CallReceiver, adapters: Mapping[str, Adapter], wrappers: MethodWrappers
) -> None:
    """Add wrappers that call the adapters after every call of their modules."""
    modules, targets = dict(model.named_modules()), adapted_layers(model, adapters)
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
