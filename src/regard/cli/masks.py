"""`regard masks`: what does each kind of layer of a model see?"""

from __future__ import annotations

import re
from pathlib import Path

import typer

from regard.auditor.batch import sample_batches
from regard.auditor.inside import layers_title
from regard.auditor.model_audit import audit
from regard.auditor.picture import LEGEND, terminal_picture
from regard.auditor.result import Audit
from regard.cli.audit import run_audit, write_page
from regard.cli.parts.model import open_module
from regard.cli.parts.output import allow_closed_pipe
from regard.support.characters import escape

# A folder or a name on the hub ends in no .py.
IN_FILE = re.compile(r"\.py(:[\w.]+)?$")
TITLES = {
    "plain": "a plain text",
    "padded": "a text with padding on the left",
    "packed": "two packed documents",
}


def masks(*, target: str, out: Path | None, tokens: int) -> None:
    """Draw the mask of every kind of layer of a model: on your batch, or on three that are made for it."""
    audits = {"": run_audit(target, outside=False)} if IN_FILE.search(target) else _sampled(target, tokens)
    with allow_closed_pipe():
        for title, result in audits.items():
            if title:
                typer.echo(f"## {title}\n")
            _draw(result)
        typer.echo(LEGEND)
        # Every audit of a model says the same of layers that it did not hear: each sentence is printed once.
        sentences = (x for result in audits.values() for x in (*result.not_heard, *result.notes))
        for sentence in dict.fromkeys(sentences):
            typer.echo(escape(sentence))
    write_page(audits, out)


def _draw(result: Audit) -> None:
    for layers in result.groups():
        unjudged = "" if layers[0].expected else "; not compared with what it should see"
        typer.echo(escape(f"{layers_title(layers)}: {layers[0].mask}{unjudged}"))
        typer.echo(f"{terminal_picture(layers[0])}\n")


def _sampled(name: str, tokens: int) -> dict[str, Audit]:
    """Return what a model sees on each of the batches that are made for it."""
    model = open_module(name)
    audits = {}
    for kind, batch in sample_batches(model, tokens).items():
        mask = batch.get("mask")
        # The audit is told what the packed batch means, since the model is given a mask and no ids of
        # documents.
        documents = None if mask is None else mask.ids
        audits[TITLES[kind]] = audit(model, batch, documents=documents, outside=False)
    sizes = {x.expected_window for result in audits.values() for x in result.layers if x.expected_window}
    # Otherwise the pictures of windows would look causal, and a reader would think that there are none.
    if sizes and min(sizes) > tokens:
        longer = f"windows of {min(sizes)} keys are longer than these texts: --tokens {2 * min(sizes)}"
        next(iter(audits.values())).notes.append(longer)
    return audits
