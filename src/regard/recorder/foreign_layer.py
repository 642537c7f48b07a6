"""A layer from tensors that another engine has written: certified by the rule of a capture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.attention.tensors import check_floats
from regard.maps import attention_map
from regard.recorder.certificates.certification import certify
from regard.recorder.layer import Layer

REQUIRED = ("q", "k", "v", "output")
OPTIONS = ("mask", "scale", "softcap", "sinks")
FIELDS = (*REQUIRED, *OPTIONS, "name")


def foreign_layer(number: int, fields: Mapping[str, Any]) -> Layer:
    """Return the layer of one attention call, with the evidence for it.

    Arguments:
        number: the layer's number, which errors name.
        fields: "q", "k", "v" and "output", and "mask", "scale", "softcap", "sinks" and "name" if there are
            any; see `Capture.from_tensors`.
    """
    if missing := [name for name in REQUIRED if name not in fields]:
        raise ValueError(f"layers[{number}]: expected {', '.join(REQUIRED)}, got no {', '.join(missing)}")
    if unknown := [name for name in fields if name not in FIELDS]:
        raise ValueError(f"layers[{number}]: expected {', '.join(FIELDS)}, got {', '.join(unknown)}")
    tensors: list[Tensor] = []
    for name in REQUIRED:
        x = check_floats(f"layers[{number}].{name}", fields[name]).detach()
        if x.ndim != 4:
            raise ValueError(f"layers[{number}].{name}: expected (B, H, T, D), got {tuple(x.shape)}")
        tensors.append(x)
    q, k, v, output = tensors
    try:
        m = attention_map(q, k, **{name: fields[name] for name in OPTIONS if name in fields})
        # Every row: the tensors are there, and no model waits for them.
        evidence = certify(m, v, output, verify=True)
    except ValueError as error:
        raise ValueError(f"layers[{number}]: {error}") from error
    name = str(fields.get("name", f"layer {number}"))
    return Layer(number, name, "", m, evidence, range(q.shape[1]), v)
