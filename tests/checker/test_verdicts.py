"""What a verdict may rest on: conventions, promises, and what was really exercised."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.checker import check
from tests.checker.corpus import right_conventions, right_language_models
from tests.checker.corpus.styles import ENTRIES
from tests.checker.layers import FusedHeads
from tests.sampling import share


def test_the_report_says_what_true_means_in_a_padding_mask():
    keeps, hides = check(right_conventions.padding_keeps), check(right_conventions.padding_hides)
    assert "key_padding_mask: True = keep" in keeps.assumptions
    assert "key_padding_mask: True = hidden" in hides.assumptions
    for function, means in (
        (right_conventions.padding_keeps, "hide"),
        (right_conventions.padding_hides, "look"),
    ):
        report = check(function, true_means=means)
        assert [d.name for d in report.diagnoses if not d.warning] == ["inverted-mask"], str(report)


def test_a_docstring_decides_what_true_means():
    def inverted(q, k, v, key_padding_mask=None):
        """key_padding_mask (B, S): True means keep."""
        return right_conventions.padding_hides(q, k, v, key_padding_mask)

    assert check(inverted).diagnoses[0].name == "inverted-mask"


def test_a_refused_option_is_skipped_with_its_words():
    report = check(right_conventions.CacheRefused)
    (skipped,) = [c for c in report.checks if c.name == "cache"]
    assert skipped.status == "skipped"
    assert "only allow caching for causal attention" in skipped.detail
    assert report.ok
    assert "windows need the compiled kernel" in str(check(right_conventions.refuses_windows))


def test_a_second_result_that_is_no_weights_is_not_judged():
    report = check(right_conventions.ReturnsBias)
    assert "weights" in [c.name for c in report.skipped]


def test_named_weights_that_do_not_sum_to_one_are_wrong():
    def attention(q, k, v):
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return weights @ v, 2 * weights

    report = check(attention)
    assert [c.name for c in report.failures] == ["weights"], str(report)


class Rows(nn.Module):
    """Rows share their weights: (rows, columns, batch, C)."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)) for f in (self.q_proj, self.k_proj, self.v_proj))
        scale = (q.shape[-1] * x.shape[0]) ** -0.5
        weights = (torch.einsum("rinhd,rjnhd->hnij", q, k) * scale).softmax(-1)
        return self.out_proj(torch.einsum("hnij,rjnhd->rinhd", weights, v).flatten(-2))


def test_a_batch_on_another_axis_is_not_mixed():
    report = check(Rows)
    assert report.verdict == "undecided", str(report)
    assert "batch" in report.summary


def test_a_window_that_the_model_puts_into_the_mask_is_explained():
    pytest.importorskip("transformers")
    from transformers import MistralConfig
    from transformers.models.mistral.modeling_mistral import MistralAttention

    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    report = check(MistralAttention(MistralConfig(**sizes, sliding_window=4), layer_idx=0), window=4)
    assert report.verdict == "undecided", str(report)
    assert "the mask that the model makes" in report.summary


def test_t5_returns_its_biases_before_its_weights():
    pytest.importorskip("transformers")
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=48, d_kv=12, num_heads=4, dropout_rate=0.0)
    report = check(T5Attention(config, layer_idx=0))
    assert report.ok, str(report)
    assert "weights" in [c.name for c in report.passed]


class InBlocks(FusedHeads):
    """Works in blocks only if it is asked to."""

    def __init__(self, dim, heads=4, efficient=False, k_bucket_size=1024):
        super().__init__(dim, heads)
        self.efficient, self.size = efficient, k_bucket_size

    def attend(self, q, k, v):
        return right_conventions.chunks(q, k, v, self.size) if self.efficient else super().attend(q, k, v)


def test_blocks_count_only_if_they_were_used():
    used = check(InBlocks, init={"efficient": True})
    assert "several blocks" in [c.name for c in used.passed], str(used)
    unused = check(InBlocks)
    assert "right, as far as tried: no several blocks" in unused.summary
    strict = check(InBlocks, strict=True)
    assert strict.verdict == "undecided"
    assert "no several blocks" in strict.summary


