"""Whose attention maps are those that the model used? Four tools side by side, on small random models.

    python -m benchmarks.truth --environments /tmp/truth --out truth.json

Each tool runs in an environment of its own, which is made if it is not there, and is asked for the maps in
the way that its documentation shows. The judge, `benchmarks.truth_models`, computes the weights in float64
from the model's own projections. A map is one head of one layer. It is right if no weight in the row of a
token is off by more than 0.001, and else wrong; "said" counts the wrong ones that came with a warning about
attention. A tool that raises, returns nothing or marks a map as not certified has refused it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import subprocess
import tempfile
import venv
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.truth_models import CASES, Case, MapKey, load, true_weights

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-3
SEEDS = 3
TORCH = "torch==2.13.0"
TRANSFORMERS = "transformers==5.23.0"
ENVIRONMENTS = {
    "transformers": [TORCH, TRANSFORMERS, "numpy"],
    "transformer_lens": [TORCH, TRANSFORMERS, "transformer-lens==4.3.0"],
    "nnterp": [TORCH, TRANSFORMERS, "nnterp==1.3.0", "nnsight==0.7.0"],
    "regard": [TORCH, TRANSFORMERS, str(ROOT)],
}
TOOLS = {
    "output_attentions": "transformers",
    "output_attentions, eager": "transformers",
    "TransformerLens": "transformer_lens",
    "nnterp": "nnterp",
    "Regard": "regard",
}
"""The environment of each tool."""
VERDICTS = {
    "right": "right",
    "wrong": "**wrong without a word**",
    "said": "wrong, with a warning",
    "refused": "refused",
    "not loaded": "not loaded",
}
Answer = dict[MapKey, Tensor | str]
"""The weights (B, H, T, S) of each layer, or the words with which they are refused."""


class NotLoadedError(Exception):
    """The tool does not take this model."""


def ask_transformers(folder: Path, batch: dict[str, Any], **options: Any) -> Answer:
    """Ask Transformers, https://huggingface.co/docs/transformers/main_classes/output."""
    outputs = load(folder, **options)(**batch, output_attentions=True)
    return {
        (stack, number): "None is returned" if weights is None else weights
        for stack in ("", "encoder", "decoder", "cross")
        for number, weights in enumerate(outputs.get(f"{stack}_attentions".lstrip("_")) or ())
    }


def ask_eager(folder: Path, batch: dict[str, Any]) -> Answer:
    """The same with the implementation that the documentation asks for."""
    return ask_transformers(folder, batch, attn_implementation="eager")


def ask_transformer_lens(folder: Path, batch: dict[str, Any]) -> Answer:
    """Ask TransformerLens, https://transformerlensorg.github.io/TransformerLens."""
    with not_loaded():
        from transformer_lens.model_bridge import TransformerBridge

        bridge = TransformerBridge.boot_transformers(str(folder), device="cpu")
    batch = dict(batch)
    _, cache = bridge.run_with_cache(batch.pop("input_ids"), **batch)
    stacks = {
        "blocks.{}.attn": "",
        "encoder_blocks.{}.attn": "encoder",
        "decoder_blocks.{}.self_attn": "decoder",
        "decoder_blocks.{}.cross_attn": "cross",
    }
    return {
        (stack, number): cache[name]
        for prefix, stack in stacks.items()
        for number in range(2)
        if (name := f"{prefix.format(number)}.hook_pattern") in cache
    }


def ask_nnterp(folder: Path, batch: dict[str, Any]) -> Answer:
    """Ask nnterp, https://butanium.github.io/nnterp."""
    with not_loaded():
        # nnsight 0.8 has no module `nnsight.intervention.tracing`, which nnterp 1.3.0 imports.
        from nnterp import StandardizedTransformer

        model = StandardizedTransformer(str(folder), enable_attention_probs=True)
    found = []
    with model.trace(batch):
        for number in range(model.num_layers):
            found.append(model.attention_probabilities[number].save())
    return {("", number): weights for number, weights in enumerate(found)}


def ask_regard(folder: Path, batch: dict[str, Any]) -> Answer:
    """Ask Regard, docs/capture.md."""
    import regard

    seen = regard.capture(load(folder), inputs=batch)
    return {
        (layer.stack, layer.number): layer.map.to_dense() if layer.evidence.certified else str(layer.evidence)
        for layer in seen.layers
    }


ASK: dict[str, Callable[[Path, dict[str, Any]], Answer]] = {
    "output_attentions": ask_transformers,
    "output_attentions, eager": ask_eager,
    "TransformerLens": ask_transformer_lens,
    "nnterp": ask_nnterp,
    "Regard": ask_regard,
}


@contextmanager
def not_loaded() -> Iterator[None]:
    """An error in the block means that the tool does not take the model."""
    try:
        yield
    except Exception as error:
        raise NotLoadedError(last_line(error)) from error


def last_line(error: Exception) -> str:
    """What an error says in the end, without the folders of this machine."""
    said = str(error).strip().rpartition("\n")[2]
    return re.sub(r"/\S+/", "", f"{type(error).__name__}: {said}")[:300]


