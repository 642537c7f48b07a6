"""Names the mistakes that explain the questions which failed: a table of mistakes and of their signs.

The texts of the mistakes are in `mistakes.toml`.
"""

from __future__ import annotations

import functools
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any

from torch import Tensor

from regard.attention.masks.base import Mask
from regard.auditor.batch import TextBatch
from regard.auditor.inside import LayerReading
from regard.auditor.result import Audit, ReadingAnswer, ReadingDiagnosis


@dataclass(frozen=True)
class ReadingMistake:
    """One way in which a model does not read what it should."""

    name: str
    what: str
    """Completes "the model …"."""
    symptom: str
    """What is seen in training or in what the model writes."""
    cause: str
    fix: str
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    """Other causes and fixes, by a name for what was seen."""


def reading_lines(mistake: ReadingMistake) -> list[str]:
    """Return a mistake explained, in lines: what it is, what you see, and every cause with its fix."""
    told = [{"cause": mistake.cause, "fix": mistake.fix}, *mistake.cases.values()]
    paragraphs = [f"{mistake.name}: the model {mistake.what}.", f"What you see: {mistake.symptom}"]
    paragraphs += [f"{word}: {text}" for case in told for word, text in case.items()]
    return [line for text in paragraphs for line in (*textwrap.wrap(text, 80, break_on_hyphens=False), "")]


@functools.cache
def reading_mistakes() -> dict[str, ReadingMistake]:
    """Return the mistakes by name; where several fit, the first is named first."""
    entries = tomllib.loads(files("regard.auditor").joinpath("mistakes.toml").read_text("utf-8"))
    return {name: ReadingMistake(name=name, **entry) for name, entry in entries.items()}


@dataclass(frozen=True)
class FailedAudit:
    """What an audit found, as far as mistakes are named by it."""

    audit: Audit
    text: TextBatch
    config: Any
    expect: Mask | None

    @cached_property
    def failed(self) -> dict[str, ReadingAnswer]:
        """By question, the answers that are wrong."""
        return {answer.question: answer for answer in self.audit.answers if answer.right is False}

    @cached_property
    def judged(self) -> list[LayerReading]:
        """The layers that were compared with what they should see."""
        return [x for x in self.audit.layers if x.is_compared]

    def evidence(self, question: str) -> str:
        """Return what was seen of a question that failed; "" if it did not."""
        return self.failed[question].evidence if question in self.failed else ""

    @cached_property
    def padding_mistake(self) -> str:
        """The name for padding that is seen: as if it were the tokens, though a mask was passed, or else."""
        seeing = [x for x in self.judged if "padding" in x.wrong]
        if any(x.sees_only_padding for x in seeing):
            return "mask-inverted"
        passed = isinstance(self.text.arguments.get("attention_mask"), Tensor)
        dropped = passed and bool(seeing) and not any(x.hears_padding for x in self.judged)
        return "mask-dropped" if dropped else "padding-seen"

    @cached_property
    def window_mistake(self) -> str:
        """The name for what is wrong with the windows of layers; "" if nothing is."""
        wide = [x for x in self.judged if "window" in x.wrong]
        narrow = [x for x in self.judged if "hidden" in x.wrong and x.window not in (None, x.expected_window)]
        if not wide and not narrow:
            return ""
        pairs = {(x.window, x.expected_window) for x in (*wide, *narrow)}
        if wide and any(x.expected_window is None for x in narrow):
            return "window-on-wrong-layers"
        if all(a is not None and b is not None and abs(a - b) == 1 for a, b in pairs):
            return "window-off-by-one"
        # In unsloth issue 8253 no window reached SDPA.
        return "window-ignored" if wide and all(x.window is None for x in wide) else "window-wrong-size"

    def windows(self, name: str) -> str:
        """Return the evidence if this is what is wrong with the windows."""
        return self.evidence("window") or self.evidence("hidden") if self.window_mistake == name else ""

    def padding(self, name: str) -> str:
        """Return the evidence if this is how padding is seen."""
        return self.evidence("padding") if self.padding_mistake == name else ""

    def lost(self, name: str) -> str:
        """Return which layers did not use their sinks or their soft cap."""
        layers = [x for x in self.judged if name in x.lost]
        keys = ", ".join(str(x.key) for x in layers[:4])
        return f"{len(layers)} layers ({keys}) have them, and did not use them" if layers else ""


def _inverted(found: FailedAudit) -> str:
    """Say how the mask of a batch is inverted: it shows the padding token and hides all others."""
    text, pad = found.text, getattr(found.config, "pad_token_id", None)
    mask = text.arguments.get("attention_mask")
    if pad is not None and isinstance(mask, Tensor) and mask.shape == text.ids.shape:
        padding, real = (text.ids.cpu() == pad), text.real
        shown, hidden = int((padding & real).sum()), int((~padding & ~real).sum())
        if shown and hidden and not bool((padding & ~real).any()) and not bool((~padding & real).any()):
            return f"it is 1 at the {shown} padding tokens (id {pad}), and 0 at the {hidden} others"
    return found.padding("mask-inverted")


