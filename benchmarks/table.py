"""Updates the performance tables from the newest JSON files in benchmarks/results/.

    python -m benchmarks.table            rewrite docs/performance.md, and six rows of it in README.md
    python -m benchmarks.table --check    exit with 1 if one of them is out of date

Only the text between the two markers in each file is replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
README = ROOT.parent / "README.md"
PERFORMANCE = ROOT.parent / "docs" / "performance.md"
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"
SHORT_LENGTHS = {"On a CPU": 4096, "On a GPU": 16384}
SHORT_ROWS = {
    "PyTorch's fastest kernel": ("sdpa cuDNN", "sdpa"),
    "eager with weights": ("eager with weights",),
    "`regard.attend`": ("attend",),
    "the whole map, pooled": ("pool to 1024×1024, mass and max", "pool to 256×256, mass and max"),
    "every row's entropy and distance, every key's sum": ("entropy, distance and received together",),
    "every row's 8 largest weights": ("topk(8)",),
}
"""The rows of the short table: a label, and the first of these names that was measured."""


PASSES = ("forward", "look")
"""The passes that have a table. `--only` measures one of them anew, so they may come from two runs."""
Results = dict[str, dict[str, Any]]
"""The newest result of a device for each of `PASSES`."""


def newest(device: str) -> Results:
    """The newest results for a device that have rows of each pass; none of them if one pass has none."""
    files = sorted((ROOT / "results").glob(f"{device}-*.json"), reverse=True)
    every = [json.loads(path.read_text()) for path in files]
    found = {p: next((r for r in every if any(row["pass"] == p for row in r["rows"])), None) for p in PASSES}
    return {p: result for p, result in found.items() if result is not None} if all(found.values()) else {}


def select_rows(result: dict[str, Any], passes: str) -> list[dict[str, Any]]:
    """The rows of one pass for the table: causal, with the width and dtype of the greatest length."""
    rows = [r for r in result["rows"] if r["pass"] == passes and r["mask"] == "causal" and "ms" in r]
    longest = max(r["T"] for r in rows)
    kind = max((r["D"], r["dtype"]) for r in rows if r["T"] == longest)
    return [r for r in rows if (r["D"], r["dtype"]) == kind]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A row for each implementation and a column for each length: its time over the fused forward pass."""
    sizes = sorted({(r["T"], r["heads"]) for r in rows})
    names = list(dict.fromkeys(r["who"] for r in rows))
    titles = (f"{T:,} tokens, {heads} heads" for T, heads in sizes)
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "---|" * len(sizes)]
    for name in names:
        cells = []
        for T, _ in sizes:
            row = next((r for r in rows if r["who"] == name and r["T"] == T), None)
            cells.append("–" if row is None else cell(row))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def cell(row: dict[str, Any]) -> str:
    return f"{row['to_fused']:.2f}×, {memory(row['peak_mib'])}"


def memory(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{max(mib, 0):.0f} MiB"


def describe_machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    chip = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    return f"{chip}, PyTorch {machine['torch']}, {result['date']}"


def full_tables(results: dict[str, Results]) -> list[str]:
    """Return everything that was measured on each device, for docs/performance.md."""
    lines: list[str] = []
    for title, newest in results.items():
        forward, look = (select_rows(newest[p], p) for p in PASSES)
        first = forward[0]
        lines += [
            f"**{title}**: {describe_machines(newest)}; causal, width {first['D']}, {first['dtype']}.",
            "",
            "The forward pass, its time over the fused one and its peak memory:",
            "",
            *table(forward),
            "",
            "Looking at the map afterwards:",
            "",
            *table(look),
            "",
        ]
    return lines


def describe_machines(newest: Results) -> str:
    """The machine of a device's results; of both runs if the tables come from two."""
    forward, look = (describe_machine(newest[p]) for p in PASSES)
    return forward if forward == look else f"{forward} (the forward pass) and {newest['look']['date']}"


def short_table(results: dict[str, Results]) -> list[str]:
    """Return six rows, each at one length on each device, for README.md."""
    titles, columns = [], []
    for title, newest in results.items():
        T = SHORT_LENGTHS[title]
        rows = {r["who"]: r for p in PASSES for r in select_rows(newest[p], p) if r["T"] == T}
        first = next(iter(rows.values()))
        titles.append(f"{title[0].lower()}{title[1:]}, {T:,} tokens, {first['heads']} heads")
        columns.append(rows)
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "---|" * len(titles)]
    for label, names in SHORT_ROWS.items():
        cells = [next(cell(rows[name]) for name in names if name in rows) for rows in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    machines = "; ".join(map(describe_machines, results.values()))
    return [*lines, "", f"Measured on {machines}. [All tables](docs/performance.md) say how."]


def updated(text: str, lines: list[str]) -> str:
    """Return a document with these lines between its markers."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + "\n".join([BEGIN, *lines, END]) + after


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if out of date")
    check = parser.parse_args().check
    for path, text in documents().items():
        if path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.exit(f"{path.name}: out of date; run python -m benchmarks.table")
        path.write_text(text, encoding="utf-8")
        print(f"updated {path}")


def documents() -> dict[Path, str]:
    """Return the text of each document with its tables made anew."""
    measured = {"On a CPU": newest("cpu"), "On a GPU": newest("cuda")}
    results = {title: newest for title, newest in measured.items() if newest}
    tables = {README: short_table(results), PERFORMANCE: full_tables(results)}
    return {path: updated(path.read_text(encoding="utf-8"), lines) for path, lines in tables.items()}


if __name__ == "__main__":
    main()