@contextmanager
def overheard() -> Iterator[list[str]]:
    """What the block says about attention, by warnings and in logs."""
    words: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    listener = Listener(logging.WARNING)
    loggers = [logging.getLogger(), logging.getLogger("transformers")]
    for logger in loggers:
        logger.addHandler(listener)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield words
        finally:
            words += [str(warning.message) for warning in caught]
            words[:] = list(dict.fromkeys(word[:300] for word in words if "attention" in word.lower()))
            for logger in loggers:
                logger.removeHandler(listener)


def judge(tool: str, case: Case, seed: int) -> dict[str, Any]:
    """Ask one tool for the maps of one model, and count its verdicts by head."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case.save(folder, seed)
        truth = true_weights(case, folder, seed)
        total = sum(weights.shape[1] for weights, _ in truth.values())
        row = {"case": case.name, "model_type": case.model_type, "tool": tool, "seed": seed}
        with overheard() as words:
            try:
                with torch.no_grad():
                    answer = ASK[tool](folder, case.batch(seed))
            except NotLoadedError as error:
                return row | {"counts": {"not loaded": total}, "reason": str(error)}
            except Exception as error:
                return row | {"counts": {"refused": total}, "reason": last_line(error)}
    counts: Counter[str] = Counter()
    errors, reasons = [], []
    for key, (weights, rows) in truth.items():
        theirs = answer.get(key, "it is not among those that are returned")
        heads = weights.shape[1]
        if isinstance(theirs, str):
            counts["refused"] += heads
            reasons.append(theirs[:300])
        elif theirs.shape != weights.shape:
            counts["said" if words else "wrong"] += heads
            reasons.append(f"layer {key}: its shape is {tuple(theirs.shape)}, not {tuple(weights.shape)}")
        else:
            off = (theirs.double() - weights).abs().amax(-1).nan_to_num(torch.inf)  # (B, H, T)
            worst = off.masked_fill(~rows[:, None], 0.0).amax((0, 2))
            errors += worst.tolist()
            right = int((worst <= TOLERANCE).sum())
            counts.update({"right": right, "said" if words else "wrong": heads - right})
    row["counts"] = {verdict: n for verdict, n in counts.items() if n}
    if errors:
        row["largest_error"] = max(errors)
    if reasons:
        row["reason"] = "; ".join(dict.fromkeys(reasons))
    return row | ({"words": words} if words else {})


def python_of(folder: Path, requirements: list[str]) -> Path:
    """The Python of an environment with some requirements, which is made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    return python


def installed() -> dict[str, str]:
    """The versions that matter in this environment."""
    names = ("torch", "transformers", "transformer-lens", "nnterp", "nnsight", "regard")
    there = {x.metadata["Name"].lower() for x in metadata.distributions()}
    return {"python": platform.python_version(), **{x: metadata.version(x) for x in names if x in there}}


def run_tool(tool: str, environments: Path, seeds: int) -> dict[str, Any]:
    """Judge a tool in its own environment; return its versions and its rows."""
    name = TOOLS[tool]
    python = python_of(environments / name, ENVIRONMENTS[name])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [python, "-m", "benchmarks.truth", "--tool", tool, "--seeds", str(seeds), "--out", out]
        subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        result: dict[str, Any] = json.loads(out.read_text())
    return result


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: the verdicts for each model and tool, with their shares if there are several."""

    def share(chosen: list[dict[str, Any]]) -> str:
        counts: Counter[str] = sum((Counter(row["counts"]) for row in chosen), Counter())
        shares = {x: counts[x] / counts.total() for x in VERDICTS if counts[x]}
        if len(shares) == 1:
            return VERDICTS[next(iter(shares))]
        return ", ".join(f"{VERDICTS[x]} {100 * y:.0f} %" for x, y in shares.items())

    lines = [f"| | model | {' | '.join(TOOLS)} |", "|---" * (len(TOOLS) + 2) + "|"]
    for case in CASES:
        cells = [share([r for r in rows if (r["case"], r["tool"]) == (case.name, tool)]) for tool in TOOLS]
        lines.append(f"| {case.name} | {case.model_type} | {' | '.join(cells)} |")
    totals = [sum((Counter(r["counts"]) for r in rows if r["tool"] == tool), Counter()) for tool in TOOLS]
    for verdict, label in VERDICTS.items():
        if not any(counts[verdict] for counts in totals):
            continue
        cells = [f"{100 * counts[verdict] / counts.total():.0f} %" for counts in totals]
        lines.append(f"| all: {label} | | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--environments", type=Path, default=Path("out/truth"), help="where they are made")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="models of each kind")
    parser.add_argument("--out", type=Path, default=Path("truth.json"))
    parser.add_argument("--tool", choices=TOOLS, help="judge this one, in this environment")
    options = parser.parse_args()
    if options.tool is not None:
        rows = [judge(options.tool, case, seed) for case in CASES for seed in range(options.seeds)]
        options.out.write_text(json.dumps({"versions": installed(), "rows": rows}))
        return
    results = {tool: run_tool(tool, options.environments.absolute(), options.seeds) for tool in TOOLS}
    rows = [row for result in results.values() for row in result["rows"]]
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python -m benchmarks.truth --seeds {options.seeds}",
        "tolerance": TOLERANCE,
        "seeds": list(range(options.seeds)),
        "versions": {tool: result["versions"] for tool, result in results.items()},
        "rows": rows,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
