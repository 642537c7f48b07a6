"""Inputs in their roles: keys decide the weights, values are averaged, and a context replaces the sequence.

These are properties, which are tested by changing one input and leaving the others: no oracle is needed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.checker.interpretation.intent import TOLERANCE
from regard.checker.oracle.answer import Answer
from regard.checker.oracle.oracle import relative_difference
from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession
from regard.checker.subject.construction.call_values import make_values
from regard.checker.subject.subject import SEQUENCES


def probe_inputs(session: CheckSession) -> None:
    """Check that a module's inputs act in the roles that their names promise."""
    if session.module is None or session.subject.layout not in SEQUENCES:
        return
    if session.reference is not None:  # which need not be linear in its values
        return
    if session.subject.inputs == "qkv":
        _check_keys_and_values(session)
    elif session.subject.inputs == "x" and "context" in session.subject.arguments:
        _check_context(session)


def _check_keys_and_values(session: CheckSession) -> None:
    """Check that the output is an average of the values: linear in them, and not in the keys."""
    question = session.cases.plain("inputs", seed=45).to(session.dtype)
    by_value, by_key = _is_affine(session, question, "v"), _is_affine(session, question, "k")
    if by_value is None or by_key is None:
        return
    if by_key and not by_value:
        evidence = "The output is linear in the keys that it is given, and not in the values."
        session.add_mistake("inputs", "keys and values are exchanged", "key-value-swapped", evidence)
    elif by_value:
        session.add_pass("inputs", "the output is an average of the values")


def _is_affine(session: CheckSession, question: Question, name: str) -> bool | None:
    """Return whether the output is affine in one input; None if the code failed."""
    first: Tensor = getattr(question, name)
    draw = torch.Generator().manual_seed(46)
    second = torch.randn(first.shape, generator=draw, dtype=torch.float64).to(first.dtype)
    outputs = []
    for x in (first, second, (first + second) / 2):
        changed = replace(question, v=x) if name == "v" else replace(question, k=x)
        reply = session.subject.run(changed)
        if reply.answer is None or not bool(reply.answer.output.isfinite().all()):
            return None
        outputs.append(reply.answer.output.detach())
    mean = (outputs[0] + outputs[1]) / 2
    return torch.allclose(outputs[2], mean, rtol=1e-5, atol=1e-6 * float(mean.abs().max()))


def _check_context(session: CheckSession) -> None:
    """Check attention to an optional context: compare it with the oracle, or else test what it depends on."""
    name = session.subject.arguments["context"]
    module = session.subject.module_as(session.dtype)
    question = session.cases.plain("context", T=6, seed=47).to(session.dtype)
    x, other = question.q, session.cases.plain("context", T=6, seed=48).to(session.dtype).q
    assert module is not None

    def run(x: Tensor, context: Tensor) -> Tensor | None:
        try:
            with torch.no_grad():
                fixed = make_values(session.subject.extra, question)
                result = module(x, **{**fixed, name: context})
        except Exception:  # it does not take such a context
            return None
        output = result[0] if isinstance(result, tuple | list) else result
        return output if isinstance(output, Tensor) and output.shape[:2] == x.shape[:2] else None

    output, shorter = run(x, other), run(x, other[:, :4])
    changed = x.clone()
    changed[:, 0] += 1.0
    after = run(changed, other)
    if output is None or after is None:
        session.add_untried(
            "cross-attention", f"how `{name}` is passed could not be guessed: pass a function of both"
        )
        return
    if _is_exchanged(session, x, other, output):
        evidence = (
            f"With `{name}` the output equals attention of `{name}` to the sequence: queries come from "
        )
        evidence += f"`{name}`, and keys and values from the sequence."
        session.add_mistake("cross-attention", "its two sides are exchanged", "roles-shuffled", evidence)
        return
    depends = not torch.allclose(output[:, 1:], after[:, 1:], rtol=1e-5, atol=1e-7)
    if shorter is None and depends:
        evidence = (
            f"With `{name}` the output of a token depends on other tokens of the sequence, and a shorter "
            f"`{name}` raises an error: keys or values still come from the sequence."
        )
        session.add_mistake(
            "cross-attention",
            f"`{name}` is used for some of them only",
            "context-ignored",
            evidence,
            distance=relative_difference(after[:, 1:], output[:, 1:]) / TOLERANCE,
        )
    elif (attended := _attended(session, x, other, output)) is not None:
        session.add_pass("cross-attention", f"with `{name}`, it equals attention to {attended.format(name)}")
    elif session.right_intent is not None and session.compared is session.subject:
        session.undecided = (
            f"with `{name}` it equals neither attention to `{name}` nor to both sequences: pass a function "
            "of both, or your own slow version as oracle="
        )
    elif not depends:
        session.add_pass("cross-attention", f"with `{name}`, tokens do not attend to each other")
    else:
        session.add_untried(
            "cross-attention", f"with `{name}` the output could not be compared: pass a function of both"
        )


def _is_exchanged(session: CheckSession, x: Tensor, context: Tensor, output: Tensor) -> bool:
    """Return whether the output is that of attention in which the context asks and the sequence answers."""
    intent = session.right_intent
    if intent is None or session.compared is not session.subject:
        return False
    plain = session.cases.plain("context", T=x.shape[1]).to(session.dtype)
    return intent.error(replace(plain, q=context, k=x, v=x), Answer(output)) < TOLERANCE


def _attended(session: CheckSession, x: Tensor, context: Tensor, output: Tensor) -> str | None:
    """Return to what the tokens of x attend if there is a context, by comparison with the oracle."""
    intent = session.right_intent
    if intent is None:
        return None
    keys = {"`{}`": context}
    keys |= {"`{}` and the sequence": torch.cat([context, x], 1)}
    keys |= {"the sequence and `{}`": torch.cat([x, context], 1)}
    plain = session.cases.plain("context", T=x.shape[1]).to(session.dtype)
    for attended, k in keys.items():
        for causal in dict.fromkeys((False, intent.causal)):
            question = replace(plain, q=x, k=k, v=k)
            if replace(intent, causal=causal).error(question, Answer(output)) < TOLERANCE:
                return attended
    return None
