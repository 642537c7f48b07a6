"""The cache: a sequence continued in pieces must give the same output as in one piece.

How the module continues a sequence is guessed if its interface is a usual one. Otherwise the caller writes
three lines, and the report says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.catalogue import get_mistake
from regard.checker.intent import TOLERANCE, Intent
from regard.checker.oracle.oracle import describe_difference, relative_difference
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT, AttentionVariant
from regard.checker.session import CheckSession
from regard.checker.subject.construct import annotated_class

# Continues a sequence: step(module, x, cache) -> (output, cache).
Step = Callable[[nn.Module, Tensor, Any], tuple[Any, Any]]
ADAPTER = (
    "write how a sequence is continued, def step(module, x, cache): y, cache = module(x, cache=cache); "
    "return y, cache, and pass check(…, cached=step); the first call gets cache=None"
)


def probe_cache(session: CheckSession) -> None:
    """Continue a sequence from every position, and token by token."""
    subject = session.subject
    step: Step | None = session.options.get("cached")
    cache_arguments = {"cache", "start"} & subject.arguments.keys()
    if session.module is None or not (step or cache_arguments):
        return
    if not session.understanding.causal and not subject.is_transformers:
        session.add_skip("cache", "it is not causal, so earlier outputs depend on later tokens")
        return
    question = session.cases.plain("cache", T=6, seed=80).to(session.dtype)
    steps = [step] if step is not None else list(_guess_steps(session))
    error_line = ""
    for attempt in steps:
        try:
            with torch.no_grad():
                outputs = _run_in_pieces(session, attempt, question)
                whole = _run_whole(session, attempt, question)
        except Exception as error:  # the module does not have this interface
            error_line = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
            continue
        _compare(session, question, outputs, whole)
        return
    if step is not None:
        session.add_failure("cache", f"the adapter raised {error_line}")
    else:
        session.add_skip(
            "cache", f"how `{subject.arguments[min(cache_arguments)]}` works could not be guessed: {ADAPTER}"
        )


def _run_in_pieces(session: CheckSession, step: Step, question: Question) -> dict[tuple[int, ...], Tensor]:
    """Return the output for several splits: in two at every position, and in pieces of one or two tokens."""
    x = question.q
    T = x.shape[1]
    cuts = [(at, T - at) for at in range(1, T)] + [(1,) * T, (2,) * (T // 2)]
    outputs = {}
    for cut in cuts:
        cache, pieces = None, []
        module = session.subject.module_as(question.dtype)
        assert module is not None
        for piece in torch.split(x, list(cut), 1):
            y, cache = step(module, piece.contiguous(), cache)
            pieces.append(y[0] if isinstance(y, tuple) else y)
        outputs[cut] = torch.cat(pieces, 1)
        if outputs[cut].shape[:2] != x.shape[:2]:
            raise ValueError(f"continued in pieces, the output has shape {tuple(outputs[cut].shape)}")
    return outputs


def _run_whole(session: CheckSession, step: Step, question: Question) -> Tensor:
    """Return the output in one piece, without a cache if possible."""
    if session.subject.is_transformers:  # the step passes the causal mask that it needs
        module = session.subject.module_as(question.dtype)
        assert module is not None
        output: Tensor = step(module, question.q, None)[0]
        return output
    answer = session.subject.run(question).answer
    assert answer is not None
    return answer.output


def _compare(
    session: CheckSession, question: Question, outputs: dict[tuple[int, ...], Tensor], whole: Tensor
) -> None:
    """Compare the outputs in pieces with the whole one, and diagnose a difference."""
    wrong = {cut: e for cut, out in outputs.items() if not (e := relative_difference(out, whole)) < TOLERANCE}
    if not wrong:
        session.add_pass("cache", f"the same output in all {len(outputs)} ways to split the sequence")
        return
    cut, error = max(wrong.items(), key=lambda item: item[1])
    detail = f"split as {_describe_cut(cut)}, the output {describe_difference(error)}"
    detail += f" ({len(wrong)} of {len(outputs)} splits differ)"
    intent = session.right_intent
    for name in ("top-left-causal", "square-mask-sliced-by-columns", "cache-ignored", "no-mask"):
        if intent is not None and _explains(name, question, intent, outputs):
            session.add_mistake(
                "cache",
                detail,
                name,
                f"In pieces your output equals attention {get_mistake(name).what}; {detail}.",
                distance=error / TOLERANCE,
            )
            return
    session.add_failure("cache", detail)


def _describe_cut(cut: tuple[int, ...]) -> str:
    return "one token at a time" if set(cut) == {1} else " + ".join(str(n) for n in cut)


def _explains(name: str, question: Question, intent: Intent, outputs: dict[tuple[int, ...], Tensor]) -> bool:
    """Return whether a mistake gives the same outputs for every way to split the sequence."""
    changes = get_mistake(name).changes
    variant = replace(CORRECT, **changes[0]) if changes else CORRECT
    return all(
        relative_difference(
            out, _predict_pieces(variant, question, intent, cut, without_cache=name == "cache-ignored")
        )
        < TOLERANCE
        for cut, out in outputs.items()
    )


def _predict_pieces(
    variant: AttentionVariant,
    question: Question,
    intent: Intent,
    cut: tuple[int, ...],
    *,
    without_cache: bool,
) -> Tensor:
    x = question.q.double()
    pieces, start = [], 0
    for size in cut:
        new, keys = x[:, start : start + size], x[:, start if without_cache else 0 : start + size]
        piece = intent.apply(replace(question, q=new, k=keys, v=keys))
        with torch.no_grad():
            pieces.append(variant.answer(piece, intent.wiring).output)
        start += size
    return torch.cat(pieces, 1)


def _guess_steps(session: CheckSession) -> list[Step]:
    """Return the usual ways in which a module with these arguments continues a sequence."""
    names, subject = session.subject.arguments, session.subject
    if subject.is_transformers:
        return [_transformers_step(session)]
    guesses: list[Step] = []
    if "cache" in names:
        name = names["cache"]
        assert session.module is not None
        kind = annotated_class(type(session.module).forward, name)
        if kind is not None and hasattr(kind, "update"):
            guesses.append(_step_filling_cache(session, name, kind))
        extra = {names["use_cache"]: True} if "use_cache" in names else {}
        guesses.append(_step_returning_cache(session, name, extra))
    if "start" in names:
        guesses.append(_step_with_position(session, names["start"]))
    return guesses


def _step_returning_cache(session: CheckSession, name: str, extra: dict[str, Any]) -> Step:
    """Return a step for `y, cache = module(x, cache=cache)`."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        result = module(x, **{**session.subject.extra, name: cache, **extra})
        if not isinstance(result, tuple) or len(result) < 2:
            raise ValueError("no cache was returned")
        return result[0], result[-1]

    return step


