"""Comparisons of code with the caller's reference: outputs, causality, gradients, precision.

Whatever both take is compared. A difference that shows in what the code does (it sees the future, mixes the
batch, loses precision) has a name, although no formula of the attention is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.cases import Cases
from regard.checker.intent import TOLERANCE
from regard.checker.oracle.oracle import relative_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import Answer
from regard.checker.probes.backward import run_backward
from regard.checker.probes.dependence import name_difference, visible_heads, visible_tokens
from regard.checker.probes.intervention import name_by_intervention
from regard.checker.probes.kernels import kernel_questions
from regard.checker.probes.leaks import find_leak, probe_batch
from regard.checker.probes.numbers import (
    LIMIT,
    WRONG_BFLOAT16,
    judge_weights,
    output_gradients,
    record_imprecision,
)
from regard.checker.probes.output import describe_failure, mask_ranks
from regard.checker.session import CheckSession
from regard.checker.shared_weights import WeightMatch
from regard.checker.subject.subject import (
    SEQUENCES,
    MaskForm,
    Reply,
    Subject,
    arguments_of,
    copy_module,
    in_dtype,
)
from regard.checker.triton_interpreter import has_wrong_bfloat16


@dataclass(frozen=True)
class Trial:
    """A question for both, with further keyword arguments for each of them.

    If the reference takes it, a `needed` one must not raise an error in the code under test.
    """

    question: Question
    needed: bool = True
    own: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The question's name, which is that of the check."""
        return self.question.name


@dataclass(frozen=True)
class ComparisonOutcome:
    """The code's reply to a trial, the reference's answer, and how much they differ."""

    trial: Trial
    reply: Reply
    expected: Answer
    error: float


@dataclass
class ReferencePair:
    """The code under test, whose session holds the findings, and the reference, with the same weights."""

    session: CheckSession
    reference: CheckSession
    match: WeightMatch

    @property
    def name(self) -> str:
        """The reference's name."""
        return self.reference.subject.name

    @property
    def cases(self) -> Cases:
        """Makes questions for both."""
        return self.reference.cases

    @property
    def tolerance(self) -> float:
        """The relative difference below which outputs agree: wider for code that needs half precision."""
        return max(TOLERANCE, 20 * torch.finfo(self.session.dtype).eps * (self.session.dtype.itemsize == 2))

    def share_weights(self) -> None:
        """Give both the same weights."""
        self.match.apply(self.session.subject, self.reference.subject)

    def run(self, trial: Trial) -> ComparisonOutcome | None:
        """Run both on a trial; None if the reference does not take it, or gives no finite number."""
        rounded = trial.question.to(self.session.dtype)
        theirs = _with_extra(self.reference.subject, trial.theirs).run(rounded.to(self.reference.dtype))
        if theirs.answer is None or not bool(theirs.answer.output.isfinite().any()):
            return None
        expected = theirs.answer._replace(free=_free_rows(trial.question, theirs.answer.output))
        reply = _with_extra(self.session.subject, trial.own).run(rounded)
        error = float("inf") if reply.answer is None else relative_error(reply.answer, expected)
        return ComparisonOutcome(trial, reply, expected, error)

    def difference(self, question: Question) -> float:
        """Return how much the outputs differ on a question; inf if one of the two fails."""
        outcome = self.run(Trial(question))
        return float("inf") if outcome is None else outcome.error


def _with_extra(subject: Subject, extra: dict[str, Any]) -> Subject:
    return subject.replaced(extra=subject.extra | extra) if extra else subject


def _free_rows(question: Question, output: Tensor) -> Tensor:
    """Return the rows that do not count: padding, and those without a number in the reference."""
    free = ~output.isfinite().all(-1, keepdim=True)
    if question.padding is not None and question.padding.shape[1] == question.q.shape[-2]:
        hidden = ~question.padding
        free = free | (hidden[:, None, :, None] if output.ndim == 4 else hidden[:, :, None])
    return free


