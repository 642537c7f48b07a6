"""The survey's results as text: a summary by outcome, and the page for the docs."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import transformers

from tests.against.transformers_survey import verdict as v

Results = list[dict[str, Any]]


def counts(results: Results) -> dict[str, int]:
    found = Counter(result["outcome"] for result in results)
    return {outcome: found[outcome] for outcome in v.ORDER if found[outcome]}


def cases(results: Results) -> list[dict[str, Any]]:
    return [case for result in results for kind in result["classes"] for case in kind["cases"]]


def reason_of(result: dict[str, Any], length: int = 160) -> str:
    """One line: the first reason that belongs to the type's outcome."""
    own = [r for r in result["reasons"] if r.startswith(result["outcome"])] or result["reasons"] or [""]
    text = own[0].removeprefix(f"{result['outcome']}: ")
    text = re.sub(r"\s+", " ", text).replace("|", "/")
    return text if len(text) <= length else text[: length - 1] + "…"


def summary(results: Results) -> str:
    """Every type that is not equal and certified, by outcome, with one line of reason."""
    runs = cases(results)
    outputs = Counter(case["output"] or "no output" for case in runs)
    lines = [
        f"# Capture against Transformers {transformers.__version__}: {len(results)} model types",
        "",
        *(f"- {outcome}: {count}" for outcome, count in counts(results).items()),
        f"- runs judged: {len(runs)} ({', '.join(f'{n} {kind}' for kind, n in outputs.most_common())})",
        f"- layers: {sum(c['layers'] for c in runs)}, certified {sum(c['certified'] for c in runs)}, "
        f"compared with the plain run's weights {sum(c['compared'] for c in runs)}",
    ]
    for outcome in v.ORDER:
        if outcome in (v.EQUAL, v.NO_MODEL):
            continue
        chosen = [result for result in results if result["outcome"] == outcome]
        if chosen:
            lines += ["", f"## {outcome} ({len(chosen)})", ""]
            lines += [f"- `{result['type']}`: {reason_of(result, 260)}" for result in chosen]
    return "\n".join(lines) + "\n"


def document(results: Results) -> str:
    return summary(results)
