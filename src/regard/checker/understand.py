"""Finding out what somebody's code means to be: its shapes, its weights, its mask, and whether it is causal.

What the names suggest is tried on the code itself. An `Intent` is one reading of the code under which its
output can be called right or wrong; where several are plausible, all are kept, and the code is right if it is
right under one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.attention.masks.named import causal as causal_rule
from regard.checker.cases import Cases
from regard.checker.oracle.oracle import apart, truth
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import Answer
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import of_transformers, turned
from regard.checker.subject.construct import CheckError
from regard.checker.subject.projections import find_wirings
from regard.checker.subject.subject import Reply, Subject

TOLERANCE = 2e-5  # relative; far above rounding, far below any mistake


@dataclass(frozen=True)
class Intent:
    """One reading of the code: how its weights are wired, and whether it is causal without being asked."""

    wiring: Wiring
    causal: bool

    def read(self, question: Question) -> Question:
        """The question with its causality as this reading has it; a flag that was set decides."""
        return replace(question, causal=self.causal if question.flag is None else question.flag)


@dataclass(frozen=True)
class Observed:
    """A question and what the subject answered."""

    question: Question
    answer: Answer


@dataclass
class Understanding:
    """A subject, the readings of it, and what had to be assumed."""

    subject: Subject
    cases: Cases
    intents: list[Intent]
    right: Intent | None  # the reading under which the plain output is right
    dtype: torch.dtype  # in which mistakes are recognised: float64 where the code allows it
    first: Reply  # the answer to the plain question
    assumed: list[str] = field(default_factory=list)
    claims_causal: bool | None = None
    turned: bool = False  # right on one sequence, and it fails on a batch by .T

    @property
    def intent(self) -> Intent | None:
        return self.right or (self.intents[0] if self.intents else None)

    @property
    def causal(self) -> bool:
        """Whether it should be causal without being asked: by its reading, or by a rule that it holds."""
        if self.intent is None:
            return bool(self.claims_causal)
        rule = self.cases.always.get("rule")
        return self.intent.causal or (rule is not None and not bool(rule.to_dense(6).triu(1).any()))


def understand(
    subject: Subject, *, causal: bool | None, heads: int | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """Everything that has to be known before the checks: CheckError if the code will not run at all."""
    claims = causal if causal is not None else claim(subject)
    if subject.form in ("BTC", "TBC"):
        return _understand_sequences(subject, causal, claims, heads, scale, always)
    return _understand_heads(subject, causal, claims, scale, always)


def _hypotheses(subject: Subject, causal: bool | None, claims: bool | None) -> list[bool]:
    if causal is not None:
        return [causal]
    if "causal" in subject.arguments and "causal" not in subject.extra:
        return [False]  # unless its own switch says otherwise
    return [claims] if claims is not None else [False, True]


def _understand_heads(
    subject: Subject, causal: bool | None, claims: bool | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """A function on queries, keys and values: which of the usual shapes does it take?"""
    intents = [Intent(Wiring(scale=scale), c) for c in _hypotheses(subject, causal, claims)]
    tried: dict[str, tuple[Reply, Intent | None, torch.dtype]] = {}
    for form in ("BHTD", "BTHD", "BTD", "TD"):
        candidate = subject.adjusted(form=form)
        cases = Cases(candidate, always=always)
        reply, dtype = _ask(candidate, cases.plain())
        right = _right(reply, cases.plain(), intents)
        tried[form] = reply, right, dtype
        if right is not None and not (form == "TD" and _ran(tried, "BHTD", "BTD")):
            understood = _understood(candidate, cases, intents, right, dtype, reply, claims)
            understood.turned = any(
                other.turned and other.error is not None for other, _, _ in tried.values()
            )
            return understood
    for form in ("BHTD", "BTD", "TD"):
        reply, right, dtype = tried[form]
        if reply.error is None:
            candidate = subject.adjusted(form=form)
            return _understood(
                candidate, Cases(candidate, always=always), intents, None, dtype, reply, claims
            )
    reply = tried["BTD"][0]
    candidate = subject.adjusted(form="BHTD")
    return _understood(
        candidate, Cases(candidate, always=always), intents, None, tried["BHTD"][2], reply, claims
    )


def _ran(tried: dict[str, tuple[Reply, Intent | None, torch.dtype]], *forms: str) -> bool:
    return any(tried[form][0].error is None for form in forms)


def _understood(
    subject: Subject,
    cases: Cases,
    intents: list[Intent],
    right: Intent | None,
    dtype: torch.dtype,
    reply: Reply,
    claims: bool | None,
) -> Understanding:
    shapes = {"BHTD": "(B, H, T, D)", "BTHD": "(B, T, H, D)", "BTD": "(B, T, D)", "TD": "(T, D)"}[
        subject.form
    ]
    return Understanding(subject, cases, intents, right, dtype, reply, [f"inputs {shapes}"], claims)


def _understand_sequences(
    subject: Subject,
    causal: bool | None,
    claims: bool | None,
    heads: int | None,
    scale: float | None,
    always: dict[str, Any],
) -> Understanding:
    """Something on sequences (B, T, C): find its widths, its weights and a length that it takes."""
    always = always | _promises(subject, always)
    hypotheses = _hypotheses(subject, causal, claims)
    if isinstance(rule := always.get("rule"), Mask) and rule == causal_rule:
        always.pop("rule")
        hypotheses = [True]
    wirings = _wirings(subject, heads, scale)
    intents = [Intent(wiring, c) for wiring in wirings for c in hypotheses]
    width, context_width = _widths(subject, wirings)
    reply, dtype, cases = Reply(None, CheckError("not asked")), torch.float64, Cases(subject)
    for limit in (longest(subject), 5, 4, 3, 2):
        cases = Cases(subject, width, context_width, limit, always)
        reply, dtype = _ask(subject, cases.plain())
        if reply.error is None:
            break
    else:
        batched = Cases(subject, width, context_width, None, always)
        reply, dtype = _ask(subject, batched.plain())
        cases = batched
        single = subject.adjusted(form="TC")
        if subject.form == "BTC" and not reply.turned:
            alone, dtype_alone = _ask(single, Cases(single, width, context_width, None, always).plain())
            if alone.error is None:
                subject, reply, dtype = single, alone, dtype_alone
                cases = Cases(single, width, context_width, None, always)
    right = _right(reply, cases.plain(), intents)
    shapes = {"BTC": "(B, T, C)", "TBC": "(T, B, C)", "TC": "(T, C)"}[subject.form]
    return Understanding(
        subject, cases, intents, right, dtype, reply, [f"inputs {shapes}, C = {width}"], claims
    )


def _ask(subject: Subject, question: Question) -> tuple[Reply, torch.dtype]:
    """Ask in float64, or in float32 where float64 does not run."""
    reply = subject.ask(question)
    if reply.error is not None:
        single = subject.ask(question.to(torch.float32))
        if single.error is None:
            return single, torch.float32
    return reply, torch.float64


def _right(reply: Reply, question: Question, intents: list[Intent]) -> Intent | None:
    if reply.answer is None:
        return None
    for intent in intents:
        try:
            if apart(reply.answer, truth(intent.read(question), intent.wiring)) < TOLERANCE:
                return intent
        except (RuntimeError, ValueError):  # a wiring whose widths do not fit
            continue
    return None


def _wirings(subject: Subject, heads: int | None, scale: float | None) -> list[Wiring]:
    module = subject.module
    if module is None or not any(True for _ in module.parameters()):
        H = heads or subject.extra.get(subject.arguments.get("heads", ""), 1)
        plain = Wiring(H, H, splits=True, width=40, scale=scale)
        # Attention without weights is also taught without the scale.
        return [plain, replace(plain, scale=1.0)] if module is None and subject.takes == "x" else [plain]
    declared = scale if scale is not None else _declared_scale(subject)
    double = subject.at(torch.float64)
    assert double is not None
    found = find_wirings(double, heads=heads, declared=declared)
    if subject.rotary is not None:
        table = subject.rotary

        def rotate(x: Tensor, start: int) -> Tensor:
            cos, sin = table(start + x.shape[2], x.dtype)
            return turned(x, cos[:, start:], sin[:, start:])

        found = [replace(wiring, rotate=rotate) for wiring in found]
    return found


def _declared_scale(subject: Subject) -> float | None:
    """A scale that a module of a known family declares; anyone else's constant is what is being checked."""
    module = subject.module
    known = of_transformers(subject) or type(module).__module__.startswith("regard.")
    for name in ("scaling", "scale"):
        value = getattr(module, name, None)
        if known and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _promises(subject: Subject, always: dict[str, Any]) -> dict[str, Any]:
    """What a module says of itself that the right answer depends on: a soft cap, a window, a rule."""
    module = subject.module
    found: dict[str, Any] = {}
    if module is None:
        return {}
    for name, value in vars(module).items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if isinstance(value, Mask) and name in ("mask", "rule"):
            found["rule"] = value
        elif vocabulary.size(name) == "softcap" and number and "softcap" not in always:
            found["softcap"] = float(value)
        elif (
            vocabulary.size(name) == "window" and isinstance(value, int) and number and "window" not in always
        ):
            found["window"] = value
    if of_transformers(subject):
        found.pop("window", None)  # there the mask that comes from outside holds it
    return found


