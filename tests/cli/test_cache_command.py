"""`regard cache`: the table of policies and budgets, the loss, the files, and wrong use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import regard
from regard.gpt import GPT
from tests.cli.conftest import TEXT, runner

run = runner("cache")


def test_a_table_a_picture_and_a_file_show_what_every_head_keeps(noisy: Path, tmp_path: Path) -> None:
    picture, file, page = (tmp_path / f"cache.{kind}" for kind in ("png", "json", "html"))
    shown = run(
        *("--model", noisy, "--text", TEXT * 9, "--policy", "tova,streaming", "--budget", "8:32"),
        *("--length", 48, "--loss", "--picture", picture, "--json", file, "--page", page),
    )
    assert re.search(r"\(48 tokens, the first of \d+: --length reads more\)", shown)
    model = GPT.from_pretrained(noisy)
    ids = torch.tensor([model.tokenizer.encode(TEXT * 9).ids[:48]])
    curve = regard.capture(model, inputs=(ids,), values=True).retained(["tova", "streaming"], [8, 16, 32])
    assert str(curve).splitlines()[1] in shown
    assert "keep less than 95% with 32 keys" in shown
    data = json.loads(file.read_text())
    assert data["budgets"] == [8, 16, 32]
    assert data["policies"]["tova"]["share"][1] == pytest.approx(curve.shares[0, 1].tolist())
    rise = regard.effect(model, [ids[0]], regard.evict("tova", 8), draws=0).value
    assert data["policies"]["tova"]["rise of the loss"][0] == pytest.approx(rise, abs=1e-6)
    assert f"{rise:+.3f}" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<title>" in page.read_text("utf-8")
    assert "#view=cache" in shown


def test_budgets_beyond_the_text_are_answered_with_a_sentence(noisy: Path) -> None:
    shown = run("--model", noisy, "--text", TEXT, "--policy", "key_norm", "--budget", "4096", "--loss")
    assert "A budget of 4,096 keys holds the whole text, so that nothing is lost." in shown
    assert "+0.000" in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--policy", "h2o,lru"), "policy: expected one of streaming, h2o, .* got 'lru'"),
        (("--policy", "h2o,tova,h2o"), "policy: expected different names, got h2o twice"),
        (("--policy", "own"), "policy: expected policies with a budget, got own"),
        (("--budget", "0"), "--budget: expected numbers of keys"),
        (("--length", "0"), "^--length: expected at least 2 tokens, got 0$"),
        (("--json", "heads.csv"), "--json: expected a file that ends with .json, got heads.csv"),
        (("--picture", "c.xyz"), "--picture: expected a file that ends with .png, .svg or .pdf, got c.xyz"),
        (("--page", "c.pdf"), "--page: expected a file that ends with .html, got c.pdf"),
        (("--text", "a", "--text", "b"), "^text: expected one text to measure, got 2$"),
        (("--picture", "no/c.png"), "--picture: expected a file in a folder that exists"),
    ],
)
def test_wrong_options_are_refused_before_the_model_is_opened(
    options: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run("--model", "no such model", *options)
