"""`regard.check`: is this attention right, and if not, which mistake is it?

This file runs the probes and assembles the report; it does not know how a probe works.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from regard.attention.arguments import check_scale, check_softcap, check_whole_number
from regard.checker.errors import CheckError
from regard.checker.interpretation.cases import head_width
from regard.checker.interpretation.understand import Understanding, understand
from regard.checker.probes.cache import add_failed_adapter, probe_cache
from regard.checker.probes.dropout import probe_dropout
from regard.checker.probes.earlier_calls import probe_masked_calls, probe_state
from regard.checker.probes.inputs import (
    find_leak,
    has_another_batch_axis,
    probe_batch,
    probe_causality,
    probe_inputs,
    probe_inputs_kept,
    probe_positions,
)
from regard.checker.probes.module_state import probe_module_state
from regard.checker.probes.numbers import probe_numbers
from regard.checker.probes.options import probe_masks, probe_options
from regard.checker.probes.output import probe_output
from regard.checker.probes.rebuilt import probe_many_heads
from regard.checker.probes.sizes import probe_long_text, probe_other_sizes
from regard.checker.probes.switches import probe_switches
from regard.checker.ranks.distributed import check_on_processes
from regard.checker.reference import name_by_own_check, pair_with_reference
from regard.checker.reports.report import Report
from regard.checker.session import ADAPTER, CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt, add_promises
from regard.checker.subject.kernel_recognition import prepare_interpreter
from regard.checker.subject.source import attention_parts, error_place, model_sentence
from regard.checker.subject.subject import Subject
from regard.checker.whole_models.model_inputs import find_model


def check(
    thing: Any,
    *,
    init: dict[str, Any] | None = None,
    call: dict[str, Any] | None = None,
    causal: bool | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    heads: int | None = None,
    true_means: str | None = None,
    cached: Callable[..., Any] | None = None,
    oracle: Any = None,
    gradients: bool = True,
    device: str = "cpu",
    processes: int | None = None,
    strict: bool = False,
    **arguments: Any,
) -> Report:
    """Check any attention: a function of `(q, k, v)`, a module on `x`, or a class of modules.

    The code's output, gradients and behaviour are compared with the float64 oracle, and a mistake is named.
    The report's `verdict` is "right", "wrong" or "undecided".

    Arguments:
        thing: the function, module or class.
        init: arguments of the class's constructor, or further arguments of the function.
        call: arguments of the module's forward pass, or of the function, that cannot be guessed. A string
            such as "randn(B, T, C)" is a tensor of that shape (also zeros, ones and arange), where B is the
            batch size, T and S are the numbers of queries and keys, C is the width of a sequence, and H and D
            are the number and the width of split heads.
        causal: whether it should be causal. By default the code's own declaration counts (its name, a
            triangular buffer), or else its behaviour; the report says what was assumed.
        window, softcap, scale, heads: what the code promises, if its arguments do not show it. If the class
            or function has a parameter of this name, the value is passed there too; so is `causal`.
        true_means: "look" or "hide", the meaning of True in its boolean masks; "look" by default.
        cached: a function that continues a sequence, `step(module, x, cache) -> (output, cache)`, called
            first with `cache=None`. It is needed only if the module's own interface cannot be guessed.
        oracle: your own slow version, a function, module or class, which is then compared with instead of
            the checker's own attention. Modules get the same weights if their names agree.
        gradients: whether to compare gradients; False for code without a backward pass.
        device: where the code runs, "cpu" or "cuda".
        processes: how many processes run it together, each on its part of the sequence, for ring attention,
            Ulysses and the like. Rank r gets the r-th part of consecutive tokens, (B, H, T/n, D) or
            (B, T/n, H, D), and parameters called `group`, `rank` or `world_size` are filled.
        strict: whether warnings count as failures, and whether what was not tried prevents "right".
        arguments: further entries of `init`, for names that `check` itself does not have.

    Raises `CheckError`, a ValueError of one line, if the thing cannot be called at all.

    >>> import torch, regard
    >>> report = regard.check(lambda q, k, v: torch.softmax(q @ k.mT, dim=-1) @ v)
    >>> report.verdict, report.diagnoses[0].name
    ('wrong', 'no-scale')
    """
    started = time.perf_counter()
    _check_promises(window, softcap, scale, heads)
    _check_device(device)
    # None of these, with which the oracle computes, is written in Python.
    operations = ("softmax", "logsumexp", "tanh", "cat", "where", "matmul")
    patched = [f"torch.{name}" for name in operations if isinstance(getattr(torch, name), FunctionType)]
    if patched:
        raise CheckError(
            f"{', '.join(patched)}: replaced by other code than PyTorch's, so the oracle would compute with "
            "it too; check again without that"
        )
    if "triton" in sys.modules:
        prepare_interpreter()
    with _conditions():
        given = {**(init or {}), **arguments}
        promises: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap}
        promises |= {"scale": scale, "heads": heads}
        options = promises | {"true_means": true_means, "call": call, "cached": cached}
        options |= {"gradients": gradients, "device": device}
        if processes is not None:
            session = check_on_processes(thing, processes, given | (call or {}), options, oracle)
        elif oracle is not None:
            session = pair_with_reference(thing, oracle, given, options, promises)
            _run_probes(session)
            name_by_own_check(session, partial(check, thing, init=given, **options))
        elif isinstance(thing, nn.Module | type) and (run := find_model(thing, given, call or {}, device)):
            # Here, since an attention alone needs neither this nor the recorder, half a second of imports.
            from regard.checker.whole_models.model_check import check_model

            alone = partial(check, gradients=gradients, device=device, scale=scale, strict=strict)
            report = check_model(run, alone, causal=causal, window=window, scale=scale)
            report.strict, report.seconds = strict, time.perf_counter() - started
            return report
        else:
            subject = adapt(thing, add_promises(thing, given, promises), true_means, call)
            subject.device = device
            always = {k: v for k, v in (("window", window), ("softcap", softcap)) if v is not None}
            if "causal" in subject.arguments and subject.arguments["causal"] not in given:
                # The flag is always passed, since its default differs between implementations.
                always["flag"] = causal is True
            session = ask(subject, options, always)
    return _assemble(session, started, strict=strict)


def _check_promises(
    window: int | None, softcap: float | None, scale: float | None, heads: int | None
) -> None:
    """Raise a ValueError for a promise that no attention can keep."""
    for name, number in (("window", window), ("heads", heads)):
        if number is not None:
            check_whole_number(name, number)
    check_softcap(softcap)
    check_scale(scale)
    if scale == 0:
        raise ValueError(
            "scale: expected a number other than 0, with which no key matches better than another"
        )


def _check_device(device: str) -> None:
    """Raise `CheckError` for a device that this machine, or its build of PyTorch, does not have."""
    try:
        torch.empty(0, device=device)
    # PyTorch built without CUDA raises an AssertionError.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CheckError(
            f'device: expected "cpu", or "cuda" if PyTorch finds a GPU, got {device!r}'
        ) from error


def ask(subject: Subject, options: dict[str, Any], always: dict[str, Any]) -> CheckSession:
    """Understand a subject and run every probe on it.

    `options` are those of `check`, and `always` are fields of every question.
    """
    promised: dict[str, Any] = {name: options.get(name) for name in ("causal", "heads", "scale")}
    understanding = understand(subject, always, **promised)
    found = understanding.subject
    # (T, B, C) is tried second: the other order is more usual, and an interpretation that is right stays.
    unclear = understanding.right_intent is None and understanding.first.answer is not None
    if unclear and found.layout == "BTC":
        width, dtype = understanding.cases.width, understanding.dtype
        if has_another_batch_axis(found, width, dtype):
            understanding = understand(found.replaced(layout="TBC"), always, **promised)
    step = options.get("cached")
    if understanding.first.answer is None and step is not None and subject.module is not None:
        # It runs only with a cache, and the caller has said how.
        understanding = understand(subject.replaced(step=step), always, **promised)
    session = CheckSession(understanding, options)
    _run_probes(session)
    return session


def _assemble(session: CheckSession, started: float, *, strict: bool) -> Report:
    """Return the report of a session that began at `started`."""
    report = Report(
        _describe(session.understanding),
        _assumptions(session),
        session.checks,
        sorted(session.diagnoses, key=lambda diagnosis: diagnosis.warning),
        session.example,
        strict=strict,
        undecided=session.undecided,
        equals=_equals(session.understanding),
    )
    report.seconds = time.perf_counter() - started
    return report


@contextlib.contextmanager
def _conditions() -> Iterator[None]:
    """Run the block in one thread, with the random numbers of seed 0, without warnings and with gradients.

    The tensors of a check are small, and threads would wait for each other. The author's file may have
    switched gradients off for all code.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Without devices=[], fork_rng would read the random state of every GPU, which starts CUDA.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.inference_mode(False):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            with torch.enable_grad():
                yield
        finally:
            torch.set_num_threads(threads)


