"""Kernels as public libraries write them: signatures, interfaces, mods, and code without a backward pass."""

import pytest
import torch
import torch.nn.functional as F

import regard
from tests.checker.corpus.kernel_styles import decode_attention
from tests.sampling import share


def test_lengths_that_differ_are_tried():
    assert "lengths that differ" in [check.name for check in regard.check(decode_attention).passed]


def test_a_required_argument_without_a_meaning_is_named():
    def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, frobnication):
        raise AssertionError

    with pytest.raises(regard.checker.CheckError, match="frobnication"):
        regard.check(varlen)


def of_transformers():
    """Its own attention functions, and its own mask functions."""
    pytest.importorskip("transformers")
    from transformers import masking_utils
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as with_sinks
    from transformers.models.llama.modeling_llama import eager_attention_forward

    masks = [masking_utils.sdpa_mask, masking_utils.eager_mask]
    return [eager_attention_forward, with_sinks, sdpa_attention_forward, *masks]


class TestTransformers:
    @pytest.mark.parametrize("index", share(range(5), 2, turn=1))
    def test_its_own_functions_are_right(self, index):
        report = regard.check(of_transformers()[index])
        assert report.verdict == "right", str(report)
        if index == 1:  # of the calling module
            assert "sink logits, grouped heads" in [check.name for check in report.passed]

    def test_a_mask_that_misses_the_offset_is_named(self):
        def make_mask(batch_size, q_length, kv_length, q_offset=0, mask_function=None, attention_mask=None):
            query, key = torch.arange(q_length)[:, None], torch.arange(kv_length)
            mask = mask_function(0, 0, query, key).expand(batch_size, 1, q_length, kv_length)
            return mask if attention_mask is None else mask & attention_mask[:, None, None]

        report = regard.check(make_mask)
        assert "top-left-causal" in [diagnosis.name for diagnosis in report.diagnoses], str(report)

    def test_a_mask_without_the_padding_is_wrong(self):
        def make_mask(batch_size, q_length, kv_length, q_offset=0, mask_function=None, attention_mask=None):
            query, key = torch.arange(q_length)[:, None] + q_offset, torch.arange(kv_length)
            return mask_function(0, 0, query, key).expand(batch_size, 1, q_length, kv_length)

        report = regard.check(make_mask)
        assert report.verdict == "wrong"
        assert report.diagnoses[0].name == "padded-keys-leak", str(report)


def causal_mask(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def causal_mask_without_itself(b, h, q_idx, kv_idx):
    return q_idx > kv_idx


def near(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 4)


def with_prefix(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) | (kv_idx < 3)


def odd(b, h, q_idx, kv_idx):
    return (q_idx + kv_idx) % 3 != 1


def capped(score, b, h, q_idx, kv_idx):
    return 20 * torch.tanh(score / 20)


def unchanged(score, b, h, q_idx, kv_idx):
    return score


class TestMods:
    @pytest.mark.parametrize(
        ("mod", "declared"),
        [
            (causal_mask, {}),
            (near, {}),
            (near, {"causal": True, "window": 4}),
            (with_prefix, {}),
            (capped, {}),
            (capped, {"softcap": 20.0}),
        ],
    )
    def test_right(self, mod, declared):
        report = regard.check(mod, **declared)
        assert report.verdict == "right", str(report)

    @pytest.mark.parametrize(
        ("mod", "declared", "mistake"),
        [
            (causal_mask_without_itself, {}, "missing-diagonal"),
            (near, {"causal": True, "window": 5}, "window-off-by-one"),
            (unchanged, {"softcap": 2.0}, "softcap-dropped"),
            (causal_mask, {"causal": True, "window": 3}, "window-dropped"),
        ],
    )
    def test_wrong(self, mod, declared, mistake):
        report = regard.check(mod, **declared)
        assert report.verdict == "wrong"
        assert report.diagnoses[0].name == mistake, str(report)

    def test_a_mask_that_nothing_describes_is_undecided(self):
        report = regard.check(odd)
        assert report.verdict == "undecided", str(report)
        assert "causal=, window= or softcap=" in report.undecided


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@torch.library.custom_op("regard_tests::attention_without_autograd", mutates_args=())
def without_autograd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, k, v)


def written_by_numpy(q, k, v):
    out = torch.empty_like(q)
    out.detach().numpy()[:] = attention(q, k, v).detach().numpy()
    return out


class TestBackward:
    @pytest.mark.parametrize(
        "function",
        [lambda q, k, v: without_autograd(q, k, v), written_by_numpy],
        ids=["custom operator", "NumPy"],
    )
    def test_code_without_a_backward_pass_is_right(self, function):
        report = regard.check(function)
        assert report.verdict == "right", str(report)
        [skipped] = [check for check in report.skipped if check.name == "gradients"]
        assert "no backward pass" in skipped.detail

    def test_detached_queries_and_keys_are_a_mistake(self):
        report = regard.check(lambda q, k, v: attention(q.detach(), k.detach(), v))
        assert report.verdict == "wrong"
        assert report.diagnoses[0].name == "weights-detached", str(report)

    @pytest.mark.parametrize("options", [{}, {"gradients": False}])
    def test_a_function_for_inference_is_right(self, options):
        report = regard.check(torch.no_grad()(attention), **options)
        assert report.verdict == "right"
        assert "gradients" in [check.name for check in report.skipped]


def test_the_lse_is_compared():
    def with_lse(q, k, v):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    assert "lse" in [check.name for check in regard.check(with_lse).passed]
