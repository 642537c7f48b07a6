"""The cases: questions of attention that show the mistakes of the catalogue, and their right answers.

Every input is a multiple of 1/32 between -2 and 2, which float16 and bfloat16 hold exactly: an
implementation in any precision gets the same numbers, and its error is its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.oracle import expected_answer
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject.layouts.packed_sequences import pack

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LARGE = 24.0  # what queries are multiplied by, so that exponentials of scores overflow float32


@dataclass(frozen=True)
class ConformanceCase:
    """A question with what the index says of it."""

    question: Question
    what: str  # in a sentence
    dtype: str = "float32"
    scale: float | None = None
    pieces: tuple[int, ...] | None = None  # the tokens arrive in pieces of these sizes, with a cache

    @property
    def name(self) -> str:
        """The case's name, which is a part of the names of its tensors."""
        return self.question.name

    @property
    def wiring(self) -> Wiring:
        """What the oracle is told beside the question."""
        return Wiring(scale=self.scale)

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
        upstream = grid(random.Random(f"{self.name} upstream"), *output.shape)
        gradients = torch.autograd.grad((output * upstream).sum(), [question.q, question.k, question.v])
        answers = {"output": output, "upstream": upstream}
        answers |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
        if right.lse is not None:
            answers["lse"] = right.lse[..., None]
        if question.lengths is None:
            assert right.weights is not None
            answers["weights"] = right.weights
        else:
            queries, keys = question.lengths
            sides = {"dk": keys, "dv": keys}
            answers = {name: pack(x, sides.get(name, queries)) for name, x in answers.items()}
        if "lse" in answers:
            answers["lse"] = answers["lse"][..., 0]
        return {name: x.detach() for name, x in answers.items()}


def grid(draw: random.Random, *shape: int) -> Tensor:
    """Return multiples of 1/32 between -2 and 2, the same on every machine."""
    count = int(torch.Size(shape).numel())
    return torch.tensor(
        [draw.randint(-64, 64) / 32 for _ in range(count)], dtype=torch.float64, device="cpu"
    ).view(shape)


def make_cases(seed: int = 0) -> list[ConformanceCase]:
    """Return all cases; another seed draws other numbers."""

    def ask(name: str, *, B: int = 2, H: int = 4, G: int | None = None, T: int = 7, S: int | None = None,
            D: int = 10, E: int = 6, **fields: Any) -> Question:  # fmt: skip
        draw = random.Random(f"{seed} {name}")
        keys = T if S is None else S
        q, k, v = (
            grid(draw, B, heads, length, width)
            for heads, length, width in ((H, T, D), (G or H, keys, D), (G or H, keys, E))
        )
        return replace(Question(name, q, k, v), flag=bool(fields.get("causal")), **fields)

    def visible(name: str, *shape: int) -> Tensor:
        draw = random.Random(f"{seed} {name} mask")
        mask = torch.tensor(
            [draw.random() < 0.6 for _ in range(torch.Size(shape).numel())], device="cpu"
        ).view(shape)
        mask[..., 0] = True  # no row is empty
        return mask

    def numbers(name: str, *shape: int) -> Tensor:
        return grid(random.Random(f"{seed} {name} numbers"), *shape)

    tokens = torch.arange(7, device="cpu") < torch.tensor([[6], [4]], device="cpu")
    causal: dict[str, Any] = {"causal": True}
    large = ask("large-scores", **causal)
    empty = visible("empty-rows", 7, 7)
    empty[[0, 3]] = False
    cases = [
        ConformanceCase(ask("plain"), "no option"),
        ConformanceCase(ask("square", D=10, E=10), "values as wide as keys"),
        ConformanceCase(ask("causal", **causal), "causal, as many queries as keys"),
        ConformanceCase(ask("decode", T=3, S=8, **causal), "causal, the queries are the last of the keys"),
        ConformanceCase(ask("one-query", T=1, S=8, **causal), "causal, one query, as in generation"),
        ConformanceCase(ask("cross", T=5, S=9), "fewer queries than keys, no mask"),
        ConformanceCase(ask("mask", mask=visible("mask", 7, 7)), "a boolean mask (T, S)"),
        ConformanceCase(ask("item-mask", mask=visible("item-mask", 2, 1, 7, 7)), "a mask for each item"),
        ConformanceCase(ask("padding", padding=tokens), "keys that are padding"),
        ConformanceCase(ask("bias", bias=numbers("bias", 7, 7)), "numbers that are added to the scores"),
        ConformanceCase(ask("causal-padding", padding=tokens, **causal), "causal, and padding"),
        ConformanceCase(
            ask("causal-mask", mask=visible("causal-mask", 7, 7), **causal), "causal, and a mask"
        ),
        ConformanceCase(ask("window", T=12, window=4, **causal), "causal, the 4 latest keys"),
        ConformanceCase(ask("window-sides", T=12, window=4, ahead=2), "a window to both sides"),
        ConformanceCase(ask("softcap", softcap=1.5, **causal), "causal, with a soft cap"),
        ConformanceCase(ask("sinks", sinks=numbers("sinks", 4), **causal), "a sink logit for each head"),
        ConformanceCase(ask("grouped", G=2, **causal), "two key/value heads for four query heads"),
        ConformanceCase(ask("one-group", G=1, **causal), "one key/value head for four query heads"),
        ConformanceCase(ask("grouped-sinks", G=2, sinks=numbers("grouped-sinks", 4)), "both"),
        ConformanceCase(ask("several-blocks", B=1, H=1, T=150, **causal), "150 tokens: several blocks"),
        ConformanceCase(
            ask("packed", B=3, H=2, T=6, S=6, lengths=((5, 3, 6), (5, 3, 6)), layout="packed", **causal),
            "three sequences one after the other, causal",
        ),
        ConformanceCase(
            ask("packed-cross", B=3, H=2, T=6, S=11, lengths=((5, 3, 6), (7, 3, 11)), layout="packed"),
            "three sequences with other numbers of keys than queries",
        ),
        ConformanceCase(
            ask("cache", T=8, E=10, **causal), "tokens in pieces, with a cache", pieces=(3, 1, 2, 2)
        ),
        ConformanceCase(ask("scale"), "a scale that is not 1/√D", scale=0.5),
        ConformanceCase(ask("empty-rows", mask=empty), "two queries that see no key: their output is 0"),
        ConformanceCase(
            replace(large, q=large.q * LARGE), "scores whose exponentials overflow float32, causal"
        ),
    ]
    for dtype in ("float16", "bfloat16"):
        cases.append(ConformanceCase(ask(f"{dtype}-plain"), f"no option, in {dtype}", dtype))
        cases.append(ConformanceCase(ask(f"{dtype}-causal", **causal), f"causal, in {dtype}", dtype))
    return cases