def _run_probes(session: CheckSession) -> None:
    first = session.understanding.first
    if first.answer is None:
        _explain_error(session)
        return
    if session.understanding.fails_on_batch:
        session.find("dot-t-on-a-batch", "batches", distance=math.inf, warning=True)
    if probe_state(session):
        return
    kernel = session.subject.kernel_layout
    probes = MASK_PROBES if kernel is not None and kernel.makes_mask else PROBES
    for probe in probes if session.module is not None else [p for p in probes if p not in OF_MODULES]:
        probe(session)
        if probe is probe_batch and session.undecided:  # the axes of its inputs are not known
            return


def _explain_error(session: CheckSession) -> None:
    """Diagnose code that raised an error if a known mistake is the reason; otherwise raise `CheckError`."""
    first = session.understanding.first
    if first.used_dot_t:
        shapes = session.cases.plain().shapes()
        words: dict[str, Any] = {"shapes": shapes, "error_line": first.error_line}
        session.find("dot-t-on-a-batch", "runs on a batch", distance=math.inf, **words)
        return
    # `adapt` passes None where a cache is required.
    if session.subject.step is not None:
        add_failed_adapter(session, session.subject.step, first.error)
        return
    if (cache := session.subject.arguments.get("cache")) in session.subject.extra:
        session.leave_open("needs-a-cache", argument=cache)
        session.add_untried("cache", ADAPTER)
        return
    if session.module is not None and (parts := attention_parts(session.module)):
        session.leave_open("is-a-model", sentence=model_sentence(parts), reason="it could not be run")
        return
    subject = session.subject
    place = error_place(first.error, subject.target)
    message = f"{subject.name} could not be run on {subject.describe_inputs(session.cases.plain())}: "
    hint = ""
    # They may have been taken for keys and values only because of where they stand.
    guessed = [name for name in subject.positional if vocabulary.argument(name) is None]
    if subject.kernel_layout is None and subject.inputs == "qkv" and guessed:
        taken = " and ".join(f"`{name}`" for name in guessed)
        options = " ".join(f"--call {name}=…" for name in guessed)
        hint = f"; {taken} got keys and values: if that is not what they are, pass {options}"
    if "active drivers" in first.error_line:  # Triton 3.6 without a GPU
        hint = "; without a GPU, Triton runs kernels in its interpreter: set TRITON_INTERPRET=1"
    raise CheckError(f"{message}{first.error_line}{place}{hint}")


