"""The cache: a sequence continued in pieces must give the same output as in one piece.

How the module continues a sequence is guessed if its interface is a usual one (see `subject.continuation`).
Otherwise the caller writes three lines, and the report says which.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.catalogue import CATALOGUE, get_mistake
from regard.checker.oracle.cache_variant import CORRECT_CACHE, CacheVariant
from regard.checker.oracle.oracle import TOLERANCE, Intent, describe_difference, relative_difference
from regard.checker.oracle.question import Question
from regard.checker.probes.behaviour import change_part
from regard.checker.probes.inputs import find_leak
from regard.checker.session import ADAPTER, CheckSession
from regard.checker.subject.continuation import Continuation, Step, continuations
from regard.checker.subject.inside import InsideWiring
from regard.checker.subject.source import error_place, has_cache, source_of
from regard.checker.subject.subject import Reply

Cut = tuple[int, ...]  # the sizes of the pieces of a sequence


@dataclass(frozen=True)
class _Trial:
    """The outputs of one continuation, for several ways to split the sequence."""

    continuation: Continuation
    outputs: dict[Cut, Tensor]
    whole: Tensor
    kept: bool  # whether a token's output depends on tokens of an earlier step

    @property
    def errors(self) -> dict[Cut, float]:
        """The splits whose output differs from the whole one, with the difference."""
        errors = {cut: relative_difference(out, self.whole) for cut, out in self.outputs.items()}
        return {cut: error for cut, error in errors.items() if not error < TOLERANCE}


def probe_cache(session: CheckSession) -> None:
    """Continue a sequence from every position and token by token, then begin another one."""
    adapter: Step | None = session.options.get("cached")
    cache = has_cache(session.subject)
    if not (adapter or cache):
        return
    # By its interpretation, by a mask that it takes, or else by its behaviour.
    causal = (
        session.understanding.causal or session.subject.is_transformers or "mask" in session.subject.arguments
    )
    causal = causal or find_leak(session, session.cases.plain("cache", T=6, seed=81)) == ()
    question = session.cases.plain("cache", T=6, seed=80).to(session.dtype)
    trials: list[_Trial] = []
    last_error: Exception | None = None
    refusal = ""
    for continuation in _ways(session, adapter):
        try:
            with torch.no_grad():
                trial = _try(session, continuation, question)
        except Exception as error:  # the module does not have this interface
            reply, last_error = Reply(None, error), error
            refusal = refusal or (reply.error_line[:160] if reply.is_refusal else "")
            continue
        if not causal:
            break
        tried = max((len(other.outputs) for other in trials if other.kept), default=0)
        trials.append(trial)
        if len(trial.outputs) < tried:
            continue  # a guess under which it refuses splits that it has taken is not how it is called
        if not trial.errors and not _check_longer(session, continuation):
            return
        if not trial.errors:
            _check_second_sequence(session, trial, question)
            return
    if adapter is not None and last_error is not None:
        add_failed_adapter(session, adapter, last_error)
    elif refusal and not any(trial.kept for trial in trials):
        session.add_skip("cache", f"it refuses one: {refusal}")
    elif not causal:
        session.add_untried(
            "cache",
            "as built it is not causal, so earlier outputs depend on later tokens: check it with causal=True",
        )
    elif not _judge(session, trials, question):
        session.add_untried("cache", f"how its {cache} works could not be guessed: {ADAPTER}")
        if any(trial.kept or trial.continuation.explicit for trial in trials):
            session.leave_open("cache-not-understood", cache=cache, tried=_describe(trials[0]))


def add_failed_adapter(session: CheckSession, adapter: Step, error: BaseException | None) -> None:
    """Leave the verdict open where the caller's adapter raised: the code under test may still be right."""
    raised = f"{Reply(None, error).error_line[:160]}{error_place(error, adapter)}"
    session.leave_open("adapter-raised", raised=raised)
    session.add_untried("cache", "mend the adapter")


