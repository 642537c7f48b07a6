"""Finding out what the code is meant to compute: its shapes, its weights, its mask, and whether it is causal.

Guesses from names are verified by running the code. An `Intent` is one interpretation of the code, under
which its output is either right or wrong. If several are plausible all are kept, and the code is right if it
is right under one of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal as causal_rule
from regard.checker.cases import Cases
from regard.checker.diagnose import diagnose
from regard.checker.errors import CheckError
from regard.checker.intent import TOLERANCE, Intent, Observation
from regard.checker.oracle.oracle import expected_answer, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject import vocabulary
from regard.checker.subject.layouts.cache import CACHED_LAYOUTS, PagedLayout
from regard.checker.subject.layouts.layout import KernelLayout
from regard.checker.known_mods import known_mods
from regard.checker.subject.projections import find_wirings
from regard.checker.subject.subject import Reply, Subject, apply_rotary


@dataclass
class Understanding:
    """A subject, its interpretations, and the assumptions behind them."""

    subject: Subject
    cases: Cases
    intents: list[Intent]
    right_intent: Intent | None  # the interpretation under which the plain output is right
    dtype: torch.dtype  # in which mistakes are recognised: float64 if the code runs in it
    first: Reply  # the reply to the plain question
    assumptions: list[str] = field(default_factory=list)
    declared_causal: bool | None = None  # what the caller or the code itself declares
    fails_on_batch: bool = False  # right on one sequence; a batch fails because of .T

    @property
    def intent(self) -> Intent | None:
        """The right interpretation, or the most plausible one."""
        return self.right_intent or (self.intents[0] if self.intents else None)

    @property
    def causal(self) -> bool:
        """Whether the code should be causal by itself: by its interpretation, or by a mask that it holds."""
        if self.intent is None:
            return bool(self.declared_causal)
        rule = self.cases.always.get("rule")
        return self.intent.causal or (rule is not None and not bool(rule.to_dense(6).triu(1).any()))


def understand(
    subject: Subject, *, causal: bool | None, heads: int | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """Find out everything that the probes need to know.

    Arguments:
        subject: the code under test.
        causal, heads, scale: what the caller stated; None if nothing.
        always: fields of every question: a window, a soft cap, a causal flag.
    """
    declared = causal if causal is not None else declared_causality(subject)
    if subject.kernel_layouts:
        return _understand_kernel(subject, causal, declared, scale, always)
    if subject.layout in ("BTC", "TBC"):
        return _understand_sequences(subject, causal, declared, heads, scale, always)
    return _understand_heads(subject, causal, declared, scale, always)


def _causal_hypotheses(subject: Subject, causal: bool | None, declared: bool | None) -> list[bool]:
    """Return the possible answers to whether the code is causal by itself."""
    if causal is not None:
        return [causal]
    if "causal" in subject.arguments and "causal" not in subject.extra:
        return [False]  # its causal argument decides
    return [declared] if declared is not None else [False, True]


def _understand_heads(
    subject: Subject, causal: bool | None, declared: bool | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """Understand a function on queries, keys and values: try the usual layouts of their dimensions."""
    intents = [Intent(Wiring(scale=scale), c) for c in _causal_hypotheses(subject, causal, declared)]
    tried: dict[str, tuple[Reply, Intent | None, torch.dtype]] = {}
    # A layout in which the output is right.
    for layout in ("BHTD", "BTHD", "BTD", "TD"):
        candidate = subject.replaced(layout=layout)
        cases = Cases(candidate, always=always)
        reply, dtype = _run(candidate, cases.plain())
        right = _find_right_intent(reply, cases.plain(), intents)
        tried[layout] = reply, right, dtype
        if right is not None and not (layout == "TD" and _ran(tried, "BHTD", "BTD")):
            understanding = _of_heads(candidate, cases, intents, right, dtype, reply, declared)
            understanding.fails_on_batch = any(
                other.used_dot_t and other.error is not None for other, _, _ in tried.values()
            )
            return understanding
    # A layout in which the code at least runs; of two orders of dimensions the more plausible one.
    ran = []
    for layout in ("BHTD", "BTHD", "BTD", "TD"):
        reply, right, dtype = tried[layout]
        if reply.error is None and not (ran and layout in ("BTD", "TD")):
            candidate = subject.replaced(layout=layout)
            cases = Cases(candidate, always=always)
            ran.append(_of_heads(candidate, cases, intents, None, dtype, reply, declared))
    if ran:
        return ran[0] if len(ran) == 1 else _most_plausible(ran)
    reply = tried["BTD"][0]
    candidate = subject.replaced(layout="BHTD")
    cases = Cases(candidate, always=always)
    return _of_heads(candidate, cases, intents, None, tried["BHTD"][2], reply, declared)


# Sizes that a kernel may want: widths that are powers of two, lengths and pages that fill its blocks.
_KERNEL_SIZES: tuple[dict[str, Any], ...] = ({}, {"powers": True}, {"powers": True, "multiple": 128})
_PAGES = (4, 16, 256)


def _understand_kernel(
    subject: Subject, causal: bool | None, declared: bool | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """Understand a kernel: try the layouts that its arguments allow, in sizes that kernels take."""
    hypotheses = _causal_hypotheses(subject, causal, declared)
    if subject.kernel_layouts[0].kind in CACHED_LAYOUTS:
        hypotheses = sorted(hypotheses, reverse=True)  # with a cache it is causal, unless its numbers say not
    intents = [Intent(Wiring(scale=scale), c) for c in hypotheses]
    if subject.kernel_layouts[0].kind == "mod" and causal is declared is None and not always:
        intents += known_mods()
    tried: list[Understanding] = []
    for layout in subject.kernel_layouts:
        candidate = subject.replaced(kernel_layout=layout)
        cases, reply, dtype = _first_run(candidate, layout, always)
        right = _find_right_intent(reply, cases.plain(), intents)
        assumptions = [f"inputs {layout.description}", *(right.features if right else ())]
        found = Understanding(candidate, cases, intents, right, dtype, reply, assumptions, declared)
        if right is not None:
            return found
        tried.append(found)
    return _most_plausible(tried)


def _most_plausible(tried: list[Understanding]) -> Understanding:
    """Return the layout in which a mistake explains the numbers, or else the one that is nearest to right.

    Code that runs in several layouts is right in none of them here.
    """
    ran = [found for found in tried if found.first.error is None]
    ran.sort(key=lambda found: _smallest_error(found.first, found.cases.plain(), found.intents))
    explained = (u for u in ran if _is_explained(u.first, u.cases.plain(), u.intents))
    return next(explained, (ran or tried)[0])


def _smallest_error(reply: Reply, question: Question, intents: list[Intent]) -> float:
    """Return how far a reply is from right, in the interpretation that suits it best."""
    assert reply.answer is not None
    expected = [expected_answer(intent.apply(question), intent.wiring) for intent in intents]
    return min(relative_error(reply.answer, answer) for answer in expected)


def _first_run(
    subject: Subject, layout: KernelLayout, always: dict[str, Any]
) -> tuple[Cases, Reply, torch.dtype]:
    """Run a kernel in one layout, in the first sizes that it takes."""
    pages: list[dict[str, Any]] = [{"page": n} for n in _PAGES] if isinstance(layout, PagedLayout) else [{}]
    attempts = []
    for sizes, page in itertools.product(_KERNEL_SIZES, pages):
        cases = Cases(subject, always={**always, "layout": layout.kind, **page}, **sizes)
        reply, dtype = _run(subject, cases.plain())
        attempts.append((cases, reply, dtype))
        if reply.error is None:
            return attempts[-1]
    return attempts[0]


def _is_explained(reply: Reply, question: Question, intents: list[Intent]) -> bool:
    """Return whether a mistake reproduces a reply."""
    if reply.answer is None:
        return False
    return bool(diagnose([Observation(question, reply.answer)], intents, pairs=False))


def _ran(tried: dict[str, tuple[Reply, Intent | None, torch.dtype]], *layouts: str) -> bool:
    return any(tried[layout][0].error is None for layout in layouts)


def _of_heads(
    subject: Subject,
    cases: Cases,
    intents: list[Intent],
    right: Intent | None,
    dtype: torch.dtype,
    reply: Reply,
    declared: bool | None,
) -> Understanding:
    shapes = {"BHTD": "(B, H, T, D)", "BTHD": "(B, T, H, D)", "BTD": "(B, T, D)", "TD": "(T, D)"}
    assumptions = [f"inputs {shapes[subject.layout]}"]
    return Understanding(subject, cases, intents, right, dtype, reply, assumptions, declared)


def _understand_sequences(
    subject: Subject,
    causal: bool | None,
    declared: bool | None,
    heads: int | None,
    scale: float | None,
    always: dict[str, Any],
) -> Understanding:
    """Understand code on sequences (B, T, C): find its widths, its weights and a length that it takes."""
    # What the module declares of itself, and the interpretations of its weights.
    always = always | _declared_options(subject, always)
    hypotheses = _causal_hypotheses(subject, causal, declared)
    if isinstance(rule := always.get("rule"), Mask) and rule == causal_rule:
        always.pop("rule")
        hypotheses = [True]
    wirings = _wirings(subject, heads, scale)
    intents = [Intent(wiring, c) for wiring in wirings for c in hypotheses]
    width, context_width = _widths(subject, wirings)
    # A length that it takes; or, failing that, one sequence without a batch.
    reply, dtype, cases = Reply(None, CheckError("not run")), torch.float64, Cases(subject)
    for limit in (max_length(subject), 5, 4, 3, 2):
        cases = Cases(subject, width, context_width, limit, always)
        reply, dtype = _run(subject, cases.plain())
        if reply.error is None:
            break
    else:
        batched = Cases(subject, width, context_width, None, always)
        reply, dtype = _run(subject, batched.plain())
        cases = batched
        single = subject.replaced(layout="TC")
        if subject.layout == "BTC" and not reply.used_dot_t:
            alone, dtype_alone = _run(single, Cases(single, width, context_width, None, always).plain())
            if alone.error is None:
                subject, reply, dtype = single, alone, dtype_alone
                cases = Cases(single, width, context_width, None, always)
    right = _find_right_intent(reply, cases.plain(), intents)
    shapes = {"BTC": "(B, T, C)", "TBC": "(T, B, C)", "TC": "(T, C)"}[subject.layout]
    assumptions = [f"inputs {shapes}, C = {width}"]
    return Understanding(subject, cases, intents, right, dtype, reply, assumptions, declared)


def _run(subject: Subject, question: Question) -> tuple[Reply, torch.dtype]:
    """Run the code in float64, or in float32 if it fails in float64."""
    reply = subject.run(question)
    if reply.error is not None:
        single = subject.run(question.to(torch.float32))
        if single.error is None:
            return single, torch.float32
    return reply, torch.float64


def _find_right_intent(reply: Reply, question: Question, intents: list[Intent]) -> Intent | None:
    """Return the first interpretation under which an answer is right."""
    if reply.answer is None:
        return None
    for intent in intents:
        try:
            if (
                relative_error(reply.answer, expected_answer(intent.apply(question), intent.wiring))
                < TOLERANCE
            ):
                return intent
        except (RuntimeError, ValueError):  # a wiring whose widths do not fit
            continue
    return None


def _wirings(subject: Subject, heads: int | None, scale: float | None) -> list[Wiring]:
    """Return the possible wirings of code on sequences, most plausible first."""
    module = subject.module
    if module is None or not any(True for _ in module.parameters()):
        H = heads or subject.extra.get(subject.arguments.get("heads", ""), 1)
        plain = Wiring(H, H, splits=True, width=40, scale=scale)
        # Tutorials teach attention without weights also without the scale.
        return [plain, replace(plain, scale=1.0)] if module is None and subject.inputs == "x" else [plain]
    declared = scale if scale is not None else _declared_scale(subject)
    double = subject.module_as(torch.float64, device="cpu")
    assert double is not None
    wirings = find_wirings(double, heads=heads, declared=declared)
    if subject.rotary is not None:
        table = subject.rotary

        def rotate(x: Tensor, start: int) -> Tensor:
            cos, sin = table(start + x.shape[2], x.dtype)
            return apply_rotary(x, cos[:, start:], sin[:, start:])

        wirings = [replace(wiring, rotate=rotate) for wiring in wirings]
    return wirings


def _declared_scale(subject: Subject) -> float | None:
    """Return the scale that a module of a known family declares. In other code the scale is to be checked."""
    module = subject.module
    trusted = subject.is_transformers or type(module).__module__.startswith("regard.")
    for name in ("scaling", "scale"):
        value = getattr(module, name, None)
        if trusted and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _declared_options(subject: Subject, always: dict[str, Any]) -> dict[str, Any]:
    """Return the soft cap, window and mask that a module holds: the correct answer depends on them."""
    module = subject.module
    declared: dict[str, Any] = {}
    if module is None:
        return {}
    for name, value in vars(module).items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if isinstance(value, Mask) and name in ("mask", "rule"):
            declared["rule"] = value
        elif vocabulary.size(name) == "softcap" and number and "softcap" not in always:
            declared["softcap"] = float(value)
        elif (
            vocabulary.size(name) == "window" and isinstance(value, int) and number and "window" not in always
        ):
            declared["window"] = value
    if subject.is_transformers:
        declared.pop("window", None)  # the mask that the model passes contains it
    return declared


def _widths(subject: Subject, wirings: list[Wiring]) -> tuple[int, int]:
    """Return the widths of the queries' and the keys' inputs."""
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


def declared_causality(subject: Subject) -> bool | None:
    """Return whether the code declares itself causal: by name, triangular buffer, attribute or docstring.

    None if it declares nothing.
    """
    module = subject.module
    if subject.is_transformers:
        return None  # the model passes the mask
    by_name = vocabulary.says_causal(subject.name)
    if by_name is not None:
        return by_name
    if module is not None:
        for name, value in vars(module).items():
            if vocabulary.size(name) == "causal" and isinstance(value, bool):
                return value
        tensors = [
            *module.named_buffers(),
            *((n, v) for n, v in vars(module).items() if isinstance(v, Tensor)),
        ]
        if any(is_triangular(tensor) for _, tensor in tensors):
            return True
    if "mask" in subject.arguments or "causal" in subject.arguments:
        return None  # then the docstring describes an option
    doc = (type(module).__dict__.get("__doc__") if module is not None else subject.target.__doc__) or ""
    return vocabulary.says_causal(doc) if len(doc) < 4000 else None


def max_length(subject: Subject) -> int | None:
    """Return a module's maximum length: a size of that meaning, or the side of a square mask."""
    module = subject.module
    if module is None:
        return None
    for name, value in {**vars(module), **subject.init}.items():
        if vocabulary.size(name) == "length" and isinstance(value, int) and not isinstance(value, bool):
            return value
    tensors = [tensor for _, tensor in [*module.named_buffers(), *plain_tensors(module)]]
    squares = [t.shape[-1] for t in tensors if t.ndim >= 2 and t.shape[-1] == t.shape[-2] > 1]
    return max(squares, default=None)


def plain_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the tensors that are attributes, but neither parameters nor buffers, with their paths."""
    return [
        (f"{path}.{name}".lstrip("."), value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]


def is_triangular(tensor: Tensor) -> bool:
    """Return whether a tensor is a causal mask in a usual form: tril or triu of ones, booleans or −inf."""
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