def test_a_plain_function_is_not_said_to_have_blocks():
    names = [c.name for c in check(right_conventions.log_space).passed]
    assert "long text" in names
    assert "several blocks" not in names


def test_nan_under_padding_is_zero_times_infinity_only_if_an_open_mask_gives_nan_too():
    source = next(entry for entry in ENTRIES if entry.name == "mask of tokens").load()

    class HidesAll(source):
        """Padding hides every key of its sequence."""

        def forward(self, x, attention_mask=None):
            if attention_mask is None or bool(attention_mask.all()):
                return super().forward(x)
            return super().forward(x) * float("nan")

    report = check(HidesAll)
    assert report.verdict == "wrong", str(report)
    assert "zero-times-infinity" not in [d.name for d in report.diagnoses], str(report)


def test_rotary_positions_are_recognised_by_their_numbers():
    report = check(right_language_models.InterleavedPartial)
    assert any("rotary positions (base 10000" in line for line in report.assumptions), report.assumptions


_DENIALS = (
    "It isn't autoregressive: every token sees every other.",
    "For the causal version see DecoderAttention.",
    "Full self-attention; it has no look-ahead mask.",
    "There is never a causal mask.",
)


@pytest.mark.parametrize("doc", share(_DENIALS, 4))
def test_a_docstring_that_denies_causality_is_not_taken_for_a_promise(doc):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    attend.__doc__ = doc
    assert check(attend).verdict == "right"


@pytest.mark.parametrize(
    "doc", ["Causal (cross-attention is in another class).", "Causal. Cannot be used for bidirectional ones."]
)
def test_a_docstring_that_contradicts_the_output_asks_the_caller(doc):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def causal(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    attend.__doc__ = causal.__doc__ = doc
    assert check(causal).verdict == "right"
    report = check(attend)
    assert report.verdict == "undecided"
    assert "its docstring says causal" in report.undecided
    assert check(attend, causal=False).verdict == "right"
    assert check(attend, causal=True).diagnoses[0].name == "no-mask"


@pytest.mark.parametrize(
    ("name", "causal"),
    share([("NanoCausalAttention", True), ("PianoCausalAttention", True), ("NonCausalAttention", False)], 2),
)
def test_the_name_says_whether_it_is_causal(name, causal):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def other(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=not causal)

    attend.__name__ = attend.__qualname__ = other.__name__ = other.__qualname__ = name
    assert check(attend).verdict == "right"
    assert check(other).verdict != "right"


def _distances(q):
    at = torch.arange(q.shape[-2])
    return at[:, None] - at


def itself_and_n_before(q, k, v, window=4):
    d = _distances(q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(d >= 0) & (d <= window))


def n_on_either_side(q, k, v, window=4):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_distances(q).abs() <= window)


def half_on_either_side(q, k, v, window_size=4):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_distances(q).abs() <= window_size // 2)