# The batch comes first, as no numbers can be compared before the axes are known; then the output, as the
# other probes compare only what was found right there.
PROBES = (
    probe_batch,
    probe_output,
    probe_masked_calls,
    probe_inputs_kept,
    probe_inputs,
    probe_causality,
    probe_numbers,
    probe_masks,
    probe_options,
    probe_dropout,
    probe_cache,
    probe_positions,
    probe_module_state,
    probe_many_heads,
    probe_other_sizes,
    probe_switches,
)
# What a module holds, keeps and saves.
OF_MODULES = (probe_inputs, probe_cache, probe_positions, probe_module_state)
# For functions that make masks and do not attend.
MASK_PROBES = (probe_batch, probe_output, probe_causality, probe_long_text)


def _describe(understanding: Understanding) -> str:
    """Return the subject's name with its heads: "Attention (4 heads of 12)"."""
    subject, intent = understanding.subject, understanding.intent
    if intent is None or not intent.wiring.splits or subject.module is None:
        return subject.name
    wiring = intent.wiring
    D = head_width(wiring, understanding.cases.plain())
    shared = f" in {wiring.groups} group{'s' * (wiring.groups > 1)}" if wiring.groups != wiring.heads else ""
    heads = "one head" if wiring.heads == 1 else f"{wiring.heads} heads"
    return f"{subject.name} ({heads} of {D}{shared})" if D else subject.name


def _assumptions(session: CheckSession) -> list[str]:
    """Return what the check assumed or established of the code, one phrase each."""
    understanding = session.understanding
    assumptions = list(understanding.assumptions)
    kernel = understanding.subject.kernel_layout
    if kernel is not None and (kernel.one_query or kernel.kind == "mask interface"):
        return assumptions + session.notes  # whether it is causal is not for it to say
    if "causal" in understanding.subject.arguments:
        assumptions.append(f"causal if {understanding.subject.arguments['causal']} is True")
    elif session.options["causal"] is not None:
        assumptions.append(f"{_causal_word(session.options['causal'])}, as you stated")
    elif understanding.declared_causal is not None:
        assumptions.append(f"{_causal_word(understanding.declared_causal)}, as its code declares")
    elif understanding.right_intent is not None:
        assumptions.append(f"{_causal_word(understanding.causal)}, as its output shows")
    elif understanding.subject.inputs == "x" and understanding.first.answer is not None:
        leak = find_leak(session, session.cases.plain("causality", seed=40))
        if leak is not None:
            # Of the output, not of the mask: merged heads read later tokens behind a causal mask, too.
            read = "outputs read later tokens" if leak else "no output reads a later token"
            assumptions.append(f"{read}, as measured")
    if found := _equals(understanding):
        assumptions.append(f"equals {found}")
    if understanding.right_intent is not None and understanding.right_intent.convention is not None:
        words = understanding.right_intent.convention.words
        assumptions.append(f"window: with a window of n, a query sees {words}")
    return assumptions + session.notes


def _equals(understanding: Understanding) -> str:
    """Return what right code was found to be beside plain attention, which only its author can confirm."""
    intent, kernel = understanding.right_intent, understanding.subject.kernel_layout
    if intent is None:
        return ""
    makes_mask = kernel is not None and kernel.makes_mask
    if not intent.features:
        stated = understanding.cases.always.get("window")
        window = "" if stated is None else f", in a window of {stated}"
        return f"a mask that is {_causal_word(understanding.causal)}{window}" if makes_mask else ""
    return f"attention {' and '.join(intent.features)}"


def _causal_word(causal: bool) -> str:
    return "causal" if causal else "not causal"