def _check_longer(session: CheckSession, continuation: Continuation) -> bool:
    """Continue a sequence as long as the cache takes; returns False if that gives another output."""
    # A cache of the guessed length holds 16 tokens.
    for length in (40, 16, 10):
        question = session.cases.plain("cache", B=1, T=length, seed=83).to(session.dtype)
        T = question.q.shape[1]
        cut = (1,) * T if continuation.single else (T // 2, *(1,) * (T - T // 2))
        try:
            with torch.no_grad():
                pieces = _run_pieces(session.fresh_module(), continuation.step, question.q, cut)
                whole = _run_whole(session, continuation.step, question)
        except Exception:  # longer than its maximum
            continue
        error = relative_difference(pieces, whole)
        if not error < TOLERANCE:
            session.add_failure("cache", f"with {T} tokens, the output {describe_difference(error)}")
        return error < TOLERANCE
    return True


def _ways(session: CheckSession, adapter: Step | None) -> Iterator[Continuation]:
    """Yield the continuations to try: the caller's, Transformers' own, or guesses."""
    if adapter is not None:

        def step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            result = adapter(module, x, state)
            if not (isinstance(result, tuple) and len(result) == 2):
                raise TypeError(f"step has to return (output, cache), got {type(result).__name__}")
            return result

        yield Continuation("your step", step)
    elif session.subject.is_transformers:
        yield Continuation("Transformers' cache", _transformers_step(session))
    # Code that only follows Transformers' interface may have a cache of its own.
    if adapter is None and not type(session.module).__module__.startswith("transformers."):
        yield from continuations(session.subject)


def _try(session: CheckSession, continuation: Continuation, question: Question) -> _Trial:
    """Run a continuation on a sequence split in two at every position, and in pieces of one or two tokens."""
    x = question.q
    T = x.shape[1]
    cuts: list[Cut] = [(1,) * T]
    if not continuation.single:
        cuts += [*((at, T - at) for at in range(1, T)), (2,) * (T // 2)]
    outputs = {}
    for cut in cuts:
        try:
            outputs[cut] = _run_pieces(session.fresh_module(), continuation.step, x, cut)
        except Exception:
            if not outputs or max(cut) == 1:
                raise
            break  # it takes one token at a time
    whole = _run_whole(session, continuation.step, question)
    kept = any(_keeps_state(session, continuation.step, question, cut) for cut in outputs)
    return _Trial(continuation, outputs, whole, kept)


def _run_pieces(module: nn.Module, step: Step, x: Tensor, cut: Cut) -> Tensor:
    """Return the output for a sequence in pieces."""
    state, pieces = None, []
    for piece in torch.split(x, list(cut), 1):
        # Code that needs contiguous inputs is judged by `check_strides`, not here.
        y, state = step(module, piece.contiguous(), state)
        # The caller's own step may hand on all that the module returned.
        pieces.append(y[0] if isinstance(y, tuple) else y)
    output = torch.cat(pieces, 1)
    if output.shape[:2] != x.shape[:2]:
        raise ValueError(f"continued in pieces, the output has shape {tuple(output.shape)}")
    return output


def _run_whole(session: CheckSession, step: Step, question: Question) -> Tensor:
    """Return the output in one piece: without a cache, or by a first step if that takes a causal mask."""
    if not session.understanding.causal:
        T = question.q.shape[1]
        masked = replace(question, mask=torch.ones(T, T, dtype=torch.bool).tril())
        # A mask (B, S) of tokens cannot be causal.
        if "mask" in session.subject.arguments and session.subject.mask_form.rank > 1:
            alone = session.subject.run(session.with_explicit_mask(masked), module=session.fresh_module())
            if alone.answer is not None:
                return alone.answer.output
        output: Tensor = step(session.fresh_module(), question.q, None)[0]
        return output
    answer = session.subject.run(question, module=session.fresh_module()).answer
    assert answer is not None
    return answer.output


def _keeps_state(session: CheckSession, step: Step, question: Question, cut: Cut) -> bool:
    """Return whether the output of the last piece depends on tokens that came in earlier steps."""
    x, last = question.q, cut[-1]
    other = change_part(x, 1, slice(0, -last))
    outputs = [_run_pieces(session.fresh_module(), step, each, cut)[:, -last:] for each in (x, other)]
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-6, atol=1e-9)


def _check_second_sequence(session: CheckSession, trial: _Trial, question: Question) -> None:
    """Begin another sequence on a module that has continued one: it must not see the first."""
    other = session.cases.plain("cache", T=6, seed=82).to(session.dtype)
    step, ways = trial.continuation.step, f"all {len(trial.outputs)} ways to split the sequence"
    with torch.no_grad():
        module = session.fresh_module()
        cut = max(trial.outputs, key=len)
        _run_pieces(module, step, question.q, cut)
        second = _run_pieces(module, step, other.q, cut)
        error = relative_difference(second, _run_pieces(session.fresh_module(), step, other.q, cut))
    if error < TOLERANCE:
        session.add_pass("cache", f"the same output in {ways}, by {trial.continuation.call}")
    else:
        detail = f"a second sequence {describe_difference(error)} from the same sequence on a new module"
        session.find("stale-cache", "cache", distance=error / TOLERANCE, detail=detail)


def _judge(session: CheckSession, trials: list[_Trial], question: Question) -> bool:
    """Diagnose a cache that gives other numbers; returns False if nothing can be said of it."""
    intent = session.right_intent
    if intent is not None and isinstance(intent.wiring, InsideWiring):
        intent = None  # its queries and keys are observed with their positions, so these cannot be changed
    if intent is not None and not session.understanding.causal:
        intent = replace(intent, causal=True)  # each step gets a causal mask
    trials = [trial for trial in trials if trial.errors and (trial.kept or trial.continuation.explicit)]
    # A guess under which nothing was kept may not be how the module is called.
    trials.sort(key=lambda trial: not trial.kept)
    kept = [trial for trial in trials if trial.kept]
    if intent is not None and (
        _name(session, trials, question, intent, 1) or _name(session, kept[:2], question, intent, 2)
    ):
        return True
    if certain := [trial for trial in kept if trial.continuation.certain]:
        session.add_failure("cache", _describe(certain[0]))
        return True
    for trial in trials:
        # OpenAI's Whisper looks itself up in a table that hooks fill; an empty one says nothing.
        if re.search(r"self\.\w+ (not )?in \w*cache", source_of(session.subject)):
            continue
        if trial.continuation.explicit and _ignores_cache(session, trial, question):
            _add_mistakes(session, trial, ["cache-ignored"])
            return True
    return False


def _add_mistakes(session: CheckSession, trial: _Trial, names: list[str]) -> None:
    detail, distance = _describe(trial), max(trial.errors.values()) / TOLERANCE
    for name in names:
        evidence = f"In pieces your output equals attention {get_mistake(name).what}; {detail}."
        session.add_mistake("cache", detail, name, evidence, distance=distance)


def _ignores_cache(session: CheckSession, trial: _Trial, question: Question) -> bool:
    """Return whether every piece gives the same output as on its own. No oracle is needed."""
    for cut, output in trial.outputs.items():
        pieces = zip(torch.split(question.q, list(cut), 1), torch.split(output, list(cut), 1), strict=True)
        for piece, got in pieces:
            alone = replace(question, q=piece, k=piece, v=piece)
            answer = session.subject.run(alone, module=session.fresh_module()).answer
            if answer is None or not relative_difference(got, answer.output) < TOLERANCE:
                return False
    return True


def _describe(trial: _Trial) -> str:
    """Say by how much the worst split differs."""
    cut, error = max(trial.errors.items(), key=lambda item: item[1])
    pieces = "one token at a time" if set(cut) == {1} else "split as " + " + ".join(str(n) for n in cut)
    detail = f"{pieces}, the output {describe_difference(error)}"
    return f"{detail} ({len(trial.errors)} of {len(trial.outputs)} splits differ)"


def _name(
    session: CheckSession, trials: list[_Trial], question: Question, intent: Intent, count: int
) -> bool:
    """Record so many mistakes that together give a trial's outputs for every way to split the sequence."""
    # Of pairs, the first forms of each mistake are tried.
    most = None if count == 1 else 3
    forms = [(m, change) for m in CATALOGUE.values() for change in m.cache_changes[:most]]
    asked = intent.apply(question).to(torch.float64)

    def fits(variant: CacheVariant, cut: Cut, output: Tensor) -> bool:
        try:
            with torch.no_grad():
                predicted = variant.answer(asked, intent.wiring, cut)
        except (RuntimeError, ValueError, IndexError):
            return False
        return predicted.shape == output.shape and relative_difference(output.double(), predicted) < TOLERANCE

    for trial, chosen in itertools.product(trials, itertools.combinations(forms, count)):
        changes = dict(field for _, change in chosen for field in change.items())
        is_apart = len({m.name for m, _ in chosen}) == count
        if not is_apart or len(changes) < sum(len(change) for _, change in chosen):
            continue  # two forms of one mistake, or two values of one field
        variant = replace(CORRECT_CACHE, **changes)
        if all(fits(variant, cut, output) for cut, output in trial.outputs.items()):
            _add_mistakes(session, trial, [mistake.name for mistake, _ in chosen])
            return True
    return False


def _transformers_step(session: CheckSession) -> Step:
    """Return a step for Transformers' cache, with the causal mask and positions that a model would pass."""

    def step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        # Transformers is optional, and slow to import.
        from transformers import DynamicCache

        cache, start = (DynamicCache(), 0) if state is None else state
        T, S = x.shape[1], start + x.shape[1]
        allowed = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        # Transformers' models pass the lowest number of the dtype where other code passes −inf.
        mask = torch.zeros(1, 1, T, S, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)
        keywords = {session.subject.arguments["cache"]: cache, session.subject.arguments["mask"]: mask}
        if session.subject.tables is not None:
            keywords |= session.subject.tables.make(T, x.dtype, start)
        result = module(x, **keywords)
        return result[0], (cache, S)

    return step
