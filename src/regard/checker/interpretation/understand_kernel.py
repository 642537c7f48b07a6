"""Finding out how a kernel is called: the layout that its arguments allow, in sizes that it takes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch

from regard.checker.interpretation.cases import Cases, causal_hypotheses, declared_causality
from regard.checker.interpretation.understand import (
    KERNEL_SIZES,
    Understanding,
    attempt,
    interpret,
    most_plausible,
    run_once,
)
from regard.checker.oracle.oracle import Intent
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject.kernel_layouts import CACHED_LAYOUTS, CacheLayout, KernelLayout, PagedLayout
from regard.checker.subject.reply import Reply
from regard.checker.subject.subject import Subject

_PAGES = (4, 16, 256)  # sizes of pages that kernels take


def understand_kernel(
    subject: Subject, *, causal: bool | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """Try the layouts that a kernel's arguments allow.

    Arguments:
        subject: the code under test, with the layouts to try.
        causal, scale: what the caller stated; None if nothing.
        always: fields of every question: a window, a soft cap, a causal flag.
    """
    declared = causal if causal is not None else declared_causality(subject)
    hypotheses = causal_hypotheses(subject, causal, declared)
    if subject.kernel_layouts[0].kind in CACHED_LAYOUTS:
        hypotheses = sorted(hypotheses, reverse=True)  # with a cache it is causal, unless its numbers say not
    intents = [Intent(Wiring(scale=scale), c) for c in hypotheses]
    tried: list[Understanding] = []
    for layout in subject.kernel_layouts:
        # Code that takes several queries is judged on several: one query sees every key, causal or not.
        several = replace(layout, single=False) if isinstance(layout, CacheLayout) and layout.single else None
        if any(t.subject.kernel_layout == several and t.first.error is None for t in tried):
            continue
        candidate = subject.replaced(kernel_layout=layout)
        cases, reply, dtype = _first_run(candidate, layout, always)
        tried.append(attempt(candidate, cases, intents, reply, dtype, declared))
        if tried[-1].right_intent is not None:
            break
    return interpret(tried[-1] if tried[-1].right_intent is not None else most_plausible(tried))


def _first_run(
    subject: Subject, layout: KernelLayout, always: dict[str, Any]
) -> tuple[Cases, Reply, torch.dtype]:
    """Run a kernel in one layout, in the first sizes that it takes."""
    pages: list[dict[str, Any]] = [{"page": n} for n in _PAGES] if isinstance(layout, PagedLayout) else [{}]
    attempts = []
    for sizes, page in itertools.product(KERNEL_SIZES, pages):
        cases = Cases(subject, always={**always, "layout": layout.kind, **page}, **sizes)
        reply, dtype = run_once(subject, cases.plain())
        attempts.append((cases, reply, dtype))
        if reply.error is None:
            return attempts[-1]
    return attempts[0]
