"""`regard.check`: is this attention right, and if not, what is wrong with it?"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from regard.checker.probes.cache import probe_cache
from regard.checker.probes.dropout import probe_dropout
from regard.checker.probes.leaks import probe_batch, probe_causality
from regard.checker.probes.masks import probe_masking
from regard.checker.probes.module_state import probe_keeping
from regard.checker.probes.numbers import probe_numbers
from regard.checker.probes.output import probe_output
from regard.checker.report import Report
from regard.checker.session import CheckSession
from regard.checker.subject.adapt import adapt
from regard.checker.subject.construct import CheckError
from regard.checker.understand import Understanding, understand


def check(
    thing: Any,
    *,
    causal: bool | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    heads: int | None = None,
    true_means: str | None = None,
    cached: Callable[..., Any] | None = None,
    strict: bool = False,
    **arguments: Any,
) -> Report:
    """Check any attention: a function of `(q, k, v)`, a module on `x`, or a class of modules.

    The code's output, gradients and behaviour are held against the float64 oracle, and what is wrong is
    named.

    - `causal`: whether it should be causal. Without it the code's own word counts (its name, a triangular
      buffer), or else its behaviour; the report says what was assumed.
    - `window`, `softcap`, `scale`, `heads`: what it promises, where that cannot be seen in its arguments.
    - `true_means`: "look" or "hide", for what True says in its boolean masks ("look" unless told otherwise).
    - `cached`: three lines that continue a sequence, `step(module, x, cache) -> (output, cache)`, called
      first with `cache=None`; needed only where the module's own way cannot be guessed.
    - `strict`: cautions count as failures.
    - every other keyword is an argument of the class's constructor, or of the function.

    Raises `CheckError`, a ValueError of one line, if the thing cannot be called at all.

    >>> import torch, regard
    >>> report = regard.check(lambda q, k, v: torch.softmax(q @ k.mT, dim=-1) @ v)
    >>> report.ok, report.diagnoses[0].name
    (False, 'no-scale')
    """
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        subject = adapt(thing, _constructor(thing, arguments, window, softcap), true_means)
        always = {k: v for k, v in (("window", window), ("softcap", softcap)) if v is not None}
        if "causal" in subject.arguments and subject.arguments["causal"] not in arguments:
            always["flag"] = causal is True
        understood = understand(subject, causal=causal, heads=heads, scale=scale, always=always)
        exam = CheckSession(understood, {"causal": causal, "true_means": true_means, "cached": cached})
        _examine(exam)
    report = Report(
        _described(understood), _assumed(exam), exam.checks, _sorted(exam), exam.example, strict=strict
    )
    report.seconds = time.perf_counter() - started
    return report


def _constructor(
    thing: Any, arguments: dict[str, Any], window: int | None, softcap: float | None
) -> dict[str, Any]:
    """Constructor arguments; a window or soft cap that was promised is also built in, where there is a place.
    Constructor arguments; a window or soft cap that was promised is also built in, where there is a place."""
    from regard.checker.subject.construct import _parameters

    given = dict(arguments)
    if isinstance(thing, type):
        from regard.checker.subject import vocabulary

        for meaning, value in (("window", window), ("softcap", softcap)):
            for name in _parameters(thing):
                if vocabulary.size(name) == meaning and value is not None:
                    given.setdefault(name, value)
    return given


def _examine(exam: CheckSession) -> None:
    first = exam.understood.first
    if first.answer is None:
        _did_not_run(exam)
        return
    if exam.understood.turned:
        exam.found(
            "batches",
            "they fail",
            "dot-t-on-a-batch",
            "Right on one sequence (T, D); a batch fails, since .T turns every axis of it.",
            caution=True,
        )
    for probe in PROBES:
        probe(exam)


def _did_not_run(exam: CheckSession) -> None:
    """Nothing came back: if a known mistake is why, that is the diagnosis; otherwise it could not be checked.
    Nothing came back: if a known mistake is why, that is the diagnosis; otherwise it could not be checked."""
    first = exam.understood.first
    if first.turned:
        shapes = exam.cases.plain().shapes()
        evidence = f"On {shapes} it raises {first.trouble}, after using .T on more than two axes."
        exam.found("runs on a batch", first.trouble, "dot-t-on-a-batch", evidence)
        return
    raise CheckError(
        f"{exam.subject.name} could not be run on {exam.cases.plain().shapes()}: {first.trouble}"
    )


PROBES = (
    probe_batch,
    probe_output,
    probe_causality,
    probe_numbers,
    probe_masking,
    probe_dropout,
    probe_cache,
    probe_keeping,
)


def _sorted(exam: CheckSession) -> list[Any]:
    return sorted(exam.diagnoses, key=lambda d: d.caution)


def _described(understood: Understanding) -> str:
    subject, intent = understood.subject, understood.intent
    if intent is None or not intent.wiring.splits or intent.wiring.query is None:
        return subject.name
    wiring = intent.wiring
    assert wiring.query is not None
    D = wiring.query.weight.shape[1] // wiring.heads
    shared = f" in {wiring.groups} groups" if wiring.groups != wiring.heads else ""
    heads = "one head" if wiring.heads == 1 else f"{wiring.heads} heads"
    return f"{subject.name} ({heads} of {D}{shared})"


def _assumed(exam: CheckSession) -> list[str]:
    understood = exam.understood
    assumed = list(understood.assumed)
    if "causal" in understood.subject.arguments:
        assumed.append(f"causal when {understood.subject.arguments['causal']} says so")
    elif (intent := understood.intent) is not None:
        why = (
            "as you said"
            if exam.options["causal"] is not None
            else ("as it says of itself" if understood.claims_causal is not None else "from its behaviour")
        )
        assumed.append(f"{'causal' if intent.causal else 'not causal'}, {why}")
    return assumed + exam.notes
