"""Updates the performance tables of the README from the newest JSON files in benchmarks/results/.

    python -m benchmarks.table

Only the text between the two markers in README.md is replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"


def newest(device: str) -> dict[str, Any] | None:
    """The newest result for a device, if there is one."""
    files = sorted((ROOT / "results").glob(f"{device}-*.json"))
    return json.loads(files[-1].read_text()) if files else None


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
            cells.append("–" if row is None else f"{row['to_fused']:.2f}×, {memory(row['peak_mib'])}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def memory(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{max(mib, 0):.0f} MiB"


def describe_machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    chip = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    return f"{chip}, PyTorch {machine['torch']}, {result['date']}"


def main() -> None:
    parts: list[str] = []
    for device, title in (("cpu", "On a CPU"), ("cuda", "On a GPU")):
        result = newest(device)
        if result is None:
            continue
        forward, look = select_rows(result, "forward"), select_rows(result, "look")
        first = forward[0]
        parts += [
            f"**{title}**: {describe_machine(result)}; causal, width {first['D']}, {first['dtype']}.",
            "",
        ]
        parts += [
            "The forward pass, its time over the fused one and its peak memory:",
            "",
            *table(forward),
            "",
        ]
        parts += ["Looking at the map afterwards:", "", *table(look), ""]
    readme = ROOT.parent / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(before + BEGIN + "\n" + "\n".join(parts) + END + after)
    print(f"updated {readme}")


if __name__ == "__main__":
    main()
