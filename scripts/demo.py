"""The story that `make demo` tells: one head, one mistake, one page, one lesson.

    python -m scripts.demo

It writes out/inspect.html in the present folder, and nothing else.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import os
import sys
import textwrap
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

import regard
from regard.cli import app
from regard.gpt import GPT
from regard.show.terminal import SHADES
from regard.support.cells import shade

TEXT = "The ships will come home. If the lamp is lit, the ships will"
LAYER, HEAD = 4, 0  # the induction head of the included model
PAGE = Path("out", "inspect.html")


class CausalAttention(nn.Module):
    """Attention with a mistake: the mask comes too late."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return weights.tril() @ v  # no token sees a later one


def look(console: Console) -> None:
    """Show what one head of the included model attends to."""
    seen = regard.capture(GPT.from_pretrained("default"), text=TEXT)
    tokens, weights = seen.tokens[0], seen[LAYER, HEAD][0].to_dense()  # (T, T)
    say(
        console,
        "Look",
        f'A small trained model reads "{TEXT}". What does each token (a word or a piece of one) attend to? '
        f"This is layer {LAYER}, head {HEAD}: one row for each token, one column for each token that it can "
        "see. The darker a cell, the more attention.",
    )
    console.print()
    for line in map_lines(console, tokens, weights):
        console.print(line)
    certified = sum(evidence.certified for evidence in seen.certificate.evidence)
    last, key = len(tokens) - 1, int(weights[-1].argmax())
    say(
        console,
        "",
        f'Look at the last row: "{tokens[last].strip()}" puts {weights[last, key]:.2f} of its attention on '
        f'"{tokens[key].strip()}", which followed it the first time; uniform attention would put '
        f"{1 / len(tokens):.2f} there. A head that does so is an induction head. The dark first column is a "
        "sink: the token that receives most of the attention.",
    )
    say(
        console,
        "",
        f"These are the weights that the model used: in {certified} of {len(seen.certificate)} layers, "
        "weights times values give the layer's own output.",
    )


def map_lines(console: Console, tokens: list[str], weights: Tensor) -> list[Text]:
    """Return a line for each query: its token, its weights as shades, and its strongest key but the first."""
    lines = []
    for i, token in enumerate(tokens):
        line = Text(f"{token.strip():>15} ")
        for weight in weights[i, : i + 1].sqrt().tolist():
            if console.is_terminal and console.color_system is not None:
                line.append("  ", style=f"on {shade(weight)}")
            else:
                line.append(SHADES[round(weight * (len(SHADES) - 1))] * 2)
        rest = weights[i, 1 : i + 1]
        if i and rest.max() > 0.3:
            line.append(f"  → {tokens[int(rest.argmax()) + 1].strip()} {rest.max():.2f}", style="bold")
        lines.append(line)
    return lines


def check(console: Console) -> None:
    """Show a wrong attention and what the checker says of it."""
    say(console, "Check", "Here is a causal attention. It runs, it trains, and it is wrong:")
    source = textwrap.dedent(inspect.getsource(CausalAttention.forward)).splitlines()
    for line in source[1:]:
        console.print(Text("   " + line, style="cyan"))
    report = regard.check(CausalAttention)
    diagnosis = report.diagnoses[0]
    console.print()
    console.print(Text(f"{' ' * 7}{report.verdict.upper()}: {diagnosis.name}", style="bold red"))
    say(console, "", f"{diagnosis.what} {diagnosis.effect}\nThe fix: {diagnosis.fix}")


def page(console: Console) -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app(["inspect", "--out", str(PAGE)], standalone_mode=False)
    say(
        console,
        "See",
        f"{PAGE} ({PAGE.stat().st_size / 1e6:.0f} MB) is a page of every head of that model on a longer "
        "text. Open it in a browser: the short diagonals are phrases that come back. Click a dark cell, then "
        "Steps: you see how that weight was computed, number by number.",
    )


def learn(console: Console) -> None:
    """Say how to go on."""
    command = os.path.relpath(Path(sys.executable).parent / "regard")
    say(
        console,
        "Learn",
        "Now write it yourself, in lessons that name your mistakes as above. The first one:",
    )
    console.print(Text(f"\n{' ' * 7}{command} learn 0", style="bold green"))


def say(console: Console, title: str, sentences: str) -> None:
    """Print a title in the margin, and sentences beside it, after an empty line."""
    console.print()
    lines = [line for part in sentences.splitlines() for line in textwrap.wrap(part, 72)]
    for i, line in enumerate(lines):
        console.print(Text.assemble((f"{'' if i else title:<7}", "bold cyan"), line))


def main() -> None:
    console = Console(highlight=False, soft_wrap=True)
    for part in (look, check, page, learn):
        part(console)


if __name__ == "__main__":
    main()