def buckets_that_look_back(q, k, v, window_size=4):
    bucket = torch.arange(q.shape[-2]) // window_size
    back = bucket[:, None] - bucket
    seen = (back >= 0) & (back <= 1) & (_distances(q) >= 0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def left_and_right(q, k, v, window_size=(4, 0)):
    d = _distances(q)
    seen = (d <= window_size[0]) & (-d <= window_size[1])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class ItselfAndBefore(FusedHeads):
    def __init__(self, d_model, n_heads, window=3):
        super().__init__(d_model, n_heads)
        self.window = window

    def attend(self, q, k, v):
        return itself_and_n_before(q, k, v, self.window)


@pytest.mark.parametrize(
    ("thing", "meaning"),
    [
        (itself_and_n_before, "itself and n keys before it"),
        (ItselfAndBefore, "itself and n keys before it"),
        (n_on_either_side, "n keys on either side"),
        (half_on_either_side, "n // 2 keys on either side"),
        (buckets_that_look_back, "its own and the one before"),
        (left_and_right, ""),
    ],
)
def test_the_window_of_a_number_may_mean_several_things(thing, meaning):
    report = check(thing)
    assert report.verdict == "right", str(report)
    assert meaning in "; ".join(report.assumptions)


@pytest.mark.parametrize("thing", share([itself_and_n_before, ItselfAndBefore], 2))
def test_one_key_more_is_a_warning_unless_the_convention_is_stated(thing):
    (warning,) = [d for d in check(thing).diagnoses if d.name == "window-off-by-one"]
    assert warning.warning
    report = check(thing, window=4)
    assert report.verdict == "wrong"
    assert "leave window= out" in str(report.diagnoses[0])


def test_one_key_fewer_is_in_no_convention():
    def narrow(q, k, v, window=4):
        return itself_and_n_before(q, k, v, window - 2)

    report = check(narrow)
    assert report.verdict == "wrong"
    assert report.diagnoses[0].name == "window-off-by-one"


class TokensFirst(nn.Module):
    """Input: (seq_len, batch, embed_dim)."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class TokensSecond(TokensFirst):
    """Input: (seq_len, batch, embed_dim)."""

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class ItemsFirst(TokensFirst):
    """Input: (batch, seq_len, embed_dim)."""


def test_a_docstring_that_puts_texts_first_is_held_against_the_code():
    report = check(ItemsFirst)
    assert report.verdict == "undecided"
    assert "attends along its first axis" in report.summary


def test_a_docstring_that_puts_tokens_first_is_held_against_the_code():
    assert check(TokensFirst).verdict == "right"
    report = check(TokensSecond)
    assert report.verdict == "undecided"
    assert "its docstring says (seq_len, batch, embed_dim)" in report.summary


def test_the_headline_says_what_right_code_was_found_to_be():
    def looks_back(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < 6)

    assert "is right, as attention in a window of 6: " in check(looks_back).summary
    assert (
        "is right, as a mask that is causal: " in check(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx).summary
    )


def local_64(q, k, v):
    i = torch.arange(q.shape[-2])
    seen = (i[:, None] >= i) & (i[:, None] - i < 64)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def longer_is_sharper(q, k, v):
    """Scores are scaled by the logarithm of the length beyond 64 tokens."""
    T = k.shape[-2]
    return F.scaled_dot_product_attention(q * max(1.0, math.log(T) / math.log(64)), k, v)


def chunk_64(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx // 64 == kv_idx // 64)


@pytest.mark.parametrize("thing", share([local_64, longer_is_sharper, chunk_64], 3))
def test_what_begins_at_64_tokens_is_for_the_author_to_say(thing):
    report = check(thing)
    assert report.verdict == "undecided", str(report)
    assert "though it is right on 40" in report.summary


def test_a_stated_window_is_right_at_any_length():
    assert check(local_64, window=64).verdict == "right"


def test_a_scale_that_the_docstring_declares_is_for_the_author_to_say():
    def mup(q, k, v):
        """muP: scores are scaled by 1/d."""
        return (q @ k.mT / q.shape[-1]).softmax(-1) @ v

    report = check(mup)
    assert report.verdict == "undecided"
    assert "say scale=" in report.summary


class InferenceOnly(FusedHeads):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


def test_a_forward_pass_without_gradients_by_its_own_decorator_is_right():
    report = check(InferenceOnly)
    assert report.verdict == "right", str(report)
    assert "it switches them off itself" in {c.name: c.detail for c in report.skipped}["gradients"]


def first_head_for_all(q, k, v, mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        s = s.masked_fill(~(mask[:, :1] if mask.ndim == 4 else mask), -torch.inf)
    return s.softmax(-1) @ v


def weights_before_the_mask(q, k, v, mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    weights = s.softmax(-1)
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v, weights


def maximum_from_zero(q, k, v):
    s = q @ k.mT * q.shape[-1] ** -0.5
    e = (s - s.amax(-1, keepdim=True).clamp(min=0)).exp()
    return e @ v / e.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("thing", "failed"),
    [
        (first_head_for_all, "mask (B, H, T, S)"),
        (weights_before_the_mask, "weights"),
        (maximum_from_zero, "extreme scores"),
    ],
)
def test_what_shows_only_under_some_masks_or_scores(thing, failed):
    report = check(thing)
    assert report.verdict == "wrong", str(report)
    assert failed in {found.name for found in report.failures}
