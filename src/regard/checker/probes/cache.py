"""With a cache or without: the same output, however the sequence is cut.

The module's own way of continuing a sequence is guessed where it is a usual one. Otherwise the caller writes
three lines, and the report says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.catalogue import mistake
from regard.checker.oracle.oracle import distance
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import RIGHT, AttentionVariant
from regard.checker.session import CheckSession
from regard.checker.subject.adapt import of_transformers
from regard.checker.subject.construct import annotated_class
from regard.checker.understand import TOLERANCE, Intent

Step = Callable[[nn.Module, Tensor, Any], tuple[Any, Any]]
ADAPTER = (
    "write how a sequence is continued, def step(module, x, cache): y, cache = module(x, cache=cache); "
    "return y, cache, and pass check(…, cached=step); the first call gets cache=None"
)


def probe_cache(exam: CheckSession) -> None:
    """Continue a sequence at every split, and token by token."""
    subject = exam.subject
    step: Step | None = exam.options.get("cached")
    wanted = {"cache", "start"} & subject.arguments.keys()
    if exam.module is None or not (step or wanted):
        return
    if not exam.understood.causal and not of_transformers(subject):
        exam.left_out("cache", "it is not causal, so earlier outputs depend on later tokens")
        return
    question = exam.cases.plain("cache", T=6, seed=80).to(exam.understood.dtype)
    steps = [step] if step is not None else list(_guesses(exam))
    trouble = ""
    for attempt in steps:
        try:
            with torch.no_grad():
                outputs = _cut(exam, attempt, question)
                whole = _whole(exam, attempt, question)
        except Exception as error:  # a way of calling that this module does not have
            trouble = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
            continue
        _judge(exam, question, outputs, whole)
        return
    if step is not None:
        exam.failed("cache", f"the adapter raised {trouble}")
    else:
        exam.left_out(
            "cache", f"how `{subject.arguments[min(wanted)]}` works could not be guessed: {ADAPTER}"
        )


def _cut(exam: CheckSession, step: Step, question: Question) -> dict[tuple[int, ...], Tensor]:
    """The output in pieces: cut once at every place, and cut everywhere."""
    x = question.q
    T = x.shape[1]
    cuts = [(at, T - at) for at in range(1, T)] + [(1,) * T, (2,) * (T // 2)]
    outputs = {}
    for cut in cuts:
        cache, pieces = None, []
        module = exam.subject.at(question.dtype)
        assert module is not None
        for piece in torch.split(x, list(cut), 1):
            y, cache = step(module, piece.contiguous(), cache)
            pieces.append(y[0] if isinstance(y, tuple) else y)
        outputs[cut] = torch.cat(pieces, 1)
        if outputs[cut].shape[:2] != x.shape[:2]:
            raise ValueError(f"continued in pieces, the output has shape {tuple(outputs[cut].shape)}")
    return outputs


def _whole(exam: CheckSession, step: Step, question: Question) -> Tensor:
    """The output in one piece, without a cache where the module can do without."""
    if of_transformers(exam.subject):  # which needs to be told that it is causal
        module = exam.subject.at(question.dtype)
        assert module is not None
        output: Tensor = step(module, question.q, None)[0]
        return output
    answer = exam.subject.ask(question).answer
    assert answer is not None
    return answer.output


def _judge(
    exam: CheckSession, question: Question, outputs: dict[tuple[int, ...], Tensor], whole: Tensor
) -> None:
    wrong = {cut: e for cut, out in outputs.items() if not (e := distance(out, whole)) < TOLERANCE}
    if not wrong:
        exam.passed("cache", f"the same output at every one of {len(outputs)} ways to cut the sequence")
        return
    cut, error = max(wrong.items(), key=lambda item: item[1])
    detail = f"cut as {_shown(cut)}, the output differs by {error:.1g}"
    detail += f" ({len(wrong)} of {len(outputs)} cuts differ)"
    intent = exam.right
    for name in ("top-left-causal", "square-mask-sliced-by-columns", "cache-ignored", "no-mask"):
        if intent is not None and _explained(name, question, intent, outputs):
            exam.found(
                "cache",
                detail,
                name,
                f"In pieces your output equals attention {mistake(name).what}; {detail}.",
            )
            return
    exam.failed("cache", detail)


def _shown(cut: tuple[int, ...]) -> str:
    return "one token at a time" if set(cut) == {1} else " + ".join(str(n) for n in cut)


def _explained(name: str, question: Question, intent: Intent, outputs: dict[tuple[int, ...], Tensor]) -> bool:
    """Whether the mistake gives the same pieces, for every cut."""
    changes = mistake(name).changes
    recipe = replace(RIGHT, **changes[0]) if changes else RIGHT
    return all(
        distance(out, _in_pieces(recipe, question, intent, cut, forget=name == "cache-ignored")) < TOLERANCE
        for cut, out in outputs.items()
    )


def _in_pieces(
    recipe: AttentionVariant, question: Question, intent: Intent, cut: tuple[int, ...], *, forget: bool
) -> Tensor:
    x = question.q.double()
    pieces, start = [], 0
    for size in cut:
        now, known = x[:, start : start + size], x[:, start if forget else 0 : start + size]
        asked = intent.read(replace(question, q=now, k=known, v=known))
        with torch.no_grad():
            pieces.append(recipe.answer(asked, intent.wiring).output)
        start += size
    return torch.cat(pieces, 1)


def _guesses(exam: CheckSession) -> list[Step]:
    """The usual ways in which a module continues a sequence."""
    known, subject = exam.subject.arguments, exam.subject
    if of_transformers(subject):
        return [_transformers_step(exam)]
    guesses: list[Step] = []
    if "cache" in known:
        name = known["cache"]
        assert exam.module is not None
        kind = annotated_class(type(exam.module).forward, name)
        if kind is not None and hasattr(kind, "update"):
            guesses.append(_holding(exam, name, kind))
        extra = {known["use_cache"]: True} if "use_cache" in known else {}
        guesses.append(_returning(exam, name, extra))
    if "start" in known:
        guesses.append(_counting(exam, known["start"]))
    return guesses


def _keywords(exam: CheckSession, x: Tensor) -> dict[str, Any]:
    return {k: v for k, v in exam.subject.extra.items()}


def _returning(exam: CheckSession, name: str, extra: dict[str, Any]) -> Step:
    """`y, cache = module(x, cache=cache)`: what comes back beside the output goes in again."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        result = module(x, **{**_keywords(exam, x), name: cache, **extra})
        if not isinstance(result, tuple) or len(result) < 2:
            raise ValueError("no cache came back")
        return result[0], result[-1]

    return step


