"""Mutants: what a target with a mistake answers, and which suites notice it."""

from dataclasses import replace

import numpy
import pytest
import torch
import torch.nn.functional as F

import regard
from regard.checker import CATALOGUE, measure_visibility
from regard.checker.mistake_visibility import Asked
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.oracle.wiring import Wiring
from regard.mutants.call_reader import read_signature
from regard.mutants.mutant import CallLog, all_mutants, make_mutant, why_left_out, without_mutant
from regard.mutants.suggestion import suggest_tests
from tests.mutants.blind_suites import SUITES, attention, draw, notices

MUTANTS = {mutant.name: mutant for mutant in all_mutants()}


def log_of(target, *args, mutant=None, **kwargs):
    log = CallLog()
    result = make_mutant(target, MUTANTS[mutant] if mutant else None, log)(*args, **kwargs)
    return log, result


def test_every_mistake_is_a_mutant_or_left_out_with_a_reason():
    names = {mutant.mistake for mutant in MUTANTS.values()} | without_mutant().keys()
    assert names == CATALOGUE.keys()
    assert not {mutant.mistake for mutant in MUTANTS.values()} & without_mutant().keys()
    assert all(without_mutant().values())


def test_a_mutant_without_a_mistake_changes_nothing():
    q, k, v = draw(2, 4, 2, 5, 7, 8)
    log, result = log_of(attention, q, k, v, causal=True)
    assert torch.equal(result, attention(q, k, v, True))
    assert (log.calls, log.unread, log.options) == (1, {}, {"causal"})


@pytest.mark.parametrize("suite", SUITES)
def test_blind_suites_have_the_survivors_that_theory_predicts(suite):
    """How far each form of a mistake is off on the inputs says whether a suite on them notices it."""
    inputs = SUITES[suite]
    question = Question(suite, *inputs["inputs"], causal=inputs["causal"], flag=inputs["causal"])
    asked = Asked(question.to(torch.float64), Wiring(), inputs["tolerance"])
    mutants = [mutant for mutant in MUTANTS.values() if not why_left_out(mutant, {"causal", "mask"}, "")]
    survivors = [m.name for m in mutants if not notices(make_mutant(attention, m, CallLog()), inputs)]
    predicted = [m.name for m in mutants if asked.distance(replace(CORRECT, **m.change)) <= 1]
    assert survivors == predicted
    assert len(predicted) > 15, "the suite is blind"
    # The table of `measure_visibility` has one line for all forms of a mistake.
    visible = measure_visibility(*inputs["inputs"], causal=inputs["causal"], tolerance=inputs["tolerance"])
    assert visible.unseen.keys() & {m.mistake for m in mutants} <= {
        name.partition(" (")[0] for name in predicted
    }


def transposed(q, k, v, is_causal=False):
    return attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal).transpose(1, 2)


def hidden_by_true(q, k, v, mask):
    return attention(q, k, v, mask=~mask)


def with_weights(query, key, value):
    weights = torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1)
    return {"out": weights @ value, "weights": weights}


def in_numpy(q, k, v):
    scores = q @ numpy.swapaxes(k, -1, -2) / numpy.sqrt(q.shape[-1])
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
    parts = []
    for i in range(len(cu_seqlens_q) - 1):
        a, b = slice(*cu_seqlens_q[i : i + 2]), slice(*cu_seqlens_k[i : i + 2])
        heads = (x.transpose(0, 1)[None] for x in (q[a], k[b], v[b]))
        parts.append(attention(*heads, causal)[0].transpose(0, 1))
    return torch.cat(parts)


def windowed(q, k, v, window_size=(-1, -1)):
    mask = regard.window(window_size[0] + 1, ahead=window_size[1]) if window_size[0] >= 0 else None
    return regard.scaled_dot_product_attention(q, k, v, mask)[0]


def test_conventions_are_read_off_the_result():
    q, k, v = draw(2, 4, 4, 5, 7, 8)
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[:, 0] = True
    arrays = [x.numpy() for x in (q, k, v)]
    starts = torch.tensor([0, 3, 5])
    calls = [
        (transposed, [x.transpose(1, 2) for x in (q, k, v)], {"is_causal": True}),
        (hidden_by_true, [q, k, v, ~mask], {}),
        (with_weights, [q, k, v], {}),
        (in_numpy, arrays, {}),
        (packed, [*(x[0].transpose(0, 1)[:5] for x in (q, k, v)), starts, starts, 3, 3], {"causal": True}),
        (windowed, [q, k, v], {"window_size": (2, 1)}),
        (F.scaled_dot_product_attention, [q, k, v], {"is_causal": True}),  # top left
        (regard.attend, [q, k, v], {"mask": regard.causal & regard.window(3)}),
    ]
    for target, args, kwargs in calls:
        log, _ = log_of(target, *args, **kwargs)
        assert log.unread == {}, target
        log, wrong = log_of(target, *args, mutant="no-scale", **kwargs)
        assert log.difference > 1e-2, target
        assert type(wrong) is type(target(*args, **kwargs)), target