def compare_outputs(pair: ReferencePair) -> None:
    """Compare the outputs at several sizes, and with every option that both take."""
    session = pair.session
    if session.undecided:
        return
    _choose_mask_form(pair)
    outcomes: list[ComparisonOutcome] = []
    for trial in _trials(pair):
        outcome = pair.run(trial)
        if outcome is None:
            continue
        if outcome.reply.answer is None and not trial.needed:
            session.add_skip(
                trial.name, f"it does not take {trial.question.shapes()}: {outcome.reply.error_line}"
            )
            continue
        outcomes.append(outcome)
    wrong = [outcome for outcome in outcomes if not outcome.error < pair.tolerance]
    if wrong and wrong[0].trial.name == "output" and not pair.match.certain:
        session.undecided = (
            f"it differs from {pair.name} ({pair.match.note}), but the weights may belong together in "
            "another way: give them the same names, or pass two modules whose weights you have made equal"
        )
        return
    for name in dict.fromkeys(outcome.trial.name for outcome in outcomes):
        worst = max((o for o in outcomes if o.trial.name == name), key=lambda o: o.error)
        if worst.error < pair.tolerance:
            session.add_pass(name, f"to {worst.error:.0e}")
        else:
            session.add_failure(name, _describe(worst))
    _name_mistakes(pair, wrong)
    if wrong:
        session.example = _smallest_case(pair, wrong)
    elif (answer := outcomes[0].reply.answer) is not None:
        _compare_statistics(session, answer, outcomes[0].expected)


def _describe(outcome: ComparisonOutcome) -> str:
    shapes = outcome.trial.question.shapes()
    if outcome.reply.answer is None:
        return f"{shapes} raised {outcome.reply.error_line}"
    if outcome.reply.answer.output.shape != outcome.expected.output.shape:
        return f"{shapes} gives {tuple(outcome.reply.answer.output.shape)}"
    if outcome.error == float("inf"):
        return f"{shapes}: NaN or inf where your reference gives numbers"
    return f"{shapes}: off by {outcome.error:.1g} of the largest number"


def _trials(pair: ReferencePair) -> Iterator[Trial]:
    """Yield the plain sizes first, then the options that both take."""
    cases, names = pair.cases, pair.session.subject.arguments.keys() & pair.reference.subject.arguments.keys()
    yield Trial(cases.plain())
    yield Trial(cases.plain(B=3, T=5, D=6, H=2, seed=3))
    yield Trial(cases.plain(B=1, T=1, seed=2))
    yield Trial(cases.plain(B=1, T=16, H=3, D=32, seed=1))
    if cases.max_length is None:
        yield Trial(cases.plain(B=2, T=65, H=1, D=16, seed=5))
    flag: dict[str, Any] = {}
    if "causal" in names and pair.session.options.get("causal") is not False:
        flag["flag"] = True
        yield Trial(replace(cases.plain("causal", seed=4), **flag))
    if "window" in names and "window" not in cases.always:
        for window in (1, 3):
            yield Trial(replace(cases.plain("window", seed=6), window=window, **flag))
    if "softcap" in names and pair.session.module is None and "softcap" not in cases.always:
        yield Trial(replace(cases.plain("softcap", seed=7), softcap=2.0, **flag))
    if "scale" in names:
        own, theirs = (s.subject.arguments["scale"] for s in (pair.session, pair.reference))
        yield Trial(cases.plain("scale", seed=13), own={own: 0.2}, theirs={theirs: 0.2})
    if "mask" in names:
        yield Trial(cases.masked(seed=11))
    if "padding" in names or ("mask" in names and pair.reference.subject.layout not in ("TD", "TC")):
        yield Trial(cases.padded(seed=12), needed="padding" in names)
    if "bias" in names:
        yield Trial(cases.biased(seed=14))
    if pair.reference.subject.layout in ("BHTD", "BTHD"):
        yield Trial(cases.plain("grouped heads", G=2, seed=8), needed=False)
        yield Trial(cases.plain("many heads", B=1, H=9, seed=17), needed=False)
    if pair.reference.subject.inputs != "x":
        yield Trial(cases.plain("cross-attention", T=4, S=7, seed=9), needed=False)
        if flag:
            yield Trial(replace(cases.plain("causal, T < S", T=3, S=7, seed=15), **flag), needed=False)
    if pair.reference.subject.inputs == "qkv" and pair.reference.subject.layout not in SEQUENCES:
        yield Trial(cases.plain("value width", E=13, seed=10), needed=False)
    kernel = {question.name for question in kernel_questions(pair.session, flag)}
    for question in kernel_questions(pair.reference, flag):
        if question.name in kernel:
            yield Trial(question)
    yield from _own_options(pair)


