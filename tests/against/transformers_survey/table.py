"""The survey's results as the page for the docs."""

import re
from collections import Counter

import transformers

from tests.against.transformers_survey import verdict as v

MEANING = {
    v.EQUAL: "the output is the plain run's, every layer is certified, and no attention is missing",
    v.PARTLY: "as above, but for the layers that are named as missing or not certified",
    v.REFUSED: "capture raises an error that names the class",
    v.WRONG: "a failure: certified, and not what the model computes without capture",
    v.CRASH: "a failure: an error that says nothing of the class",
    v.UNNAMED: "a failure: a module mixes tokens, and is neither captured nor named",
    v.CHANGED: "a failure: the model is another one after capture",
    v.TIMEOUT: "a failure: the survey's time limit",
    v.NOT_BUILT: "no small model of it runs here; the reason is given below",
    v.NO_MODEL: "a configuration without a model class",
}


def reason_of(result, length=160):
    """One line: the first reason that belongs to the type's outcome."""
    own = [r for r in result["reasons"] if r.startswith(result["outcome"])] or result["reasons"] or [""]
    text = re.sub(r"\s+", " ", own[0].removeprefix(f"{result['outcome']}: ")).replace("|", "/").strip()
    return text if len(text) <= length else text[: length - 1] + "…"


def document(results):
    """The page for the docs: counts, then the model types of each outcome."""
    lines = [
        "# Capture and every model type of Transformers",
        "",
        f"Written by `make capture-table` with Transformers {transformers.__version__}. Each model type is",
        "built small with enlarged weights and run plainly, captured and plainly again: on given inputs, on",
        "batches padded left and right, in forward and in `generate`, with its own attention, eager and",
        "sdpa. Sequences are longer than every window, chunk and top-k. The outputs are compared bit by bit,",
        "the maps with the weights of the plain run, and every module that mixes tokens must be captured or",
        "named.",
        "",
        "| outcome | model types | meaning |",
        "|---|---:|---|",
        *(
            f"| {outcome} | {sum(result['outcome'] == outcome for result in results)} | {meaning} |"
            for outcome, meaning in MEANING.items()
        ),
        "",
        f"{_runs(results)}.",
    ]
    for outcome in MEANING:
        chosen = [result for result in results if result["outcome"] == outcome]
        if not chosen:
            continue
        lines += ["", f"## {outcome[0].upper()}{outcome[1:]}", ""]
        if outcome in (v.EQUAL, v.NO_MODEL):
            lines.append(", ".join(f"`{result['type']}`" for result in chosen))
        else:
            lines += ["| model type | reason |", "|---|---|"]
            lines += [f"| `{result['type']}` | {_in_words(result)} |" for result in chosen]
    return "\n".join(lines) + "\n"


def _in_words(result):
    """The reason without the advice that follows it in every refusal, and without names of single layers."""
    text = reason_of(result, 400)
    text = re.split(r" calls neither|: it called |; regard\.capture|: name its attention", text)[0]
    return text if len(text) <= 150 else text[:149] + "…"


def _runs(results):
    runs = [case for result in results for kind in result["classes"] for case in kind["cases"]]
    outputs = Counter(case["output"] or "without an output" for case in runs)
    kinds = ", ".join(f"{count} {kind}" for kind, count in outputs.most_common())
    layers, certified, compared = (
        sum(run[key] for run in runs) for key in ("layers", "certified", "compared")
    )
    return (
        f"Runs judged: {len(runs)}; outputs against the plain run: {kinds}; layers: {layers}, of which "
        f"{certified} certified and {compared} compared with the plain run's weights"
    )