def _step_filling_cache(session: CheckSession, name: str, kind: type) -> Step:
    """Return a step for a cache object that the module fills."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        cache = kind() if cache is None else cache
        result = module(x, **{**session.subject.extra, name: cache})
        return (result[0] if isinstance(result, tuple) else result), cache

    return step


def _step_with_position(session: CheckSession, name: str) -> Step:
    """Return a step for a cache inside the module, with the first new token's position as an argument."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        start = cache or 0
        result = module(x, **{**session.subject.extra, name: start})
        return (result[0] if isinstance(result, tuple) else result), start + x.shape[1]

    return step


def _transformers_step(session: CheckSession) -> Step:
    """Return a step for Transformers' cache, with the causal mask and positions that a model would pass."""

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        from transformers import DynamicCache

        cache, start = (DynamicCache(), 0) if cache is None else cache
        T, S = x.shape[1], start + x.shape[1]
        allowed = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        mask = torch.zeros(1, 1, T, S, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)
        keywords = {session.subject.arguments["cache"]: cache, session.subject.arguments["mask"]: mask}
        if session.subject.rotary is not None:
            cos, sin = session.subject.rotary(S, x.dtype)
            keywords[session.subject.arguments["rotary"]] = (cos[:, start:], sin[:, start:])
        result = module(x, **keywords)
        return result[0], (cache, S)

    return step
