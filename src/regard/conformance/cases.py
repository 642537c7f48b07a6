"""A case: a question of attention with what the index says of it, its inputs and its right answers.

Which cases there are says `cases.toml`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

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
