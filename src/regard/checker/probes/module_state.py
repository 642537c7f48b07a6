"""What a module keeps: does everything move with it, is everything saved, and which lengths fit?"""

from __future__ import annotations

from typing import Any

import torch

from regard.checker.cases import Cases
from regard.checker.oracle.oracle import apart, truth
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.construct import CheckError, build
from regard.checker.subject.subject import copied
from regard.checker.understand import TOLERANCE, longest, plain_tensors


def probe_keeping(exam: CheckSession) -> None:
    """`.to()`, state_dict, and lengths around the maximum. Only modules keep anything."""
    if exam.module is None:
        return
    if exam.subject.plain_lists:
        place = exam.subject.plain_lists[0]
        exam.found(
            "parameters are registered",
            f"those in `{place}` are not",
            "plain-list",
            f"`{place}` is a plain list: what it holds is in no state_dict and in no parameters().",
        )
    else:
        exam.passed("parameters are registered")
    _moves(exam)
    _round_trip(exam)
    _lengths(exam)
    _other_length(exam)


def _moves(exam: CheckSession) -> None:
    """Move it to another device. The meta device is always there, and leaves a plain tensor behind like any
    other."""
    module = exam.subject.at(torch.float32)
    assert module is not None
    question = exam.cases.plain(".to()", seed=70).to(torch.float32)
    fresh = copied(module)
    here = exam.subject.ask(question, module=fresh)
    plain = list(plain_tensors(fresh))
    moved = copied(fresh).to("meta")
    away = question.mapped(lambda x: x.to("meta"))
    if here.answer is None:
        return
    there = exam.subject.ask(away, module=moved)
    if there.error is None or not plain:
        if there.error is None:
            exam.passed(".to()", "everything moves")
        return
    for place, tensor in plain:
        owner, _, name = place.rpartition(".")
        setattr(dict(moved.named_modules())[owner], name, tensor.to("meta"))
    if exam.subject.ask(away, module=moved).error is None:
        place = plain[0][0]
        exam.found(
            ".to()",
            f"`{place}` stays behind",
            "plain-attribute",
            f"`{place}` is a plain tensor: moved to another device, forward raises {there.trouble[:120]}.",
        )


def _round_trip(exam: CheckSession) -> None:
    """Saved and loaded into a fresh instance: the same outputs."""
    cls = exam.subject.cls
    if cls is None:
        return
    try:
        torch.manual_seed(9)
        fresh = build(cls, exam.subject.given)
        double = exam.subject.at(exam.understood.dtype)
        assert double is not None
        fresh = fresh.to(exam.understood.dtype).eval()
        fresh.load_state_dict(double.state_dict())
    except (CheckError, RuntimeError) as error:
        exam.failed("state_dict", f"its own state_dict does not load: {str(error).splitlines()[0][:160]}")
        return
    question = exam.cases.plain("state_dict", seed=71).to(exam.understood.dtype)
    one, two = exam.subject.ask(question), exam.subject.ask(question, module=fresh)
    if one.answer is None or two.answer is None:
        return
    same = torch.allclose(one.answer.output, two.answer.output, rtol=1e-5, atol=1e-6, equal_nan=True)
    if same:
        exam.passed("state_dict", "saved and loaded, it gives the same output")
    elif not exam.subject.plain_lists:
        plain = plain_tensors(fresh)
        held = f"`{plain[0][0]}`" if plain else "something that matters"
        exam.found(
            "state_dict",
            "saved and loaded, it gives another output",
            "plain-attribute",
            f"state_dict does not hold {held}: a loaded copy gives another output.",
        )


def _lengths(exam: CheckSession) -> None:
    """At the maximum it must be right; beyond it must be right too, or say clearly why not."""
    limit = longest(exam.subject)
    if limit is None or limit > 512 or exam.subject.takes == "context":
        return
    cases = Cases(exam.subject, exam.cases.width, exam.cases.context_width, None, exam.cases.always)
    for T, name in ((limit, "longest sequence"), (limit + 1, "longer than the maximum")):
        question = cases.plain(name, B=1, T=T, seed=72)
        reply = exam.subject.ask(question.to(exam.understood.dtype))
        if reply.answer is not None:
            error = 0.0
            if exam.right is not None:
                error = apart(reply.answer, truth(exam.right.read(question), exam.right.wiring))
            if error < TOLERANCE:
                exam.passed(name, f"{T} tokens")
            else:
                exam.failed(name, f"{T} tokens: off by {error:.1g}, without an error")
        elif limit == T:
            exam.failed(name, f"{T} tokens raised {reply.trouble}")
        elif isinstance(reply.error, ValueError | AssertionError | IndexError) and _says_length(
            reply.error, limit
        ):
            exam.passed(name, "refused with a clear message")
        else:
            exam.found(
                name,
                reply.trouble,
                "obscure-length-error",
                f"{T} tokens, one over the maximum, raise “{reply.trouble[:140]}”.",
            )


def _says_length(error: Exception, limit: int) -> bool:
    text = str(error).lower()
    return any(
        word in text for word in ("length", "token", "long", "max", "block", "context", "seq", str(limit))
    )


def _other_length(exam: CheckSession) -> None:
    """Weights saved at one maximum length should load at another."""
    cls = exam.subject.cls
    if cls is None or longest(exam.subject) is None:
        return
    sizes: dict[str, Any] = {"length": 24}
    given = {k: 24 if vocabulary.size(k) == "length" else v for k, v in exam.subject.given.items()}
    try:
        longer = build(cls, given, sizes)
        state = exam.module.state_dict() if exam.module is not None else {}
        shapes = {name: tuple(t.shape) for name, t in longer.state_dict().items()}
    except CheckError:
        return
    parameters = {name for name, _ in longer.named_parameters()}
    blocking = [
        n for n, t in state.items() if shapes.get(n) not in (None, tuple(t.shape)) and n not in parameters
    ]
    if blocking:
        exam.found(
            "weights load at another length",
            f"`{blocking[0]}` differs in shape",
            "persistent-mask",
            f"The state_dict holds `{blocking[0]}` {tuple(state[blocking[0]].shape)}, which a module for "
            "another "
            "maximum length refuses.",
        )
    else:
        exam.passed("weights load at another length")