def _widths(subject: Subject, wirings: list[Wiring]) -> tuple[int, int]:
    for wiring in wirings:
        if wiring.query is not None and wiring.key is not None:
            return wiring.query.weight.shape[0], wiring.key.weight.shape[0]
    module = subject.module
    if module is None:
        return 40, 40
    for value in [
        v for name, v in vars(module).items() if vocabulary.size(name) == "width" and isinstance(v, int)
    ]:
        return value, value
    for part in module.modules():
        if isinstance(part, nn.Linear):
            return part.in_features, part.in_features
    return 48, 48


def claim(subject: Subject) -> bool | None:
    """Whether the code says that it is causal: by its name, a triangular buffer, an attribute or its
    docstring."""
    module = subject.module
    if of_transformers(subject):
        return None  # there the caller brings the mask
    said = vocabulary.says_causal(subject.name)
    if said is not None:
        return said
    if module is not None:
        for name, value in vars(module).items():
            if vocabulary.size(name) == "causal" and isinstance(value, bool):
                return value
        tensors = [
            *module.named_buffers(),
            *((n, v) for n, v in vars(module).items() if isinstance(v, Tensor)),
        ]
        if any(triangular(tensor) for _, tensor in tensors):
            return True
    if "mask" in subject.arguments or "causal" in subject.arguments:
        return None  # its docstring then speaks of what may be asked for
    doc = (type(module).__dict__.get("__doc__") if module is not None else subject.target.__doc__) or ""
    return vocabulary.says_causal(doc) if len(doc) < 4000 else None


