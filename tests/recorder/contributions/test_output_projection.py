"""Output projections: found, certified, and equal to what hooks see."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.recorder.contributions.output_projection import (
    LinearWeights,
    OutputProjection,
    certified_projection,
    has_same_rows,
)
from tests.recorder.contributions.frozen_model import FAMILIES, FrozenModel
from tests.sampling import examples


@pytest.mark.parametrize("family", FAMILIES)
def test_the_terms_of_the_heads_are_slices_of_the_projection_and_add_up_to_its_output(family):
    model = FAMILIES[family].build()
    frozen = FrozenModel(FAMILIES[family], model, FAMILIES[family].inputs())
    seen = regard.capture(model, inputs=frozen.inputs, contributions=True)
    keys = [layer.key for layer in seen.layers if layer.stack != "encoder"]
    assert [seen.output_projection(key).name for key in keys] == frozen.projections
    for key in keys:
        projection = seen.output_projection(key)
        assert projection.certified
        assert not projection.is_gated
        read, written = frozen.read[projection.name], frozen.written[projection.name]
        terms = projection.head_terms(read)
        for head in range(terms.shape[-2]):
            expected = frozen.head_term(projection.name, head)
            torch.testing.assert_close(terms[..., head, :], expected, atol=1e-5, rtol=1e-4)
        total = terms.sum(-2) if projection.bias is None else terms.sum(-2) + projection.bias
        torch.testing.assert_close(total, written, atol=1e-5, rtol=1e-4)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 2),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 3)]),
    st.integers(1, 7),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 1000),
)
def test_value_norms_are_those_of_the_projected_values(B, groups, S, E, d, seed):
    G, group = groups
    H, drawn = G * group, torch.Generator().manual_seed(seed)
    weight = torch.randn(d, H * E, generator=drawn)
    values = torch.randn(B, G, S, E, generator=drawn)
    projection = OutputProjection("o_proj", LinearWeights.of(weight, None), H, False, 0.0, 0.0)
    norms = projection.value_norms(values, range(H))
    slices = weight.double().unflatten(1, (H, E))  # (d, H, E)
    projected = torch.einsum("bhse,dhe->bhsd", values.double().repeat_interleave(group, 1), slices)
    torch.testing.assert_close(norms.double(), projected.norm(dim=-1), atol=1e-5, rtol=1e-5)


def test_a_value_weighted_map_has_the_entries_that_its_definition_says():
    model = FAMILIES["llama"].build()
    frozen = FrozenModel(FAMILIES["llama"], model, FAMILIES["llama"].inputs())
    for heads in (None, [3, 1]):
        seen = regard.capture(model, inputs=frozen.inputs, contributions=True, heads=heads)
        captured = seen.layer(1)
        weight = model.model.layers[1].self_attn.o_proj.weight.detach().double().unflatten(1, (4, -1))
        for i, head in enumerate(captured.heads):
            v = captured.values.double()[:, i * captured.values.shape[1] // len(captured.heads)]
            sizes = (v @ weight[:, head].mT).norm(dim=-1)  # (B, S)
            expected = seen[1, head].to_dense().double() * sizes[:, None]
            torch.testing.assert_close(
                seen.value_weighted(1).to_dense()[:, i].double(), expected, atol=1e-5, rtol=1e-4
            )


@torch.no_grad()
def test_a_layer_with_other_numbers_is_no_output_projection():
    output = torch.randn(2, 4, 5, 8)
    merged = output.transpose(1, 2).flatten(2)
    assert has_same_rows(merged, output)
    assert has_same_rows(merged.flatten(0, 1), output)
    assert not has_same_rows(merged + 1e-3, output)
    assert not has_same_rows(output.transpose(1, 2).transpose(2, 3).flatten(2), output)  # another order
    linear = torch.nn.Linear(32, 16)
    assert certified_projection("o", linear, merged, linear(merged), 4, False) is not None
    assert certified_projection("o", linear, merged, linear(merged) + 1e-3, 4, False) is None
    assert certified_projection("o", torch.nn.Identity(), merged, merged, 4, False) is None
