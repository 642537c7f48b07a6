"""Sizes that the other probes leave alone: long texts, blocks of tokens, and grouped heads.

Blocks are made small and unequal, so that a short text has several of them, and a mistake that equal blocks
hide shows. A long text is longer than every whole number by which the code may cut it. A difference there is
a mistake if it has a name, if it breaks a promise (a causal query sees the future), or if a token is lost.
Another window, or another kind of attention from some length on, is no mistake.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.diagnose import diagnose, diagnose_blocks
from regard.checker.oracle.oracle import TOLERANCE, Intent, Observation, describe_difference, relative_error
from regard.checker.oracle.question import Answer, Question
from regard.checker.probes.gradients import gradient_failure
from regard.checker.probes.numbers import check_long_half_precision
from regard.checker.probes.questions import asks_many_tokens, largest_block
from regard.checker.probes.rebuilt import check_output, rebuild
from regard.checker.reports.evidence import function_calls
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.source import BLOCK_NAME, block_sizes, whole_numbers
from regard.checker.subject.vocabulary import arguments_of, parameters_of

LENGTH = 150  # tokens: several blocks of 64, which most code has
ROTATED = 300  # with rotary positions: bfloat16 has the whole numbers up to 256 only
LONGEST = 1024  # the largest block that is tried
_USUAL = (64, 128, 256, 512)  # sizes of blocks, where the code's own are not found
_ROWS = 8  # outputs whose visible keys are measured


def probe_long_text(session: CheckSession) -> None:
    """Compare the output on one text that is longer than the constants of the code."""
    subject, intent = session.subject, session.right_intent
    kernel = subject.kernel_layout
    if intent is None or subject.is_transformers or (kernel is not None and not kernel.makes_mask):
        return
    if session.cases.fixed_length is not None:
        return
    block = largest_block(session)
    if block > LONGEST:
        how = f"its source names blocks of {block}: check it with smaller ones"
        session.add_untried("several blocks", how)
    # Blocks of up to 70 fit twice into LENGTH.
    numbers = [n for n in [*block_sizes(subject), *whole_numbers(subject)] if 70 < n <= LONGEST]
    least = LENGTH if intent.wiring.rotate is None else ROTATED
    # Two blocks and a rest that fills none; only one block and a rest where two take too long.
    length = max([least, *(2 * n + 22 if 2 * n < LONGEST else n + 22 for n in numbers)])
    if length == LENGTH and asks_many_tokens(session):
        return  # it was among the questions about its output
    own = session
    limit = session.cases.max_length
    if limit is not None and limit < length and subject.cls is not None and subject.step is None:
        longer = rebuild(session, sizes={"length": length})
        own = session if isinstance(longer, str) or longer.right_intent is None else longer
    name = "several blocks" if block else "long text"
    _compare(session, own, own.cases.plain(name, B=1, H=1, T=length, D=16, seed=60))


def _compare(session: CheckSession, own: CheckSession, question: Question) -> None:
    """Compare the answer of `own`, which is the session or its class built for longer texts."""
    intent, T = own.right_intent, question.q.shape[-2]
    assert intent is not None
    if T <= 40:  # as long as the text that was tried
        return
    question = own.with_causal_flag(question)
    reply = own.compared.run(question.to(own.dtype))
    if reply.answer is None and own is session and session.subject.cls is not None:
        longer = rebuild(session, sizes={"length": T})  # its positions may be as many as were guessed for it
        if not isinstance(longer, str) and longer.right_intent is not None:
            _compare(session, longer, question)
            return
    if reply.answer is None:
        is_long = block_sizes(own.subject) or session.cases.max_length is None
        record = session.add_untried if is_long else session.add_skip
        record(question.name, f"{question.shapes()} raised {reply.error_line}")
        return
    expected = intent.answer(question)
    error = relative_error(reply.answer, expected)
    if error < TOLERANCE:
        half = check_long_half_precision(session, own, question)
        session.add_pass(question.name, f"{T} tokens" + f", also in {half}" * bool(half))
        if failure := gradient_failure(own, own.compared, question, intent):
            session.add_failure(f"gradients, {question.name}", failure)
        return
    detail = f"with {T} tokens it {describe_difference(error)}"
    sizes = {n for n in [*_USUAL, *block_sizes(own.subject), *whole_numbers(own.subject)] if 8 <= n < T}
    matches = diagnose_blocks(Observation(question, reply.answer), intent, sorted(sizes))
    rows = _wrong_rows(reply.answer.output, expected.output)
    lost = "" if matches else _find_loss(own, question, reply.answer, intent, rows)
    if matches or lost:
        session.add_failure(question.name, detail + (f": {lost}" if lost else ""))
        for match in matches[:1]:
            session.add_match(match, error / TOLERANCE)
        return
    # A function that names its blocks, and sees every key, has the numbers of no mask: it is wrong.
    if own.module is None and block_sizes(own.subject):
        seen = _visible_keys(own, question, rows)
        if seen is None or not _explains(question, reply.answer, intent, rows, seen):
            session.add_failure(question.name, detail)
            return
    session.leave_open("another-length", name=question.name, detail=detail)


def _wrong_rows(output: Tensor, expected: Tensor) -> list[int]:
    """Return some of the rows (T of (…, T, C)) that differ, the first and the last among them."""
    if output.shape != expected.shape:
        return []
    # A comparison with NaN is False, so that a row of NaN would count as right.
    differ = (output.double() - expected.double()).abs().nan_to_num(1.0)
    differ = differ.movedim(-2, 0).flatten(1).amax(1) > TOLERANCE * expected.abs().max()
    rows = differ.nonzero().flatten()
    chosen = torch.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).round().long()
    return [int(row) for row in rows[chosen]] if len(rows) else []


def _find_loss(own: CheckSession, question: Question, answer: Answer, intent: Intent, rows: list[int]) -> str:
    """Return which promise some of the rows break, in a phrase: the future, no token, not its own key."""
    visible = _visible_keys(own, question, rows)
    if visible is None:
        return ""
    causal = intent.apply(question).causal
    for row, keys in zip(rows, visible, strict=True):
        later = keys[row + 1 :].nonzero()
        if causal and len(later):
            return f"output {row} depends on token {row + 1 + int(later[0])}"
        if not bool(keys.any()):
            return f"output {row} depends on no token"
    if question.q.shape[-2] != question.k.shape[-2]:
        return ""
    # In self-attention every output depends on its own token, by its query; numbers tell if by its key too.
    row, keys = rows[-1], visible[-1:]
    others = keys.clone()
    others[0, row] = False
    explained = _explains(question, answer, intent, [row], keys)
    if not bool(keys[0, row]) or (not explained and _explains(question, answer, intent, [row], others)):
        return f"output {row} does not see its own key"
    return ""


def _visible_keys(own: CheckSession, question: Question, rows: list[int]) -> Tensor | None:
    """Return on which tokens some rows depend, by their gradients: (rows, S). None if there are none."""
    tracked = question.tracked(own.dtype)
    answer = own.subject.run(tracked).answer
    if answer is None or not answer.output.requires_grad or not rows:
        return None
    inputs = [tracked.k] if tracked.k is tracked.v else [tracked.k, tracked.v]
    # Random factors, since the plain sum of a row is constant behind a layer norm.
    factors = torch.randn(answer.output.shape[-1], generator=torch.Generator().manual_seed(61)).to(own.dtype)
    seen = []
    for row in rows:
        total = (answer.output[..., row, :] * factors.to(answer.output.device)).sum()
        try:
            found = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
        except Exception:  # its backward pass fails, or runs once only
            return None
        depends = [g.movedim(-2, 0).flatten(1).abs().amax(1) > 0 for g in found if g is not None]
        seen.append(torch.stack(depends).any(0).cpu() if depends else torch.zeros(tracked.k.shape[-2]) > 0)
    return torch.stack(seen)


def _explains(question: Question, answer: Answer, intent: Intent, rows: list[int], visible: Tensor) -> bool:
    """Return whether the rows are right if they see these keys."""
    T, S = question.q.shape[-2], question.k.shape[-2]
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[rows] = visible
    open_intent, masked = intent.seeing(question, mask)
    got, wanted = (Answer(x.output.detach()[..., rows, :]) for x in (answer, open_intent.answer(masked)))
    return relative_error(got, wanted) < TOLERANCE


# Pairs of sizes, the first of which a kernel takes; many take powers of two only.
_BLOCKS = ((8, 12), (8, 16), (16, 32), (32, 64))


def probe_other_sizes(session: CheckSession) -> None:
    """Check grouped heads and several blocks, where parameters of the code set their number or size."""
    if session.right_intent is None:
        return
    _probe_blocks(session)
    _probe_grouped_heads(session)


def _probe_blocks(session: CheckSession) -> None:
    """Compare code whose sizes of blocks are parameters with small and unequal blocks."""
    subject, how = session.subject, "pass sizes with several blocks in 40 tokens: --with "
    if subject.module is None:
        parameters = arguments_of(subject.target)
    else:
        parameters = {} if subject.cls is None else parameters_of(subject.cls)
    # By their names and defaults: `k_bucket_size=512`.
    names = [
        name
        for name, parameter in parameters.items()
        # Not isinstance: the default of a switch such as `use_blocks=True` is an int, too.
        if BLOCK_NAME.search(name) and vocabulary.size(name) is None and type(parameter.default) is int
        if name not in subject.init
    ]
    if not names:
        probe_long_text(session)
        return
    for sizes in _BLOCKS:
        changes = {name: sizes[i % 2] for i, name in enumerate(names)}
        shown = ", ".join(f"{name}={size}" for name, size in changes.items())
        if subject.module is None:
            done = _compare_blocks(session, changes, shown)
        else:
            done = _check_rebuilt(session, changes, "several blocks", shown)
        if done:
            return
    session.add_untried("several blocks", how + " ".join(f"{name}=…" for name in names))


def _compare_blocks(session: CheckSession, changes: dict[str, Any], shown: str) -> bool:
    """Compare a function with other blocks; returns False if it does not take them."""
    subject, intent = session.compared, session.right_intent
    assert intent is not None
    blocked = subject.replaced(extra=subject.extra | changes)
    flagged = "causal" in subject.arguments and session.options.get("causal") is None
    # 70 tokens are several blocks in every pair of sizes, and the last block is not full.
    questions = [session.cases.plain("several blocks", B=1, T=70, seed=seed) for seed in (60, 61)]
    questions = [replace(questions[0], flag=True), questions[1]] if flagged else questions[:1]
    if "mask" in subject.arguments:
        questions.append(session.cases.masked("several blocks", B=1, T=70, seed=62))
    asked = [session.compare(question, intent, blocked) for question in questions]
    observations = [Observation(one.question, one.answer) for one in asked if one.answer is not None]
    if len(observations) < len(asked):
        return False
    worst = max(one.error for one in asked)
    if worst < TOLERANCE:
        session.add_pass("several blocks", shown)
        failures = (gradient_failure(session, blocked, question, intent) for question in questions)
        if failure := next(filter(None, failures), ""):
            session.add_failure("gradients, several blocks", failure)
        return True
    session.add_failure("several blocks", f"with {shown} it {describe_difference(worst)}")
    for match in diagnose(observations, [intent], session.source)[:1]:
        session.add_match(match, worst / TOLERANCE)
    return True


def _probe_grouped_heads(session: CheckSession) -> None:
    """Check a class with two key/value heads, if a parameter sets their number and none is its default."""
    subject = session.subject
    parameters = {} if subject.cls is None or subject.step is not None else parameters_of(subject.cls)
    for name, parameter in parameters.items():
        offered = vocabulary.size(name) == "groups" and parameter.default is None
        if offered and name not in subject.init:
            if not _check_rebuilt(session, {name: 2}, "grouped heads", f"{name}=2"):
                session.add_untried("grouped heads", f"pass --with {name}=…")
            return


def _check_rebuilt(session: CheckSession, changes: dict[str, Any], check: str, shown: str) -> bool:
    """Check the output of the class built with other arguments; returns False if it cannot be run so."""
    inner = rebuild(session, changes)
    if isinstance(inner, str):
        return False
    in_blocks = check == "several blocks"
    steps = [len(function_calls(side, side.cases.longer())) for side in (session, inner) if in_blocks]
    # The memory-efficient path of lucidrains' Attention is off by default, and its sizes are then not used.
    if in_blocks and steps[1] <= steps[0]:
        session.add_untried(check, f"{shown} made no difference to its steps: switch on what works in blocks")
    else:
        check_output(session, inner, check, shown)
    return True
