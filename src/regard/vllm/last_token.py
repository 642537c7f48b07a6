"""What a request's last token attends to, as a few numbers for each head, and how a request asks for it.

A request is marked by its own `extra_args={"regard": …}`. What is returned is plain numbers, computed in the
worker from one row of a map that was compared with vLLM's own output; nothing is stored. This file knows
one row of weights and one request's mark; it does not know vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from regard.recorder.certificates.certificate import Evidence

MARK = "regard"
"""The name in a request's `extra_args`."""
FORMS = '"capture", "last token" or {"spans": {name: [first, stop]}}'


class RequestMark(NamedTuple):
    """What a request asks for: a capture in a folder, or the shares of its last token."""

    captured: bool
    spans: dict[str, tuple[int, int]]
    """The positions [first, stop) of the spans whose shares are asked for."""


def read_mark(extra_args: dict[str, Any] | None) -> RequestMark | None:
    """Return what a request's `extra_args` ask for; None if nothing.

    >>> read_mark({"regard": {"spans": {"question": [3, 9]}}})
    RequestMark(captured=False, spans={'question': (3, 9)})
    """
    mark = (extra_args or {}).get(MARK)
    if mark is None:
        return None
    if mark in ("capture", "last token"):
        return RequestMark(mark == "capture", {})
    spans = mark.get("spans") if isinstance(mark, dict) and set(mark) == {"spans"} else None
    if not isinstance(spans, dict) or not all(map(_is_span, spans.values())):
        raise ValueError(f"extra_args: expected {MARK!r} to be {FORMS}, got {mark!r}")
    return RequestMark(False, {str(name): (first, stop) for name, (first, stop) in spans.items()})


def _is_span(span: Any) -> bool:
    """Whether something is a pair of positions [first, stop) that has a token."""
    if not isinstance(span, (list, tuple)) or len(span) != 2:
        return False
    return all(type(x) is int for x in span) and 0 <= span[0] < span[1]


@dataclass
class LastToken:
    """The shares of the last token that a request has read, by layer."""

    spans: dict[str, tuple[int, int]]
    position: int = -1
    rows: int = 0
    """The number of rows that were compared with vLLM's output, each in every layer."""
    compared: dict[str, bool] = field(default_factory=dict)
    """Whether all the rows of a layer were certified."""
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(
        self, layer: str, heads: range, weights: Tensor, first: int, prompt: int, evidence: Evidence
    ) -> None:
        """Read the row of the last token: weights (H, S) of the keys from position `first` on."""
        self.position = first + weights.shape[1] - 1
        self.rows += layer == next(iter(self.layers), layer)  # the layers of a step run in order
        self.compared[layer] = self.compared.get(layer, True) and evidence.certified
        self.layers[layer] = {
            "heads": list(heads),
            "certified": evidence.certified,
            "difference": evidence.difference,
            "tolerance": evidence.tolerance,
            "sink": _share(weights, first, 0, 1),
            "sink_logit": (1 - weights.sum(1)).clamp(min=0).tolist() if evidence.sinks else None,
            "lookback": _lookback(weights, first, prompt),
            "spans": {name: _share(weights, first, *span) for name, span in self.spans.items()},
        }

    def answer(self) -> dict[str, Any]:
        """What is returned of the request, as plain numbers and text."""
        certified = bool(self.compared) and all(self.compared.values())
        return {"position": self.position, "rows": self.rows, "certified": certified, "layers": self.layers}


def _share(weights: Tensor, first: int, start: int, stop: int) -> list[float]:
    """The attention to positions [start, stop), by head; keys before `first` are hidden and have none."""
    share: list[float] = weights[:, max(0, start - first) : max(0, stop - first)].sum(1).tolist()
    return share


def _lookback(weights: Tensor, first: int, prompt: int) -> list[float] | None:
    """The lookback ratio by head (Chuang et al., 2024); None before the first generated token.

    It is A(prompt) / (A(prompt) + A(generated)), where A is the mean weight of a key there.
    """
    generated = first + weights.shape[1] - prompt
    if generated <= 0 or prompt <= 0:
        return None
    split = max(0, prompt - first)
    before, after = weights[:, :split].sum(1) / prompt, weights[:, split:].sum(1) / generated
    ratio: list[float] = (before / (before + after).clamp(min=1e-30)).tolist()
    return ratio