def _holding(exam: CheckSession, name: str, kind: type) -> Step:
    """A cache object that the module fills."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        cache = kind() if cache is None else cache
        result = module(x, **{**_keywords(exam, x), name: cache})
        return (result[0] if isinstance(result, tuple) else result), cache

    return step


def _counting(exam: CheckSession, name: str) -> Step:
    """A cache inside the module, and the position of the first new token as an argument."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        start = cache or 0
        result = module(x, **{**_keywords(exam, x), name: start})
        return (result[0] if isinstance(result, tuple) else result), start + x.shape[1]

    return step


def _transformers_step(exam: CheckSession) -> Step:
    """Transformers' own cache, with the causal mask and the positions that a model would hand over."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        from transformers import DynamicCache

        cache, start = (DynamicCache(), 0) if cache is None else cache
        T, S = x.shape[1], start + x.shape[1]
        allowed = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        mask = torch.zeros(1, 1, T, S, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)
        keywords = {exam.subject.arguments["cache"]: cache, exam.subject.arguments["mask"]: mask}
        if exam.subject.rotary is not None:
            cos, sin = exam.subject.rotary(S, x.dtype)
            keywords[exam.subject.arguments["rotary"]] = (cos[:, start:], sin[:, start:])
        result = module(x, **keywords)
        return result[0], (cache, S)

    return step