def _own_options(pair: ReferencePair) -> Iterator[Trial]:
    """Yield a trial for every switch and every number whose name and default both signatures share."""
    mine, theirs = (arguments_of(s.subject.target) for s in (pair.session, pair.reference))
    known = {*pair.session.subject.arguments.values(), *pair.session.subject.init}
    for name, parameter in mine.items():
        default = parameter.default
        if name in known or name not in theirs or theirs[name].default != default:
            continue
        if isinstance(default, bool | float) and default == default:
            value = not default if isinstance(default, bool) else default / 2 + 0.25
            option = {name: value}
            question = pair.cases.plain(f"{name}={value:g}", seed=16)
            yield Trial(question, needed=False, own=option, theirs=option)


def _choose_mask_form(pair: ReferencePair) -> None:
    """Find a form of mask in which the reference hides what the mask hides; both get it."""
    mine, theirs = pair.session.subject, pair.reference.subject
    if "mask" not in mine.arguments or "mask" not in theirs.arguments or theirs.mask_form != MaskForm():
        mine.mask_form = theirs.mask_form
        return
    question, running = pair.cases.masked(seed=11), []
    assert question.mask is not None
    for kind in ("look", "hide", "added", "zero-one"):
        for form in (MaskForm(kind, rank) for rank in mask_ranks(theirs.layout)):
            theirs.mask_form = mine.mask_form = form
            seen = visible_tokens(pair.reference, question)
            if seen is None or mine.run(question.to(pair.session.dtype)).answer is None:
                continue
            running.append(form)
            hidden = ~question.mask & ~torch.eye(*question.mask.shape, dtype=torch.bool)
            if not bool((seen & hidden).any()) and int(seen.sum()) > len(seen):
                pair.session.notes.append(f"{mine.arguments['mask']}: {form}")
                return
    theirs.mask_form = mine.mask_form = running[0] if running else MaskForm()


def _name_mistakes(pair: ReferencePair, wrong: list[ComparisonOutcome]) -> None:
    """Name the mistakes that show in what the outputs depend on, or in how they are rounded."""
    session = pair.session
    for outcome in wrong if not session.mixed else []:
        question = outcome.trial.question
        if outcome.reply.answer is None or outcome.trial.own:
            continue
        got, want = (visible_tokens(s, question) for s in (session, pair.reference))
        if got is not None and want is not None and (name := name_difference(question, got, want)):
            row, token = (int(i) for i in (got != want).nonzero()[0])
            verb = "depends" if bool(got[row, token]) else "does not depend"
            other = "does not" if bool(got[row, token]) else "does"
            session.add_diagnosis(
                name, f"In “{question.name}” output {row} {verb} on token {token}; your reference's {other}."
            )
        if question.q.ndim == 4 and question.k.shape[1] < question.q.shape[1]:
            _name_groups(pair, question)
    if wrong and not session.diagnoses and not session.mixed:
        _intervene(pair, wrong[0])
    small = bool(wrong) and max(outcome.error for outcome in wrong) < 3e-2
    if small and not session.diagnoses and _jumps(pair):
        worst = max(outcome.error for outcome in wrong)
        evidence = (
            f"The output agrees with {pair.name} only to {worst:.0e}, and tiny changes of the inputs "
            "do not change it smoothly: it is rounded on the way."
        )
        session.add_diagnosis("precision-lost", evidence, worst)


def _intervene(pair: ReferencePair, outcome: ComparisonOutcome) -> None:
    """Change the code's softmax until its output agrees, at two sizes, and record what that says."""
    question = pair.cases.plain(B=3, T=5, D=6, H=2, seed=3)
    options = {key: getattr(outcome.trial.question, key) for key in ("flag", "window", "softcap")}
    other = pair.run(replace(outcome.trial, question=replace(question, **options)))
    outcomes = [outcome, other or outcome]

    def difference(index: int) -> float:
        trial, expected = outcomes[index].trial, outcomes[index].expected
        subject = _with_extra(pair.session.subject, trial.own)
        answer = subject.run(trial.question.to(pair.session.dtype)).answer
        return float("inf") if answer is None else relative_error(answer, expected)

    widths = (outcome.trial.question.q.shape[-1], question.q.shape[-1])
    heads = question.q.ndim == 4
    found = name_by_intervention(difference, widths if heads else None, pair.tolerance)
    if found is not None:
        pair.session.add_diagnosis(*found)


