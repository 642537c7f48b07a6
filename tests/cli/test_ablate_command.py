"""`regard ablate`: the change of the loss and of the next tokens, beside random heads, and wrong use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from regard.gpt import GPT
from regard.interventions import ablate, effect
from tests.cli.conftest import TEXT as SENTENCE
from tests.cli.conftest import runner

TEXT = SENTENCE * 9
run = runner("ablate")


def test_it_prints_the_effect_beside_random_heads(noisy: Path) -> None:
    shown = run("--model", noisy, "--head", "1.2", "--text", TEXT, "--length", 32, "--windows", 3)
    assert "with head 1.2 set to zero (3 texts, 96 tokens)" in shown
    model = GPT.from_pretrained(noisy)
    ids = model.tokenizer.encode(TEXT).ids
    texts = [torch.tensor(ids[:32]), *(torch.tensor([0, *ids[i : i + 31]]) for i in (32, 63))]
    expected = effect(model, texts, ablate(1, 2))
    assert f"{expected.plain:.3f} → {expected.plain + expected.value:.3f}" in shown
    assert f"{expected.baseline_low:+.3f} to {expected.baseline_high:+.3f}" in shown
    assert "weak band of 3 sets of as many other heads" in shown
    assert ("That is more than random heads do." in shown) == (expected.value > expected.baseline_high)
    # The ten likeliest before, in order, then those that come in.
    rows = [line for line in shown.splitlines() if line.startswith("'")]
    before = [float(re.findall(r"(\d+\.\d)%", row)[0]) for row in rows[:10]]
    assert len(before) == 10
    assert before == sorted(before, reverse=True)
    assert all(len(re.findall(r"\d+\.\d%", row)) == 3 for row in rows)


def test_means_several_heads_and_labels(noisy: Path) -> None:
    shown = run("--model", noisy, "--head", "0.1", "--head", "1.3", "--mean", "--text", TEXT, "--draws", 0)
    assert "with heads 0.1, 1.3 set to its mean" in shown
    assert "none to compare with" in shown
    shown = run("--model", noisy, "--head", "1.1", "--head", "1.3", "--text", TEXT, "--draws", 4)
    assert "of other layers too" in " ".join(shown.split())  # a line of 80 columns is broken
    with pytest.raises(ValueError, match="none is labelled 'induction'"):
        run("--model", noisy, "--label", "induction", "--text", TEXT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--head: expected the heads to cut, as --head 5.3, or --label induction"),
        (("--head", "1.2", "--label", "sink"), "--head: expected the heads to cut"),
        (("--head", "5"), r"--head: expected a layer and a head, as 5.3 or decoder.5.3, got '5'"),
        (("--head", "1.x"), "--head: expected a layer and a head"),
        (("--head", "1.9"), "head: expected a head of layer 1, from 0 to 3, got 9"),
        (("--head", "7.0"), r"layer: expected one of those that ran softmax attention \(0, 1\), got 7"),
        (("--label", "inductoin"), "label: expected one of induction"),
        (("--head", "1.2", "--draws", "-1"), "draws: expected"),
        (("--head", "1.2", "--length", "1"), "--length: expected at least 2"),
    ],
)
def test_what_a_user_gets_wrong(noisy: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run("--model", noisy, "--text", TEXT, *arguments)
