"""Cuts heads and sink edges of the included model and of SmolLM2, and writes what it costs: cut_heads.json.

    python -m scripts.cut_heads [--model default] [--model smollm2]
    python -m scripts.cut_heads --table     only write the table of the page, from cut_heads.json

Both read random tokens that are repeated. docs/explanation/does-this-head-matter.md has the numbers as a
table; `tests/test_docs.py` fails if it is out of date. SmolLM2 takes some minutes on a CPU, after
`regard data smollm2`.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, Literal

import regard
from regard.gpt import GPT
from regard.heads import probe, repeated
from regard.interventions.edit import Edit

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "does-this-head-matter.md"
_TABLE = re.compile(r"(<!-- cut heads: begin -->\n).*?(<!-- cut heads: end -->)", re.DOTALL)
NAMES = {"default": "included", "smollm2": "SmolLM2"}
POSITIONS: tuple[Literal["repeated", "first"], ...] = ("repeated", "first")
SINK = (slice(None), 0)  # the edges of all queries to the first token
TEXTS: dict[str, dict[str, int]] = {  # 0 is a start token in both models
    "default": {"start": 0, "tokens": 25, "times": 4, "draws": 10},
    "smollm2": {"start": 0, "tokens": 20, "times": 2, "draws": 5},
}
DRAWS = {"default": 20, "smollm2": 8}  # random edits; a layer of SmolLM2 has eight other heads
CLEAR_INDUCTION = 0.25  # score from which a head counts as one of the induction heads of a model
CUT = {"default": [(4, 0), (4, 2), (3, 3), (2, 2)], "smollm2": [(18, 6), (17, 4), (18, 8)]}
WITHOUT_SINK = {"default": [(4, 2)], "smollm2": [(18, 8), (18, 6)]}


def measure(name: str) -> dict[str, Any]:
    """Return the scores of every head of a model, and the effects of the interesting edits."""
    model = GPT.from_pretrained(name)
    texts = repeated(model.config.vocab_size, **TEXTS[name])  # (draws, 1 + tokens · times)
    scores = {
        f"{layer}.{head}": {
            score: round(float(getattr(values, score)[:, head].mean()), 3)
            for score in ("induction", "previous_token", "sink")
        }
        for layer, values in enumerate(probe(model.maps, texts)[0])
        for head in range(model.config.num_heads)
    }
    edits: dict[str, Edit] = {f"cut {i}.{h}": regard.ablate(i, h) for i, h in CUT[name]}
    edits |= {f"sink {i}.{h}": regard.block(i, h, SINK) for i, h in WITHOUT_SINK[name]}
    together = [place for place, score in scores.items() if score["induction"] >= CLEAR_INDUCTION]
    if len(together) > 1:
        pairs = [(int(place.split(".")[0]), int(place.split(".")[1])) for place in together]
        edits["cut induction heads"] = regard.ablate(heads=pairs)
    effects: dict[str, Any] = {}
    for title, edit in edits.items():
        effects[title] = {}
        for positions in POSITIONS:
            effect = regard.effect(model, texts, edit, positions=positions, draws=DRAWS[name])
            effects[title][positions] = {
                field: round(getattr(effect, field), 3)
                for field in ("value", "low", "high", "plain", "baseline_low", "baseline_high")
            } | {"random_edits": len(effect.baseline), "beyond": effect.beyond_baseline}
            print(name, title, positions, effect, flush=True)
    result = {"texts": TEXTS[name], "induction_heads": together, "scores": scores, "effects": effects}
    if name == "default":  # small enough to cut every head
        table = regard.importance(model, texts, positions="repeated")
        fields = ("value", "low", "high")
        result["importance"] = {
            row.place: {field: round(getattr(row.scores["importance"], field), 3) for field in fields}
            for row in table
        }
    return result


def write_table(page: str, results: dict[str, Any]) -> str:
    """Return the page with the table of the effects."""
    lines = [
        "| model | edit | repeated tokens | random edits | first occurrences | random edits |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, result in results.items():
        for title, effects in result["effects"].items():
            cells = [cell for positions in POSITIONS for cell in _effect_cells(effects[positions])]
            words = _edit_words(title, result["scores"], result["induction_heads"])
            lines.append(f"| {NAMES[name]} | {words} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    return _TABLE.sub(lambda found: found[1] + table + found[2], page)


def _edit_words(title: str, scores: dict[str, Any], induction_heads: list[str]) -> str:
    """Return what was cut, and the highest score of the head."""
    kind, _, place = title.partition(" ")
    if place not in scores:
        return f"all {len(induction_heads)} induction heads"
    if kind == "sink":
        return f"sink edges of {place}"
    score = max(scores[place], key=scores[place].__getitem__)
    return f"{place} ({score.replace('_', ' ')} {scores[place][score]:.2f})"


def _effect_cells(effect: dict[str, Any]) -> tuple[str, str]:
    """Return an effect with its interval, and the band; bold if it is beyond the band and clearly not 0."""
    value, low, high, band_low, band_high = (
        f"{effect[field]:+.2f}".replace("-", "−").replace("−0.00", "+0.00")
        for field in ("value", "low", "high", "baseline_low", "baseline_high")
    )
    clear = effect["beyond"] and not effect["low"] <= 0 <= effect["high"]
    value = f"**{value}**" if clear else value
    return f"{value} ({low} to {high})", f"{band_low} to {band_high}"


def main() -> None:
    """Measure the models that are named, by default both, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", action="append", choices=list(TEXTS), help="default and smollm2")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in [] if arguments.table else arguments.model or list(TEXTS):
        results[name] = measure(name)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(write_table(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