def _name_groups(pair: ReferencePair, question: Question) -> None:
    got, want = (visible_heads(s, question) for s in (pair.session, pair.reference))
    if got is None or want is None or torch.equal(got, want):
        return
    H, G = got.shape
    tiled, interleaved = torch.eye(G, dtype=torch.bool).repeat(H // G, 1), torch.arange(H) // (H // G)
    if torch.equal(got, tiled) and torch.equal(want, interleaved[:, None] == torch.arange(G)):
        evidence = "Query head 1 reads key/value head 1; your reference's reads head 0."
        pair.session.add_diagnosis("grouped-heads-tiled", evidence)


def _jumps(pair: ReferencePair) -> bool:
    """Return whether tiny changes of the inputs change the output by steps, unlike the reference's."""
    if pair.session.dtype != torch.float64:
        return False
    question = pair.cases.plain(seed=17)
    near = question.map_inputs(lambda x: x * (1 + 1e-7))
    changes = []
    for session in (pair.session, pair.reference):
        before, after = (session.subject.run(q.to(session.dtype)).answer for q in (question, near))
        if before is None or after is None:
            return False
        changes.append((after.output - before.output).detach().double())
    return relative_difference(*changes) > 0.5


def _smallest_case(pair: ReferencePair, wrong: list[ComparisonOutcome]) -> str:
    """Describe the smallest case that differs, and its first number that does."""
    first = wrong[0].trial
    options = {key: getattr(first.question, key) for key in ("flag", "window", "softcap")}
    plain = (pair.cases.plain(first.name, B=B, T=T, H=1, seed=2) for B, T in ((1, 1), (1, 2), (1, 4), (2, 2)))
    small = (replace(first, question=replace(question, **options)) for question in plain)
    candidates = [outcome for trial in small if (outcome := pair.run(trial)) is not None]
    for outcome in [*candidates, *wrong]:
        answer = outcome.reply.answer
        if answer is not None and not outcome.error < pair.tolerance:
            difference = describe_failure(outcome.trial.question, answer.output, outcome.expected.output)
            return f"The smallest case that differs from {pair.name}:\n{difference}"
    return ""


def _compare_statistics(session: CheckSession, answer: Answer, expected: Answer) -> None:
    """Compare the weights and the log-sum-exp, if both return them."""
    if answer.weights is not None and expected.weights is not None:
        judge_weights(session, answer.weights.detach().double(), expected.weights.detach().double())
    if answer.lse is not None and expected.lse is not None:
        _compare_lse(session, answer.lse.detach().double(), expected.lse.detach().double())


def _compare_lse(session: CheckSession, got: Tensor, expected: Tensor) -> None:
    error, base_2 = relative_difference(got, expected), relative_difference(got * math.log(2), expected)
    if error < TOLERANCE:
        session.add_pass("lse", f"to {error:.0e}")
        return
    session.add_failure("lse", f"off by {error:.1g}, though the output agrees")
    if base_2 < TOLERANCE:
        session.add_diagnosis(
            "lse-base-2", "The returned lse equals your reference's divided by ln 2.", base_2
        )


def compare_batches(pair: ReferencePair) -> None:
    """Check that the items of a batch are independent, if the reference's are."""
    reference = pair.reference
    probe_batch(reference)
    if reference.mixed:
        pair.session.add_skip("batch", f"the items of a batch depend on each other in {pair.name} too")
        return
    probe_batch(pair.session)
    if pair.session.mixed:
        pair.session.add_diagnosis("batch-items-mixed", pair.session.mixed)


def compare_causality(pair: ReferencePair) -> None:
    """Check that no output depends on a later token, if none does in the reference."""
    session = pair.session
    question = pair.cases.plain("causality", seed=40)
    if "causal" in session.subject.arguments and session.options.get("causal") is None:
        question = replace(question, flag=True)
    if session.subject.inputs == "context" or find_leak(pair.reference, question) != ():
        return
    session.understanding.declared_causal = question.flag is None or bool(session.options.get("causal"))
    leak = find_leak(session, question)
    if leak:
        session.add_failure("causality", f"output {leak[0]} depends on token {leak[1]} ({leak[2]})")
        evidence = f"Output {leak[0]} depends on token {leak[1]} ({leak[2]}); your reference is causal."
        if not session.mixed and (name := _name_visibility(pair, question)):
            session.add_diagnosis(name, evidence)
    elif leak is None:
        session.add_skip("causality", "it did not run, or its output is not finite")
    else:
        session.add_pass("causality", f"no output depends on a later token, as in {pair.name}")


def _name_visibility(pair: ReferencePair, question: Question) -> str | None:
    """Return the mistake by which outputs see other tokens than the reference's; None if none fits."""
    got, want = (visible_tokens(session, question) for session in (pair.session, pair.reference))
    return None if got is None or want is None else name_difference(question, got, want)


def compare_empty_rows(pair: ReferencePair) -> None:
    """Compare rows without a visible key: they must not be NaN if the reference's are not."""
    mine, theirs = pair.session.subject, pair.reference.subject
    if pair.session.undecided or "mask" not in mine.arguments or "mask" not in theirs.arguments:
        return
    question = pair.cases.masked("empty rows", seed=50)
    assert question.mask is not None
    mask = question.mask.clone()
    mask[1] = False
    outcome = pair.run(Trial(replace(question, mask=mask)))
    if outcome is None or outcome.reply.answer is None:
        return
    got, expected = outcome.reply.answer.output.detach().double(), outcome.expected
    if bool(got[..., 1, :].isnan().any()) and bool(expected.output[..., 1, :].isfinite().all()):
        pair.session.add_failure("empty rows", f"NaN, where {pair.name} gives numbers")
        evidence = f"A query without a visible key gives NaN; in {pair.name} it gives numbers."
        pair.session.add_diagnosis("empty-row-nan", evidence)
    elif outcome.error < pair.tolerance:
        pair.session.add_pass("empty rows")
    else:
        pair.session.add_failure("empty rows", _describe(outcome))


def compare_gradients(pair: ReferencePair) -> None:
    """Compare the gradients of the inputs, and of the parameters that both have."""
    session = pair.session
    if not session.options.get("gradients", True) or not _output_agrees(pair):
        return
    question = pair.cases.plain("gradients", seed=21)
    if "causal" in session.subject.arguments and session.options.get("causal") is None:
        question = replace(question, flag=True)
    theirs = _gradients(pair.reference, question, [b for _, b in pair.match.pairs])
    if isinstance(theirs, str):
        session.add_skip("gradients", f"{pair.name} has none: {theirs}")
        return
    if failure := run_backward(session, question).failure:
        session.add_failure("gradients", f"the output agrees, but its backward pass raises {failure}")
        return
    mine = _gradients(session, question, [a for a, _ in pair.match.pairs])
    if isinstance(mine, str):
        evidence = f"The output has no gradient at all: {mine}."
        session.add_mistake("gradients", mine, "weights-detached", evidence)
        return
    errors = {name: relative_difference(mine[name], b) for name, b in zip(mine, theirs.values(), strict=True)}
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] < max(1e-4, pair.tolerance):
        session.add_pass("gradients", f"of {len(errors)} tensors, to {errors[worst]:.0e}")
        return
    session.add_failure(
        "gradients", f"that of {worst} is off by {errors[worst]:.1g}, though the output agrees"
    )
    lost = [
        n for n, b in zip(mine, theirs.values(), strict=True) if bool(b.any()) and not bool(mine[n].any())
    ]
    if lost:
        evidence = f"No gradient reaches {', '.join(lost[:4])}; in {pair.name} one does."
        session.add_diagnosis("weights-detached", evidence)