def longest(subject: Subject) -> int | None:
    """The most tokens that a module says it takes: by a size of that name, or by a square mask."""
    module = subject.module
    if module is None:
        return None
    for name, value in {**vars(module), **subject.given}.items():
        if vocabulary.size(name) == "length" and isinstance(value, int) and not isinstance(value, bool):
            return value
    tensors = [tensor for _, tensor in [*module.named_buffers(), *plain_tensors(module)]]
    squares = [t.shape[-1] for t in tensors if t.ndim >= 2 and t.shape[-1] == t.shape[-2] > 1]
    return max(squares, default=None)


def plain_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Tensors that are attributes, but neither parameters nor buffers."""
    return [
        (f"{path}.{name}".lstrip("."), value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]


def triangular(tensor: Tensor) -> bool:
    """Whether this is a causal mask in one of its usual guises: tril or triu, of ones, of booleans or of
    −inf."""
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    square = tensor.reshape(-1, *tensor.shape[-2:])[0]
    for marked in (square != 0, square < -1e3 if square.dtype.is_floating_point else square != 0):
        n = len(marked)
        for mark in (marked, ~marked):
            lower = torch.ones(n, n, dtype=torch.bool, device=mark.device)
            if any(bool((mark == lower.tril(d)).all()) for d in (-1, 0, 1)):
                return True
    return False
