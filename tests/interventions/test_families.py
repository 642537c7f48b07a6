"""Interventions against the same ones made by hooks and dense masks on eager attention, family by family."""

import pytest
import torch

import regard
from tests.interventions.references import (
    FAMILIES,
    build,
    eager_copy,
    inputs_of,
    layer_modules,
    logits,
    masked_edges,
    replaced_slice,
)
from tests.sampling import combine, share

IMPLEMENTATIONS = ("sdpa", "eager", "regard")
CLOSE = {"rtol": 2e-4, "atol": 2e-4}  # eager float32 against fused float32, through three layers


def model_with(family, implementation):
    model = build(family)
    if implementation == "sdpa" and family in ("gemma 2", "gpt-oss"):
        implementation = "eager"  # sdpa has neither soft caps nor sink logits
    model.set_attn_implementation(implementation)
    return model


def assert_same(model, inputs, edit, reference, by_other_means):
    """The edited model has the logits of the reference, inside a block that does the same by other means."""
    with by_other_means:
        expected = logits(reference, inputs)
    with regard.intervene(model, edit):
        edited = logits(model, inputs)
    torch.testing.assert_close(edited, expected, **CLOSE)
    return edited


@pytest.mark.parametrize(("family", "implementation"), combine(share(FAMILIES, 2), IMPLEMENTATIONS))
def test_ablating_any_head_is_a_slice_of_the_output_projection(family, implementation):
    model, inputs = model_with(family, implementation), inputs_of(family)
    reference = eager_copy(model)
    plain = logits(model, inputs)
    means = regard.interventions.mean_outputs(model, [inputs])
    for key, (_, projection) in layer_modules(family, reference).items():
        for head in share(range(4), 4, turn=2):
            for by, new in (("zero", 0.0), (means, means[key][head])):
                cut = replaced_slice(projection, head, 4, new)
                edited = assert_same(model, inputs, regard.ablate(key, head, by=by), reference, cut)
                assert (edited - plain).abs().max() > 1e-3
    assert torch.equal(logits(model, inputs), plain)  # the model is as it was


@pytest.mark.parametrize(("family", "implementation"), combine(share(FAMILIES, 2), IMPLEMENTATIONS))
def test_blocked_edges_are_a_dense_mask_on_eager_attention(family, implementation):
    model, inputs = model_with(family, implementation), inputs_of(family)
    reference = eager_copy(model)
    plain = logits(model, inputs)
    for key, (attention, _) in layer_modules(family, reference).items():
        T = 7 if str(key).startswith(("decoder", "cross")) else 11
        S = 7 if str(key).startswith("decoder") else 11
        q, k = torch.arange(T)[:, None], torch.arange(S)
        cut = torch.zeros(4, T, S, dtype=torch.bool)
        cut[1] = (q - k == 2) | (k == 0) & (q > 3)
        rule = regard.rule(lambda b, h, q, k: (q - k == 2) | (k == 0) & (q > 3))
        masked = masked_edges(attention, cut)
        edited = assert_same(model, inputs, regard.block(key, 1, edges=rule), reference, masked)
        assert (edited - plain).abs().max() > 1e-3
        spans = torch.zeros(4, T, S, dtype=torch.bool)
        spans[:, 4:6, 1:3] = True
        edit = regard.block(key, edges=(slice(4, 6), [1, 2]))
        assert_same(model, inputs, edit, reference, masked_edges(attention, spans))


@pytest.mark.parametrize(("family", "implementation"), combine(share(FAMILIES, 2), IMPLEMENTATIONS))
def test_gradients_flow_through_edits_as_through_eager_attention(family, implementation):
    model, inputs = model_with(family, implementation), inputs_of(family)
    reference = eager_copy(model)
    key = "decoder.1" if family == "t5" else 1
    attention, projection = layer_modules(family, reference)[key]
    T = 7 if family == "t5" else 11
    q, k = torch.arange(T)[:, None], torch.arange(T)
    cut = torch.zeros(4, T, T, dtype=torch.bool)
    cut[2] = q - k == 1
    with masked_edges(attention, cut), replaced_slice(projection, 0, 4, 0.0):
        reference(**inputs).logits.square().mean().backward()
    rule = regard.rule(lambda b, h, q, k: q - k == 1)
    with regard.intervene(model, regard.ablate(key, 0), regard.block(key, 2, edges=rule)):
        model(**inputs).logits.square().mean().backward()
    expected = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        if expected[name].grad is None:
            assert parameter.grad is None or not parameter.grad.any()
        else:
            size = float(expected[name].grad.abs().max())
            close = {"rtol": 0, "atol": 1e-6 + 2e-4 * size}
            torch.testing.assert_close(parameter.grad, expected[name].grad, **close, msg=name)


@pytest.mark.parametrize(("family", "implementation"), combine(share(FAMILIES, 2, turn=1), IMPLEMENTATIONS))
def test_patched_heads_have_the_output_and_the_pattern_of_the_other_run(family, implementation):
    model, inputs, other = model_with(family, implementation), inputs_of(family), inputs_of(family, seed=1)
    reference = eager_copy(model)
    source = regard.capture(model, inputs=other, values=True)
    for key, (_, projection) in layer_modules(family, reference).items():
        seen = {}
        handle = projection.register_forward_pre_hook(lambda _, args, seen=seen: seen.update(x=args[0]))
        logits(reference, other)
        handle.remove()
        width = seen["x"].shape[-1] // 4
        other_output = replaced_slice(projection, 2, 4, seen["x"][..., 2 * width : 3 * width])
        assert_same(model, inputs, regard.patch(key, 2, source), reference, other_output)
        # The pattern of the other run times the values of this one.
        plain = regard.capture(model, inputs=inputs, values=True)
        weights = source[key, 2].to_dense()  # (B, T, S)
        values = plain.layer(key).values
        mixed = weights @ values[:, 2 // (4 // values.shape[1])]
        edit = regard.patch(key, 2, source, what="pattern")
        assert_same(model, inputs, edit, reference, replaced_slice(projection, 2, 4, mixed))


@pytest.mark.parametrize(("family", "implementation"), combine(["gpt2", "llama", "bert"], IMPLEMENTATIONS))
def test_edits_of_a_padded_batch_are_those_of_each_text(family, implementation):
    model, inputs = model_with(family, implementation), inputs_of(family)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 7:] = 0
    with regard.intervene(model, regard.ablate(1, 3), regard.block(0, 1, edges=(slice(3, None), 1))):
        edited = logits(model, inputs)
        alone = logits(model, {"input_ids": inputs["input_ids"][1:, :7]})
    torch.testing.assert_close(edited[1:, :7], alone, **CLOSE)
