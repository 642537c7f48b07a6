"""Writes docs/learn/ideas.md: where each idea of a first course is taught, with page and heading.

    python -m scripts.ideas            rewrite the page
    python -m scripts.ideas --check    exit with 1 if it is out of date

Each idea names a file and a phrase in it. A phrase that is gone is an error, so that no idea gets lost.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from regard.support.files import atomic_write
from scripts.reference import heading_slug

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "learn" / "ideas.md"
LESSONS = "src/regard/learn/lessons"
STAGES = "src/regard/stages"


class Place(NamedTuple):
    """Where an idea is taught: a file, and a phrase in the line that teaches it."""

    file: str
    phrase: str


def lesson(name: str, phrase: str) -> Place:
    """A place in the text of a lesson."""
    return Place(f"{LESSONS}/{name}/lesson.md", phrase)


def stage(name: str, phrase: str) -> Place:
    """A place in a file of the stages."""
    return Place(f"{STAGES}/{name}.py", phrase)


IDEAS: dict[str, dict[str, tuple[Place, ...]]] = {
    "Why": {
        "a word alone is ambiguous; its neighbours tell": (lesson("00_why", "One word, two meanings"),),
        "what a recurrent network loses": (lesson("00_why", "## What a recurrent network loses"),),
        "translation as the origin: word by word fails": (
            lesson("00_why", "me help this sentence to translate"),
        ),
        "encoder and decoder; a GPT has no encoder": (lesson("00_why", "A GPT has no encoder"),),
        "where attention sits in a language model": (
            lesson("00_why", "## Where it sits in a language model"),
        ),
        "token embeddings before attention": (lesson("00_why", "each token's vector is looked up"),),
        "self-attention in plain words": (Place("docs/faq.md", "### What is self-attention"),),
    },
    "Similarity": {
        "why a dot product": (lesson("01_similarity", "## Why a dot product"),),
        "simplified self-attention, no weights": (
            lesson("01_similarity", "## The formula"),
            stage("simplified", "def simplified_self_attention"),
        ),
        "scores by hand": (lesson("01_similarity", "= 0.9106"),),
        "softmax by hand": (lesson("01_similarity", "Softmax takes the exponential"),),
        "the context vector by hand": (lesson("01_similarity", "= 0.5100"),),
    },
    "Queries, keys and values": {
        "attention as a soft lookup": (lesson("02_projections", "Attention is a *soft* lookup"),),
        "the library: question, cards, books": (lesson("02_projections", "Think of a library"),),
        "what *it* looks for: a living thing": (lesson("02_projections", "What is *it*?"),),
        "why three projections: one makes scores symmetric": (
            lesson("02_projections", "## Why three projections"),
        ),
        "queries, keys and scores by hand": (lesson("02_projections", "= 1.1171"),),
        "no bias: on keys it cancels, without rotary positions": (lesson("02_projections", "**No bias.**"),),
        "`nn.Linear` acts on the last axis": (lesson("02_projections", "acts on the last axis"),),
        "three separate matrices": (lesson("02_projections", "**Three separate matrices**"),),
        "`.transpose(-2, -1)`, not `.T`": (lesson("02_projections", "**`k.mT`, not `k.T`.**"),),
        "the flow from x to the output, with shapes": (
            lesson("02_projections", "From tokens x through three"),
            lesson("05_head", "From x through q, k and v"),
        ),
        "the table of shapes with meanings": (
            lesson("02_projections", "| tensor | shape | its meaning |"),
            lesson("05_head", "Which of them grows how"),
        ),
        "trainable self-attention as a module": (
            lesson("02_projections", "**Modules.**"),
            stage("scaled", "class SelfAttention"),
        ),
    },
    "The scale": {
        "the formula softmax(QKᵀ/√d)V": (lesson("03_scale", "## The formula"),),
        "the variance of a sum of products": (lesson("03_scale", "Variances of independent terms add up"),),
        "softmax saturates: 1 2 3 against 8 16 24": (lesson("03_scale", "## Saturation, measured"),),
        "what is not true about vanishing gradients": (lesson("03_scale", "## What is not true"),),
        "softmax over which axis": (
            lesson("01_similarity", "## Over which axis"),
            lesson("04_mask", "Softmax over the wrong axis"),
            Place("docs/myths.md", "Softmax over the wrong axis"),
        ),
    },
    "The mask": {
        "no peeking: training becomes copying": (lesson("04_mask", "## Without it, training"),),
        "the causal mask, and its formula with M": (lesson("04_mask", "## The formula"),),
        "rows as budgets": (lesson("04_mask", "Each row is a budget of 1"),),
        "naive and efficient masking": (
            lesson("04_mask", "## Before softmax or after it"),
            stage("masking", "def naive_masking"),
        ),
        "−inf or −1e9; why a causal row is never empty": (lesson("04_mask", "## −inf or −1e9"),),
        "what leaks, and the test that finds it": (lesson("04_mask", "## What leaks"),),
    },
    "A head": {
        "a head as a module, narrower than the model": (
            lesson("05_head", "It is narrower than the model"),
            stage("head", "class Head"),
        ),
        "buffer or attribute": (lesson("05_head", "## Buffer or attribute"),),
        "slice the mask; take the scale from the tensor": (
            lesson("05_head", "every call takes the corner that it needs"),
            lesson("05_head", "Take the scale from the tensor"),
        ),
        "dropout on the weights, with the numbers of a row": (lesson("05_head", "## Dropout, on one row"),),
        "verify by hand: three tokens": (lesson("05_head", "A head small enough for paper"),),
        "the task: check against PyTorch": (lesson("05_head", "Now compare with PyTorch"),),
        "the usual suspects when that check fails": (lesson("05_head", "five usual suspects"),),
    },
    "Several heads": {
        "why several: *it* has two questions": (lesson("06_heads", "What does *it* refer to?"),),
        "split, transpose, merge": (lesson("06_heads", "| step | shape | |"),),
        "how many heads real models have": (lesson("06_heads", "## How many heads real models have"),),
        "one big projection equals small ones": (lesson("06_heads", "One big projection is the small ones"),),
        "the output projection mixes heads": (lesson("07_output", "**The heads do not talk.**"),),
        "cross-attention beside self-attention": (
            lesson("07_output", "**There is only one sequence.**"),
            stage("cross", "class CrossAttention"),
        ),
    },
    "Around attention": {
        "positions: attention is blind to order": (lesson("08_positions", "# 8 Positional encoding"),),
        "the KV cache: what decoding recomputes": (
            lesson("09_cache", "# 9 The KV cache"),
            Place("docs/inspector.md", "**Write**"),
        ),
        "residual, norm, feed-forward; N blocks": (
            lesson("10_block", "The residual stream through a block"),
            lesson("10_block", "## The formula"),
        ),
        "training one's own model; diffuse, then sharp": (
            lesson("10_block", "**Watch heads become sharp.**"),
        ),
        "training a larger GPT, on a GPU": (Place("docs/training.md", "## On a GPU"),),
    },
    "Seeing it": {
        "the heatmap with tokens on both axes": (stage("figures/picture", "def draw_heatmap"),),
        "every step of the score matrix": (Place("docs/inspector.md", "Steps"),),
        "the inspector of a trained model": (Place("docs/inspector.md", "# The inspector"),),
        "a guided tour: what to see by clicking": (lesson("18_tour", "# 18 A tour of the inspector"),),
        "the gallery of heads": (Place("docs/inspector.md", "Heads"),),
        "what heads do with language": (lesson("11_trained_heads", "## On a real sentence"),),
        "what trained heads do": (lesson("11_trained_heads", "# 11 What trained heads do"),),
    },
    "To practise with": {
        "pitfalls": (Place("docs/pitfalls/index.md", "# Pitfalls"),),
        "exercises": (
            lesson("01_similarity", "## In code"),
            Place("docs/learn/index.md", "regard learn 1 --check"),
            Place("docs/learn/index.md", "## More to practise with"),
        ),
        "questions people ask": (Place("docs/faq.md", "# Questions people ask"),),
        "takeaways at the end of a lesson": (lesson("05_head", "## Takeaways"),),
        "the kinds of attention in one table": (Place("docs/learn/index.md", "## The kinds of attention"),),
    },
}


def page() -> str:
    """Return the page."""
    count = sum(map(len, IDEAS.values()))
    lines = [
        "<!-- generated by scripts/ideas.py -->",
        "# Where each idea is taught",
        "",
        f"{count} ideas that a first course on attention should teach, and the section that teaches each.",
        "If you come from a tutorial and look for something that you know from there, look here.",
        "Their names for things are in [a table](../reference/stages.md#each-tutorials-spelling).",
    ]
    for theme, ideas in IDEAS.items():
        lines += ["", f"## {theme}", "", "| idea | where |", "|---|---|"]
        lines += [f"| {idea} | {'; '.join(map(link, places))} |" for idea, places in ideas.items()]
    return "\n".join(lines) + "\n"


def link(place: Place) -> str:
    """Return a place as a link to its page, at the heading above the phrase."""
    path = ROOT / place.file
    text = path.read_text(encoding="utf-8").splitlines()
    numbers = [i for i, line in enumerate(text) if place.phrase in line]
    if not numbers:
        raise ValueError(f"{place.file} has no line with {place.phrase!r}: where is this idea taught now?")
    target = os.path.relpath(path, PAGE.parent)
    if path.suffix == ".py":
        return f"[`{place.phrase.split()[-1]}` in {path.name}]({target})"
    title, *sections = [line.lstrip("# ") for line in text[: numbers[0] + 1] if re.match(r"#+ ", line)]
    if not sections:
        return f"[{title}]({target})"
    return f"[{title} › {sections[-1]}]({target}#{heading_slug(sections[-1])})"


def main() -> None:
    """Write the page, or say whether it is up to date."""
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1)
    with atomic_write(PAGE) as file:
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
