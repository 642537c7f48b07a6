"""The cases of `cases.toml`, whose shapes draw their numbers.

The numbers depend on a seed and on the name of the case alone. Every number of q, k and v is a multiple of
1/32 between -2 and 2, which float16 and bfloat16 hold exactly: an implementation in any precision gets the
same numbers, and its error is its own.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.conformance.cases import ConformanceCase, NumberStream

# What inputs are multiplied by where they are large, so that exponentials of scores overflow float32.
LARGE = {"q": 24.0, "bias": 64.0, "sinks": 64.0}


def make_cases(seed: int = 0) -> list[ConformanceCase]:
    """Return all cases; another seed draws other numbers."""
    table = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
    return [draw_case(seed, name, **arguments) for name, arguments in table.items()]


def draw_case(
    seed: int,
    name: str,
    what: str = "",
    *,
    dtype: str = "float32",
    scale: float | None = None,
    pieces: list[int] | None = None,
    large: str = "",
    opposite: bool = False,
    mask: str = "",
    empty: tuple[int, ...] = (),
    padding: tuple[tuple[int, int], ...] = (),
    bias: str = "",
    sinks: bool = False,
    lengths: list[list[int]] | None = None,
    **options: Any,
) -> ConformanceCase:
    """Return a case.

    Arguments:
        seed: another seed draws other numbers.
        name: the case's name.
        what: what it tests beyond its features.
        dtype: that of q, k and v.
        scale: a scale that is not 1/√D.
        pieces: how many tokens arrive at a time, with a cache.
        large: the inputs that are large, with a space between two.
        opposite: whether q is negative and k positive, so that all scores are far below 0.
        mask: the axes of a mask, "TS", "B1TS" or "BHTS".
        empty: the queries that see no key by the mask.
        padding: for each item the first place of its tokens, and that after the last.
        bias: the axes of numbers that are added to the scores, "TS" or "HTS".
        sinks: whether there are sink logits.
        lengths: the queries and the keys of packed sequences.
        options: its sizes B, H, G, T, S, D and E, and further fields of a `Question`.
    """
    packed: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    if lengths is not None:
        packed = queries, keys = tuple(lengths[0]), tuple(lengths[1])
        options = {"B": len(queries), "T": max(queries), "S": max(keys), "layout": "packed"} | options
    sizes = {
        axis: options.pop(axis, default) for axis, default in zip("BHTDE", (2, 4, 7, 10, 6), strict=True)
    }
    sizes |= {"G": options.pop("G", sizes["H"]), "S": options.pop("S", sizes["T"]), "1": 1}
    inputs, numbers = NumberStream(f"{seed} {name}"), NumberStream(f"{seed} {name} numbers")

    def shape(axes: str) -> list[int]:
        return [sizes[axis] for axis in axes]

    tensors: dict[str, Any] = {
        x: inputs.draw(*shape(axes)) for x, axes in (("q", "BHTD"), ("k", "BGSD"), ("v", "BGSE"))
    }
    if mask:
        tensors["mask"] = _visible(f"{seed} {name} mask", shape(mask))
        if empty:
            tensors["mask"][[*empty]] = False
    if padding:
        places = torch.arange(sizes["S"], device="cpu")
        tensors["padding"] = torch.stack([(places >= start) & (places < end) for start, end in padding])
    if sinks:
        tensors["sinks"] = numbers.draw(sizes["H"])
    if bias:
        tensors["bias"] = numbers.draw(*shape(bias))
    for x in large.split():
        tensors[x] = tensors[x] * LARGE[x]
    if opposite:
        tensors |= {"q": -tensors["q"].abs(), "k": tensors["k"].abs()}
    question = Question(name, tensors.pop("q"), tensors.pop("k"), tensors.pop("v"), lengths=packed)
    question = replace(question, flag=bool(options.get("causal")), **tensors, **options)
    return ConformanceCase(
        question, what, dtype, scale, None if pieces is None else tuple(pieces), large=bool(large)
    )


def _visible(seed: str, shape: list[int]) -> Tensor:
    """Return a mask in which every query sees the first key, and six of ten others."""
    draw = random.Random(seed)
    numbers = [draw.random() < 0.6 for _ in range(torch.Size(shape).numel())]
    mask = torch.tensor(numbers, device="cpu").view(shape)
    mask[..., 0] = True  # no row is empty
    return mask