def _dropped(found: FailedAudit) -> str:
    # A mask in the batch was passed, and dropped; one that is only expected may never have been passed.
    given = found.evidence("given") if found.text.given_mask is not None else ""
    return found.padding("mask-dropped") or given


def _unexpected(found: FailedAudit) -> str:
    told = found.expect is not None or found.text.given_mask is not None
    return found.evidence("hidden") if told else ""


def _apart(found: FailedAudit) -> str:
    return found.evidence("hidden") if any(x.within_rank for x in found.judged) else ""


def _ordered(found: FailedAudit) -> str:
    """Return the evidence that layers are causal which should read both ways."""
    hiding = [x for x in found.judged if "hidden" in x.wrong]
    seen = any(x.is_causal and x.expected_mask is not None and not x.expected_mask.is_causal for x in hiding)
    return found.evidence("hidden") if seen else found.evidence("both ways")


def _uncounted(found: FailedAudit) -> str:
    return found.evidence("alone") if found.text.documents is not None else ""


def _shifted(found: FailedAudit) -> str:
    text = found.text
    return found.evidence("alone") if text.documents is None and text.has_left_padding else ""


@dataclass(frozen=True)
class Sign:
    """How a mistake is known."""

    name: str
    """The mistake's name in the catalogue."""
    evidence: Callable[[FailedAudit], str]
    """Returns what was seen of it; "" if it was not."""
    alone: bool = False
    """Whether it is named only if none before it explains what was seen."""


SIGNS = (
    Sign("mask-inverted", _inverted),
    Sign("batch-items-mixed", lambda found: found.evidence("texts")),
    Sign("future-seen", lambda found: found.evidence("future")),
    Sign("documents-leak", lambda found: found.evidence("documents")),
    Sign("mask-dropped", _dropped),
    Sign("padding-seen", lambda found: found.padding("padding-seen")),
    Sign("window-on-wrong-layers", lambda found: found.windows("window-on-wrong-layers")),
    Sign("window-off-by-one", lambda found: found.windows("window-off-by-one")),
    Sign("window-ignored", lambda found: found.windows("window-ignored")),
    Sign("window-wrong-size", lambda found: found.windows("window-wrong-size")),
    Sign("unexpected-mask", lambda found: found.evidence("given") if found.text.given_mask is None else ""),
    Sign("ranks-apart", _apart, alone=True),
    Sign("causal-where-bidirectional", _ordered, alone=True),
    Sign("unexpected-mask", _unexpected, alone=True),
    Sign("sinks-lost", lambda found: found.lost("sinks")),
    Sign("softcap-lost", lambda found: found.lost("softcap")),
    Sign("positions-do-not-restart", _uncounted, alone=True),
    Sign("left-padding-shifts-positions", _shifted, alone=True),
    Sign("targets-cross-documents", lambda found: found.evidence("targets")),
    Sign("implementations-differ", lambda found: found.evidence("eager"), alone=True),
)


def diagnose(result: Audit, text: TextBatch, config: Any, expect: Mask | None) -> list[ReadingDiagnosis]:
    """Return the mistakes that explain the questions which failed, in the order of the catalogue.

    Arguments:
        result: the audit with its answers.
        text: the batch.
        config: the model's configuration, or None.
        expect: the mask that the caller expects, if any.
    """
    found = FailedAudit(result, text, config, expect)
    named: dict[str, str] = {}
    for sign in SIGNS:
        if not (sign.alone and named) and (evidence := sign.evidence(found)):
            named.setdefault(sign.name, evidence)
    diagnoses = []
    for name, mistake in reading_mistakes().items():
        if name in named:
            case = _leak_case(found) if name == "documents-leak" else ""
            told = {"cause": mistake.cause, "fix": mistake.fix} | mistake.cases.get(case, {})
            what = f"The model {mistake.what}: {named[name]}."
            diagnoses.append(ReadingDiagnosis(name, what, mistake.symptom, **told))
    return diagnoses


def _leak_case(found: FailedAudit) -> str:
    """Return which case of leaking documents this is: "" where a mask or a cache may be in the way."""
    if found.audit.is_split:
        return "ranks"
    if found.failed["documents"].inside is not False:
        return "other-layers" if any("documents" in layer.asked for layer in found.audit.layers) else ""
    arguments = found.text.arguments
    # With a cache, or with a mask of ones, Transformers does not look for documents in the positions (TRL
    # issue 5316, transformers issue 46634).
    has_cache = bool(arguments.get("use_cache", getattr(found.config, "use_cache", False)))
    return "" if has_cache or arguments.get("attention_mask") is not None else "positions-unused"
