"""`certify`: the certificate for weights that somebody else made, and for layers that another engine wrote.

The definition is that of a capture, in `output_comparison.examine`. Here are the checks of the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.masks.tensor_masks import TensorMask
from regard.attention.tensors import check_floats
from regard.maps import AttentionMap, attention_map
from regard.maps.index import Axes
from regard.recorder.certificates.certificate import ROWS, Evidence, sampled_rows
from regard.recorder.certificates.output_comparison import at_rows, examine
from regard.recorder.layer import Layer

OUTPUT = "the output"
NEGATIVE = "some of its weights are negative, which no softmax gives"


def certify(weights: AttentionMap | Tensor, v: Tensor, output: Tensor, *, verify: bool = False) -> Evidence:
    """Compare attention weights with the output that they are said to have produced.

    The weights are certified if each row of them sums to 1 and `weights @ v` is the output to within
    rounding. This is the certificate of a capture, for weights from anywhere: another library, a kernel of
    your own, a file.

    - `weights`: an `AttentionMap`, or a tensor (B, H, T, S); the batch and the heads may be absent.
    - `v`: the values (B, G, S, E), where the number of heads G divides H.
    - `output`: the output of the attention itself (B, H, T, E), before any projection.
    - `verify`: whether to compare every row, and not a sample of 64.

    Returns the `Evidence`; it prints as a sentence, and `.certified` is the answer.

    >>> import torch, regard
    >>> q, k, v = torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> weights = (q @ k.mT / 2).softmax(-1)
    >>> regard.certify(weights, v, regard.attend(q, k, v)).certified
    True
    >>> regard.certify(weights.softmax(-1), v, regard.attend(q, k, v)).certified
    False
    """
    is_map = isinstance(weights, AttentionMap)
    shape = tuple(weights.shape) if is_map else tuple(check_floats("weights", weights).shape)
    if not 2 <= len(shape) <= 4:
        raise ValueError(f"weights: expected (B, H, T, S) or its last two or three dimensions, got {shape}")
    for name, x in (("v", v), ("output", output)):
        check_floats(name, x)
        if x.device != weights.device:
            raise ValueError(
                f"{name}: expected it on {weights.device}, where the weights are, got {x.device}"
            )
    B, H, T, S = (1,) * (4 - len(shape)) + shape
    values = _values(v, shape).detach().reshape(B, -1, S, v.shape[-1])
    model_output = _output(output, (*shape[:-1], v.shape[-1])).detach().reshape(B, H, T, -1)
    if isinstance(weights, AttentionMap):
        # The map of one head has fewer axes, and the comparison takes all four.
        m = weights._with(axes=Axes())
        if values.shape[1] != m.k.shape[1]:  # a head of both for each query head, then
            values, k = (x.repeat_interleave(H // x.shape[1], 1) for x in (values, m.k))
            m = m._with(k=k)
        return examine(m, values, model_output, against=OUTPUT, max_rows=None if verify else ROWS)
    rows = sampled_rows(T, T if verify else ROWS, weights.device)
    own = at_rows(weights.detach().reshape(B, H, T, S), rows)
    # Weights of both signs may sum to 1 and give the right output.
    problem = NEGATIVE if bool((weights < 0).any()) else None
    evidence = examine(
        _map_of(own), values, at_rows(model_output, rows), problem=problem, against=OUTPUT, max_rows=None
    )
    # Stored weights are rounded one by one, and not by a kernel's exp.
    room = evidence.row_sums_tolerance + torch.finfo(own.dtype).eps / 2
    return replace(
        evidence, total_rows=T, row_sums_tolerance=room, mask="weights given as a tensor", window=None
    )


def _map_of(weights: Tensor) -> AttentionMap:
    """Return the map whose scores are the logarithms of weights (B, H, T, S), beside queries of zeros."""
    wide = weights.to(working_dtype(weights.dtype))
    q, k = (weights.new_zeros(*lead, 1) for lead in (weights.shape[:3], (len(weights), 1, weights.shape[3])))
    lse = wide.new_zeros(weights.shape[:3]).masked_fill_((weights == 0).all(-1), -torch.inf)
    return AttentionMap(q=q, k=k, lse=lse, mask=TensorMask(wide.abs().log()), scale=1.0)


def _values(v: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return v, or raise ValueError if it does not fit weights of this shape."""
    fits = v.ndim == len(shape) and v.shape[-2] == shape[-1] and tuple(v.shape[:-3]) == shape[:-3]
    if fits and len(shape) > 2:
        fits = v.shape[-3] > 0 and shape[-3] % v.shape[-3] == 0
    if not fits:
        lead = {2: "", 3: f"{shape[0]}, ", 4: f"{', '.join(map(str, shape[:2]))}, "}[len(shape)]
        fewer = ", or fewer heads that divide them" if lead else ""
        raise ValueError(
            f"v: expected ({lead}{shape[-1]}, E){fewer}, beside weights {shape}, got {tuple(v.shape)}"
        )
    return v


def _output(output: Tensor, expected: tuple[int, ...]) -> Tensor:
    """Return the output, or raise ValueError that says how to bring it into this shape."""
    if tuple(output.shape) == expected:
        return output
    hint = ""
    if output.ndim == len(expected) > 2 and tuple(output.transpose(-2, -3).shape) == expected:
        hint = ": pass .transpose(-2, -3)"
    elif output.numel() == math.prod(expected):
        hint = ": split its heads, if this is the output of the attention before any projection"
    raise ValueError(f"output: expected {expected}, got {tuple(output.shape)}{hint}")


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
