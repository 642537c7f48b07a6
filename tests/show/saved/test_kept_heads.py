"""The heads that a large page keeps are chosen on the first tokens of a text, not on all of it."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.gpt import GPT, Config
from regard.show.data.contents import Contents
from regard.show.saved import kept_heads
from regard.show.saved import pack as packing
from regard.show.saved.kept_heads import keep_telling_heads


def capture_random(window: int | None, tokens: int = 90) -> regard.Capture:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "context_length": 128, "num_layers": 3, "num_heads": 4, "d_model": 64}
    gpt = GPT(Config(**sizes, positions="rotary", window=window)).eval()
    return regard.capture(gpt, inputs={"input_ids": torch.arange(tokens)[None] % 30})


@pytest.mark.parametrize("window", [None, 20])
def test_heads_are_chosen_on_the_first_tokens(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first = Contents(capture_random(window)), Contents(capture_random(window, 40))
    monkeypatch.setattr(kept_heads, "RANKED", 40)
    found = [
        (row["layer"], row["head"], row["label"], row["scores"]["normalised_entropy"]["value"])
        for row in kept_heads._score_first_tokens(whole, 0)
    ]
    wanted = first[0].heads()
    assert [place[:3] for place in found] == [(row["layer"], row["head"], row["label"]) for row in wanted]
    entropies = [row["scores"]["normalised_entropy"]["value"] for row in wanted]
    assert [place[3] for place in found] == pytest.approx(entropies, abs=1e-4)
    assert whole[0]._heads is None  # no head was scored on the whole text


@pytest.mark.parametrize("sharpness", [1, 30])
def test_a_size_is_told_from_the_numbers_themselves(
    sharpness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded numbers of heads that attend sharply take several times as many bits."""
    monkeypatch.setattr(packing, "FINE", 0)  # as in a large page
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "context_length": 1400, "num_layers": 2, "num_heads": 2, "d_model": 128}
    gpt = GPT(Config(**sizes, positions="rotary")).eval()
    with torch.no_grad():
        for block in gpt.blocks:
            block.attention.qkv.weight.mul_(sharpness)
    contents = Contents(regard.capture(gpt, inputs={"input_ids": torch.randint(30, (1, 1400))}))
    packed = packing.pack(contents, values=False)
    written = sum(len(text) for name, text in packed.blocks.items() if name.startswith("layer-"))
    whole = packing.estimate_size(contents)
    assert whole == pytest.approx(written, rel=0.1)
    assert packing.estimate_size(keep_telling_heads(contents, most=whole // 2)) <= whole // 2