def test_a_test_of_bits_or_strides_notices_no_mistake_that_does_not_show():
    def by_tokens(q, k, v, causal=False):
        output = attention(*(x.transpose(1, 2) for x in (q, k, v)), causal)  # (B, H, T, D)
        return output.transpose(1, 2)

    q, k, v = (x.transpose(1, 2) for x in draw(2, 4, 4, 5, 5, 8))
    right = by_tokens(q, k, v, causal=True)
    log, same = log_of(by_tokens, q, k, v, causal=True, mutant="top-left-causal")
    assert torch.equal(same, right)
    assert log.reasons
    _, wrong = log_of(by_tokens, q, k, v, causal=True, mutant="no-scale")
    assert not torch.allclose(wrong, right, atol=1e-2)
    assert wrong.stride() == right.stride() != wrong.contiguous().stride()


def test_weights_are_replaced_together_with_the_output():
    q, k, v = draw(2, 4, 4, 5, 5, 8)
    _, wrong = log_of(with_weights, q, k, v, mutant="softmax-over-queries")
    torch.testing.assert_close(wrong["weights"] @ v, wrong["out"])
    torch.testing.assert_close(wrong["weights"].sum(-2), torch.ones(2, 4, 5))


def test_the_target_of_an_autograd_function_is_read():
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal, sm_scale):
            return attention(q * sm_scale * q.shape[-1] ** 0.5, k, v, causal)

    q, k, v = draw(1, 2, 2, 5, 5, 8)
    log, _ = log_of(Attention.apply, q, k, v, True, 0.5, mutant="one-token-ahead")
    assert log.unread == {}
    assert log.difference > 1e-2


def test_a_call_that_is_no_attention_keeps_its_answer():
    q, k, v = draw(1, 2, 2, 5, 5, 8)

    def linear(q, k, v):
        return (q @ k.mT) @ v

    log, result = log_of(linear, q, k, v, mutant="no-scale")
    assert torch.equal(result, linear(q, k, v))
    assert "off attention" in next(iter(log.unread))
    log, _ = log_of(F.scaled_dot_product_attention, q, k, v, dropout_p=0.5)
    assert log.unread == {"dropout is random": 1}


def test_gradients_flow_through_a_mutant():
    q, k, v = (x.requires_grad_() for x in draw(1, 2, 2, 5, 5, 8))
    for name, flows in (("no-scale", True), ("weights-detached", False)):
        _, output = log_of(attention, q, k, v, mutant=name)
        (gradient,) = torch.autograd.grad(output.square().sum(), q, allow_unused=True)
        assert (gradient is not None and bool(gradient.abs().max() > 0)) == flows


def test_what_shows_in_weights_or_gradients_alone_can_be_noticed():
    q, k, v = draw(1, 2, 2, 5, 5, 8, ones=True)  # every output is one, whatever the weights are
    log, wrong = log_of(with_weights, q, k, v, mutant="no-scale")
    assert log.difference > 1e-2
    assert not torch.allclose(wrong["weights"], with_weights(q, k, v)["weights"], atol=1e-2)

    def gradient(mutant, *, of):
        inputs = [x.detach().requires_grad_() for x in (torch.zeros_like(q), k, draw(1, 2, 2, 5, 5, 8)[2])]
        _, output = log_of(attention, *inputs, causal=True, mutant=mutant)
        assert torch.equal(output, attention(*inputs, causal=True))
        return torch.autograd.grad(output.square().sum(), inputs[of])[0]

    # Zero queries look at all keys alike, at any scale.
    torch.testing.assert_close(gradient("no-scale", of=0), gradient(None, of=0) * 8**0.5)
    torch.testing.assert_close(gradient("top-left-causal", of=0), gradient(None, of=0))


def test_a_suite_of_boolean_masks_gets_a_test_of_numbers_that_are_added():
    q, k, v = draw(1, 2, 2, 5, 5, 8)
    target = F.scaled_dot_product_attention
    log, _ = log_of(target, q, k, v, attn_mask=torch.ones(5, 5, dtype=torch.bool).tril())
    spec, mutant = "torch.nn.functional:scaled_dot_product_attention", MUTANTS["mask-scaled-too"]
    found = suggest_tests(target, F, spec, read_signature(target), log.example, [mutant])
    assert "attn_mask=bias" in found["mask-scaled-too"]["text"]
