"""Renew the README's performance tables from the newest JSON files in benchmarks/results/.

    python -m benchmarks.table

What stands between the two markers in README.md is replaced, and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"


def newest(device: str) -> dict[str, Any] | None:
    found = sorted((ROOT / "results").glob(f"{device}-*.json"))
    return json.loads(found[-1].read_text()) if found else None


def table(result: dict[str, Any], passes: str) -> list[str]:
    """One row for each contender, one column for each length: its time over the fused forward pass."""
    rows = [r for r in result["rows"] if r["pass"] == passes and r["mask"] == "causal" and "ms" in r]
    main = max((r["D"], r["dtype"]) for r in rows if r["T"] == max(r["T"] for r in rows))
    rows = [r for r in rows if (r["D"], r["dtype"]) == main]
    lengths = sorted({r["T"] for r in rows})
    names = list(dict.fromkeys(r["who"] for r in rows))
    lines = ["| | " + " | ".join(f"{T:,} tokens" for T in lengths) + " |", "|---|" + "---|" * len(lengths)]
    for name in names:
        cells = []
        for T in lengths:
            row = next((r for r in rows if r["who"] == name and r["T"] == T), None)
            cells.append("–" if row is None else f"{row['to_fused']:.2f}×, {memory(row['peak_mib'])}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def memory(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{max(mib, 0):.0f} MiB"


def described(result: dict[str, Any]) -> str:
    machine = result["machine"]
    chip = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    return f"{chip}, PyTorch {machine['torch']}, {result['date']}"


def main() -> None:
    parts: list[str] = []
    for device, title in (("cpu", "On a CPU"), ("cuda", "On a GPU")):
        result = newest(device)
        if result is None:
            continue
        heads = sorted({(r["T"], r["heads"]) for r in result["rows"]})
        fewer = ", ".join(f"{h} heads at {T:,}" for T, h in heads if h != heads[0][1])
        parts += [
            f"**{title}** ({described(result)}; causal; {heads[0][1]} heads"
            + (f", {fewer}" if fewer else "")
            + ").",
            "",
        ]
        parts += [
            "Forward pass, time over the fused pass and peak memory:",
            "",
            *table(result, "forward"),
            "",
        ]
        parts += ["Looking at the map afterwards:", "", *table(result, "look"), ""]
    readme = ROOT.parent / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(before + BEGIN + "\n" + "\n".join(parts) + END + after)
    print(f"renewed {readme}")


if __name__ == "__main__":
    main()
