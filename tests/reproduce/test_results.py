"""Parts of the results that are run again: what is drawn, shuffled and measured is what was claimed."""

from __future__ import annotations

import pytest
import torch

from regard.gpt import GPT, Config
from regard.reproduce import packing, position

SIZES = {"vocab_size": 16, "context_length": 12, "num_layers": 1, "num_heads": 2, "d_model": 8}


def test_pieces_are_packed_with_their_own_next_tokens() -> None:
    sizes = {"piece": 4, "pieces": 3}
    inputs, targets = packing.pack(torch.arange(100), 5, sizes, seed=0, step=1)
    assert inputs.shape == targets.shape == (5, 12)
    assert torch.equal(targets, inputs + 1)
    assert not torch.equal(inputs, packing.pack(torch.arange(100), 5, sizes, seed=0, step=2)[0])


def test_a_share_across_pieces_is_between_none_and_all() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 16, (3, 12))
    share = packing.across_share(GPT(Config(**SIZES)).eval(), ids, 4)
    # Nearly uniform attention of the rows 8 to 11, of which 8 keys are earlier pieces.
    assert share == pytest.approx(sum(8 / n for n in (9, 10, 11, 12)) / 4, abs=0.02)


def test_a_probe_reads_positions_that_are_there() -> None:
    torch.manual_seed(0)
    model = GPT(Config(**SIZES)).eval()
    ids = torch.randint(0, 16, (40, 12))
    without = position.probe_errors(model, ids).mean()
    with torch.no_grad():
        model.position_embedding.weight += torch.linspace(-1, 1, 12)[:, None] * torch.randn(8)  # type: ignore[union-attr]
    assert position.probe_errors(model, ids).mean() < 0.5 * without
