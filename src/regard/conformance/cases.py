"""A case: a question of attention with what the index says of it, its inputs and its right answers.

Which cases there are says `cases.toml`; their shapes draw their numbers, which depend on a seed and on the
name of the case alone. Every number of q, k and v is a multiple of 1/32 between -2 and 2, which float16 and
bfloat16 hold exactly: an implementation in any precision gets the same numbers, and its error is its own.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.oracle import expected_answer
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject.kernel_layouts import pack

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
BLOCK = 64  # keys that a kernel may take at a time: a case with more has several blocks, and no weights
WIDE = 64  # the largest width of a head that many kernels take in one piece


@dataclass(frozen=True)
class ConformanceCase:
    """A question with what the index says of it."""

    question: Question
    what: str = ""  # what it tests beyond its features
    dtype: str = "float32"
    scale: float | None = None
    pieces: tuple[int, ...] | None = None  # the tokens arrive in pieces of these sizes, with a cache
    large: bool = False  # whether exponentials of scores overflow float32, or all of a row are 0 there

    @property
    def name(self) -> str:
        """The case's name, which is a part of the names of its tensors."""
        return self.question.name

    @property
    def wiring(self) -> Wiring:
        """What the oracle is told beside the question."""
        return Wiring(scale=self.scale)

    @property
    def is_packed(self) -> bool:
        """Whether its sequences stand one after the other, without padding."""
        return self.question.lengths is not None

    def features(self) -> tuple[str, ...]:
        """Return what the case has beside queries, keys and values: a kernel may be wrong in any two."""
        question = self.question
        lengths = list(zip(*question.all_lengths(), strict=True))  # of queries and keys
        with torch.no_grad():
            lse = expected_answer(question, self.wiring).lse
        assert lse is not None, "the oracle's answers have it"
        has = {
            "grouped": question.k.shape[1] < question.q.shape[1],
            "packed": self.is_packed,
            "cache": self.pieces is not None,
            "fewer queries": any(T < S for T, S in lengths),
            "more queries": any(T > S for T, S in lengths),
            "empty rows": bool((lse == -torch.inf).any()),
            "blocks": question.k.shape[2] > BLOCK,
            "wide": question.q.shape[3] > WIDE,
            "scale": self.scale is not None,
            "large": self.large,
            "half": self.dtype != "float32",
        }
        return (*question.options(), *(name for name, is_there in has.items() if is_there))

    def tensors(self) -> dict[str, Tensor]:
        """Return the inputs by name, as they are written."""
        question, dtype = self.question, DTYPES[self.dtype]
        q, k, v = (x.to(dtype) for x in (question.q, question.k, question.v))
        if question.lengths is not None:
            queries, keys = question.lengths
            q, k, v = pack(q, queries), pack(k, keys), pack(v, keys)
        tensors = {"q": q, "k": k, "v": v}
        for name in ("mask", "padding"):
            if (mask := getattr(question, name)) is not None:
                tensors[name] = mask.to(torch.uint8)
        for name in ("bias", "sinks"):
            if (numbers := getattr(question, name)) is not None:
                tensors[name] = numbers.to(torch.float32)
        return tensors

    def answers(self) -> dict[str, Tensor]:
        """Return the right answers in float64 by name: output, lse, weights, and gradients.

        The gradients are those of the sum of output times `upstream`.
        """
        question = self.question.tracked(torch.float64)
        right = expected_answer(question, self.wiring)
        output = right.output if right.free is None else right.output.masked_fill(right.free, 0.0)
        upstream = NumberStream(f"{self.name} upstream").draw(*output.shape)
        gradients = torch.autograd.grad((output * upstream).sum(), [question.q, question.k, question.v])
        answers = {"output": output, "upstream": upstream}
        answers |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
        if right.lse is not None:
            answers["lse"] = right.lse[..., None]
        if question.lengths is None:
            if question.k.shape[2] <= BLOCK:
                assert right.weights is not None
                answers["weights"] = right.weights
        else:
            queries, keys = question.lengths
            sides = {"dk": keys, "dv": keys}
            answers = {name: pack(x, sides.get(name, queries)) for name, x in answers.items()}
        if "lse" in answers:
            answers["lse"] = answers["lse"][..., 0]
        return {name: x.detach() for name, x in answers.items()}


class NumberStream:
    """Multiples of 1/32 between -2 and 2, the same on every machine.

    The numbers are those of `random.Random(seed).randint(-64, 64) / 32`, which other languages can follow:
    the highest eight bits of each word of the Mersenne Twister, less 64, where these are at most 128.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._drawn = torch.empty(0, dtype=torch.uint8, device="cpu")

    def draw(self, *shape: int) -> Tensor:
        """Return the next numbers, in this shape."""
        count = int(torch.Size(shape).numel())
        while len(self._drawn) < count:
            words = 2 * count + 64
            data = bytearray(self._random.getrandbits(32 * words).to_bytes(4 * words, "little"))
            highest = torch.frombuffer(data, dtype=torch.uint8)[3::4]
            self._drawn = torch.cat([self._drawn, highest[highest <= 128]])
        taken, self._drawn = self._drawn[:count], self._drawn[count:]
        return (taken.to(torch.float64) - 64).view(shape) / 32


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