def _output_agrees(pair: ReferencePair) -> bool:
    checks = pair.session.checks
    return any(check.name == "output" and check.status == "passed" for check in checks)


def _gradients(session: CheckSession, question: Question, names: list[str]) -> dict[str, Tensor] | str:
    """Return the gradients by the inputs and the named parameters, or text that says why there are none."""
    tracked = question.tracked(session.dtype)
    module = session.subject.runnable(session.dtype)
    reply = session.subject.run(tracked, module=module)
    if reply.answer is None:
        return reply.error_line
    inputs = {id(x): (n, x) for n, x in (("v", tracked.v), ("k", tracked.k), ("q", tracked.q))}
    tensors = dict(reversed(inputs.values())) if len(inputs) > 1 else {"x": tracked.q}
    if module is not None:
        parameters = dict(module.named_parameters())
        tensors |= {name: parameters[name] for name in names if parameters[name].requires_grad}
    gradients = output_gradients(reply.answer.output, list(tensors.values()))
    return gradients if isinstance(gradients, str) else dict(zip(tensors, gradients, strict=True))


def compare_precision(pair: ReferencePair) -> None:
    """Compare the errors at each precision with the reference's own; the reference in float64 is exact."""
    if not _output_agrees(pair) or pair.reference.dtype != torch.float64:
        return
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = f"{str(dtype).removeprefix('torch.')} error"
        worst = error = 0.0
        if dtype == torch.bfloat16 and has_wrong_bfloat16():
            pair.session.add_skip(name, WRONG_BFLOAT16)
            continue
        for question in (pair.cases.plain(B=2, T=9, seed=22), pair.cases.plain(B=1, T=16, D=32, seed=1)):
            measured = _measure(pair, question, dtype)
            if isinstance(measured, str):
                pair.session.add_skip(name, measured)
                break
            if not measured[1] <= worst:
                error, worst = measured
        else:
            detail = f"{error:.1e}, {worst:.1f}× that of {pair.name}"
            if worst <= LIMIT:
                pair.session.add_pass(name, detail)
            else:
                record_imprecision(pair.session, name, detail, error, worst / LIMIT)


