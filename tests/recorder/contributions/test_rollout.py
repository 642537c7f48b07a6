"""Rollout against the product of dense matrices, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.recorder.contributions.rollout import roll_out
from tests import strategies
from tests.recorder.contributions.frozen_model import FAMILIES
from tests.sampling import examples


def dense_rollout(matrices, norms=None):
    """The product of ½ (A + I) over the layers, the last layer first, for matrices (H, T, T)."""
    T = matrices[0].shape[-1]
    product = torch.eye(T, dtype=torch.float64)
    for i, matrix in reversed(list(enumerate(matrices))):
        weights = matrix.double() if norms is None else matrix.double() * norms[i].double()[:, None]
        mean = weights.sum(0)
        sums = mean.sum(-1, keepdim=True)
        eye = torch.eye(T, dtype=torch.float64)
        step = torch.where(sums > 0, (mean / sums + eye) / 2, eye)
        product = product @ step
    return product


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_rollout_is_the_product_of_dense_matrices(data):
    n = data.draw(strategies.sizes())
    n = n._replace(B=1, S=n.T)
    maps, norms = [], []
    for seed in range(data.draw(st.integers(1, 3))):
        x = strategies.tensors(n, seed)
        mask = data.draw(strategies.masks(n)).mask
        softcap = data.draw(st.sampled_from([None, 2.0]))
        sinks = x.sinks if data.draw(st.booleans()) else None
        maps.append(regard.attention_map(x.q, x.k, mask=mask, softcap=softcap, sinks=sinks)[0])
        norms.append(x.v.repeat_interleave(n.H // n.G, 1)[0].norm(dim=-1))  # (H, S)
    matrices = [m.to_dense() for m in maps]
    position = data.draw(st.integers(-n.T, n.T - 1))
    for weighting in (None, norms):
        shares = roll_out(maps, position, weighting)
        expected = dense_rollout(matrices, weighting)[position]
        torch.testing.assert_close(shares, expected, atol=1e-5, rtol=1e-4)
        assert float(shares.sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt-oss", "bert"])
def test_rollout_of_a_model_by_attention_and_by_value(family):
    model = FAMILIES[family].build()
    seen = regard.capture(model, inputs=FAMILIES[family].inputs(), contributions=True)
    matrices = [m.to_dense()[1] for m in seen]
    torch.testing.assert_close(seen.rollout(4, batch=1), dense_rollout(matrices)[4], atol=1e-6, rtol=1e-4)
    mean = dense_rollout(matrices).mean(0)
    torch.testing.assert_close(seen.rollout(None, batch=1), mean, atol=1e-6, rtol=1e-4)

    norms = []
    for layer in seen.layers:
        weight = seen.output_projection(layer.key).weights.weight.double().unflatten(1, (4, -1))
        values = layer.values[1].double().repeat_interleave(4 // layer.values.shape[1], 0)  # (H, S, E)
        norms.append(torch.einsum("hse,dhe->hsd", values, weight).norm(dim=-1))
    expected = dense_rollout(matrices, norms)[4]
    torch.testing.assert_close(seen.rollout(4, batch=1, by="value"), expected, atol=1e-6, rtol=1e-4)


def test_a_part_of_a_model_is_refused(tmp_path):
    model, inputs = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    for options in ({"layers": [0, 1]}, {"heads": [0, 1]}):
        seen = regard.capture(model, inputs=inputs, **options)
        with pytest.raises(ValueError, match="rollout: expected all layers and heads of the model"):
            seen.rollout()
        seen.save(tmp_path / "part")
        with pytest.raises(ValueError, match="rollout: expected all layers and heads of the model"):
            regard.load(tmp_path / "part").rollout()
    seen = regard.capture(model, inputs=inputs)
    seen.save(tmp_path / "whole")
    assert torch.equal(regard.load(tmp_path / "whole").rollout(3), seen.rollout(3))
    for arguments, message in (
        ({"by": "norm"}, "by: expected 'attention' or 'value', got 'norm'"),
        ({"position": 11}, "position: expected one of the 11 tokens, got 11"),
        ({"batch": 2}, "batch: expected a number from 0 to 1, got 2"),
        ({"stack": "encoder"}, "stack: expected one of \\[''\\], got 'encoder'"),
        ({"by": "value"}, "expected a capture made with contributions=True"),
    ):
        with pytest.raises(ValueError, match=message):
            seen.rollout(**arguments)


def test_a_model_with_several_stacks_is_rolled_out_stack_by_stack():
    model, inputs = FAMILIES["t5"].build(), FAMILIES["t5"].inputs()
    seen = regard.capture(model, inputs=inputs)
    with pytest.raises(
        ValueError, match=r"stack: expected one of .*'encoder'.*, since the model has several"
    ):
        seen.rollout()
    matrices = [m.to_dense()[0] for m in seen.maps_of("encoder")]
    torch.testing.assert_close(
        seen.rollout(2, stack="encoder"), dense_rollout(matrices)[2], atol=1e-6, rtol=1e-4
    )
    with pytest.raises(ValueError, match="expected layers in which every token attends to the same tokens"):
        seen.rollout(stack="cross")
