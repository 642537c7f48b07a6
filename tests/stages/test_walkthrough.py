"""`regard stages`: what it prints. `tests/cli/test_cli.py` has what it writes."""

from __future__ import annotations

import pytest
import torch

from regard.stages.figures.walkthrough import walk


def test_the_walk_shows_every_stage_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    walk()
    out = capsys.readouterr().out
    headings = [line.split("  ")[0] for line in out.splitlines() if line[:1].isdigit() and ". " in line]
    assert [heading for heading in headings if heading[:2].strip(".").isdigit()] == [
        "1. Simplified",
        "2. Trainable",
        "3. Scaled",
        "4. Causal",
        "5. Head",
        "6. Several heads",
        "7. Output projection",
        "8. Positions",
        "9. Cache",
        "10. Block and GPT",
    ]
    assert out.count("\nLook: ") == 10  # every stage says what to look at
    assert len(out.splitlines()) < 120
    for text in (
        "0.9106  1.3411  1.2896  0.6432  0.8197  0.8643",
        "Each  0.1882  0.1771  0.1821  0.1537  0.1183  0.1806",
        "rounds  0.1705  0.1788  0.1786  0.1551  0.1516  0.1655",
        "model  0.4855  0.5145       ·       ·       ·       ·",
        "output of “model”   0.509965  0.539246  0.569502",
        "its scores   1.1171  1.1993  1.2030  0.8609  0.7628  1.0292",
        "output of “model”   0.480304  0.454230",
        "output   0.553939  0.544996",
        "Each row sums to 1, give or take",
        "6 keys computed instead of 1 + 2 + … + 6 = 21",
        "agrees with torch",
    ):
        assert text in out
    assert "\x1b" not in out  # plain text where there is no terminal
    assert torch.equal(torch.get_rng_state(), before)