def _measure(pair: ReferencePair, question: Question, dtype: torch.dtype) -> tuple[float, float] | str:
    """Return the code's error at a precision and its ratio to the reference's, or why there is none."""
    rounded = question.to(dtype)
    own = pair.reference.subject.module_as(dtype)
    module = None if own is None else in_dtype(copy_module(own), torch.float64)
    exact = pair.reference.subject.run(rounded.to(torch.float64), module=module).answer
    mine, theirs = pair.session.subject.run(rounded), pair.reference.subject.run(rounded)
    for name, reply in ((pair.session.subject.name, mine), (pair.name, theirs)):
        if reply.answer is None:
            return f"{name} does not run in it: {reply.error_line}"
    assert exact is not None
    assert mine.answer is not None
    assert theirs.answer is not None
    error, floor = relative_error(mine.answer, exact), torch.finfo(dtype).eps / 2
    return error, error / max(relative_error(theirs.answer, exact), floor)


def compare_extreme_inputs(pair: ReferencePair) -> None:
    """Compare float32 outputs for inputs whose scores are in the hundreds, and for strided inputs."""
    if not _output_agrees(pair):
        return
    question = pair.cases.plain("extreme inputs", seed=30, size=14.0)
    measured = _measure(pair, question, torch.float32) if pair.reference.dtype == torch.float64 else ""
    if not isinstance(measured, str):
        if measured[1] <= LIMIT:
            pair.session.add_pass("extreme inputs")
        else:
            detail = f"off by {measured[0]:.1g}, {measured[1]:.0f}× the error of {pair.name}"
            broken = f"NaN or inf, where {pair.name} gives numbers"
            pair.session.add_failure("extreme inputs", detail if measured[0] < float("inf") else broken)
    question = pair.cases.plain("non-contiguous inputs", seed=24)
    outcome = pair.run(Trial(question.map_inputs(lambda x: x.mT.contiguous().mT)))
    if outcome is None or (outcome.reply.answer is None and "view" not in outcome.reply.error_line):
        return
    if outcome.reply.answer is None:
        evidence = f"Inputs that are not contiguous raise {outcome.reply.error_line[:120]}."
        pair.session.add_mistake(question.name, "they are refused", "view-of-strided", evidence)
    elif outcome.error < pair.tolerance:
        pair.session.add_pass(question.name)
    else:
        pair.session.add_failure(question.name, _describe(outcome))


COMPARISONS = (
    compare_batches,
    compare_outputs,
    compare_causality,
    compare_empty_rows,
    compare_gradients,
    compare_precision,
    compare_extreme_inputs,
)
