"""The computations behind results that are run again, on numbers whose answer is known."""

import pytest
import torch

from regard.gpt import GPT, Config
from regard.reproduce import dormant, eviction, explanation, packing, position, retrieval, rollout, sinks
from regard.reproduce.models import read_texts


@pytest.fixture(scope="module")
def model():
    return GPT.from_pretrained("default")


def test_another_pattern_has_the_same_output_on_few_keys():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(40, dtype=torch.float64, generator=generator).softmax(0)
    values = torch.randn(40, 5, dtype=torch.float64, generator=generator)
    other = explanation.same_output(weights, values)
    assert int((other > 0).sum()) <= 6
    assert bool((other >= 0).all())
    torch.testing.assert_close(other.sum(), weights.sum())
    torch.testing.assert_close(other @ values, weights @ values)
    assert float((other - weights).abs().sum()) / 2 > 0.3
    few = explanation.same_output(weights[:6] / weights[:6].sum(), values[:6])
    torch.testing.assert_close(few, weights[:6] / weights[:6].sum())  # nothing can move


def test_the_same_output_gives_the_same_prediction(model):
    text = read_texts(model, 1, 96)[0]
    found = explanation.replace_layer(model, text, 0, torch.Generator().manual_seed(0))
    assert found.same_output > 0.05
    assert found.same_change < 1e-4 < found.dealt_change


def test_sinks_are_read_from_the_first_token(model):
    text = read_texts(model, 1, 32)[0]
    measured, uniform = sinks.first_attention(model, text)
    assert 0 < measured < 1
    assert uniform == pytest.approx(sum(1 / n for n in range(9, 33)) / 24)
    shares = dormant.sink_shares(model, text[None])
    assert sum(shares.values()) / 24 == pytest.approx(measured, abs=1e-6)
    assert sinks.first_activation(model, text) > 0


def test_verdicts_follow_from_the_numbers():
    sizes = {"texts": 3, "length": 8, "window": 2, "bins": 3, "cut": 1, "draws": 2}
    low, high = torch.tensor([0.1, 0.12, 0.11]), torch.tensor([1.0, 1.1, 1.2])
    rises = {name: low for name in ("window and first 4", "h2o", "snapkv", "tova")}
    rises |= {"window": high, "random": 2 * high}
    assert eviction.judge(rises, rises, sizes).verdict == "holds"
    assert eviction.judge(rises | {"h2o": 3 * high}, rises, sizes).verdict == "holds in part"
    heads = {(0, n): 0.001 * n for n in range(4)}
    chosen = {"least important": low, "most on the first token": low, "random 0": high, "random 1": high}
    assert dormant.judge(heads, chosen, sizes).verdict == "holds"
    ranked = [0.5] + [0.0] * 30
    assert retrieval.judge(ranked, high, torch.stack([low, low]), 1.0, sizes).verdict == "holds"
    assert retrieval.judge([0.5] * 9, low, torch.stack([high, high]), 1.0, sizes).verdict == "holds in part"
    losses = {"dense": low, "window": high, "both": low + 0.01}
    rows = {name: x[:, None].expand(3, 8) for name, x in losses.items()}
    found = sinks.judge(rows, (0.4, 0.5, 0.6), (0.1,) * 3, [9.0, 10.0, 11.0], sizes)
    assert found.verdict == "holds"
    methods = torch.tensor([[0.9, 0.1, 0.0, 0.2, 0.1], [0.8, 0.2, 0.1, 0.1, 0.2], [0.85, 0.0, 0.2, 0.3, 0.1]])
    assert rollout.judge(methods, sizes).verdict == "holds"
    assert rollout.judge(methods.flip(1), sizes).verdict == "holds in part"


SIZES = {"vocab_size": 16, "context_length": 12, "num_layers": 1, "num_heads": 2, "d_model": 8}


def test_pieces_are_packed_with_their_own_next_tokens():
    sizes = {"piece": 4, "pieces": 3}
    inputs, targets = packing.pack(torch.arange(100), 5, sizes, seed=0, step=1)
    assert inputs.shape == targets.shape == (5, 12)
    assert torch.equal(targets, inputs + 1)
    assert not torch.equal(inputs, packing.pack(torch.arange(100), 5, sizes, seed=0, step=2)[0])


def test_a_share_across_pieces_is_between_none_and_all():
    torch.manual_seed(0)
    ids = torch.randint(0, 16, (3, 12))
    share = packing.across_share(GPT(Config(**SIZES)).eval(), ids, 4)
    # Nearly uniform attention of the rows 8 to 11, of which 8 keys are earlier pieces.
    assert share == pytest.approx(sum(8 / n for n in (9, 10, 11, 12)) / 4, abs=0.02)


def test_a_probe_reads_positions_that_are_there():
    torch.manual_seed(0)
    model = GPT(Config(**SIZES)).eval()
    ids = torch.randint(0, 16, (40, 12))
    without = position.probe_errors(model, ids).mean()
    with torch.no_grad():
        model.position_embedding.weight += torch.linspace(-1, 1, 12)[:, None] * torch.randn(8)
    assert position.probe_errors(model, ids).mean() < 0.5 * without
