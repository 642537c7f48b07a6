"""What a verdict may rest on: conventions, promises, and what was really exercised."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.checker import check
from tests.checker.corpus import (
    dropout_rates,
    options,
    right,
    right_conventions,
    right_language_models,
    undecided,
    usual_caches,
    wrong,
)
from tests.checker.corpus.styles import ENTRIES
from tests.checker.layers import FourLayers, FusedHeads
from tests.sampling import share


class Rows(FourLayers):
    """Rows share their weights: (rows, columns, batch, C)."""

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)) for f in (self.q_proj, self.k_proj, self.v_proj))
        scale = (q.shape[-1] * x.shape[0]) ** -0.5
        weights = (torch.einsum("rinhd,rjnhd->hnij", q, k) * scale).softmax(-1)
        return self.o_proj(torch.einsum("hnij,rjnhd->rinhd", weights, v).flatten(-2))


class InBlocks(FusedHeads):
    """Works in blocks only if it is asked to."""

    def __init__(self, dim, heads=4, efficient=False, k_bucket_size=1024):
        super().__init__(dim, heads)
        self.efficient, self.size = efficient, k_bucket_size

    def attend(self, q, k, v):
        return right_conventions.chunks(q, k, v, self.size) if self.efficient else super().attend(q, k, v)


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


class InferenceOnly(FusedHeads):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


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


def weights_that_sum_to_two(q, k, v):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return weights @ v, 2 * weights


def one_key_fewer(q, k, v, window=4):
    return itself_and_n_before(q, k, v, window - 2)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window_of_6(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 6)


def mup(q, k, v):
    """muP: scores are scaled by 1/d."""
    return (q @ k.mT / q.shape[-1]).softmax(-1) @ v


def hides_though_it_says_keep(q, k, v, key_padding_mask=None):
    """key_padding_mask (B, S): True means keep."""
    return right_conventions.padding_hides(q, k, v, key_padding_mask)


def sdpa(name="attend", doc=None, is_causal=False):
    """Return PyTorch's attention with a name and a docstring of its own."""

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    attend.__name__ = attend.__qualname__ = name
    attend.__doc__ = doc
    return attend


DENIALS = (
    "It isn't autoregressive: every token sees every other.",
    "For the causal version see DecoderAttention.",
    "Full self-attention; it has no look-ahead mask.",
    "There is never a causal mask.",
)
CLAIMS = ("Causal (cross-attention is in another class).", "Causal. Cannot be used for bidirectional ones.")
PAIRS = ("causal with mask", "padding with softcap", "window with scale")
CACHED = ("passed cache", "passed bfloat16", "passed float16", "is right, with 1 warning: ")
FROM_64 = "though it is right on 40"
REPORTS = [
    # What True means in a mask.
    right(right_conventions.padding_keeps, "assumed key_padding_mask: True = keep"),
    right(right_conventions.padding_hides, "assumed key_padding_mask: True = hidden"),
    wrong(right_conventions.padding_keeps, "inverted-mask", true_means="hide"),
    wrong(right_conventions.padding_hides, "inverted-mask", true_means="look"),
    wrong(hides_though_it_says_keep, "inverted-mask"),
    # Options that are refused are skipped with its words, and a second result that is no weights.
    right(right_conventions.CacheRefused, "skipped cache", "only allow caching for causal attention"),
    right(right_conventions.refuses_windows, "windows need the compiled kernel"),
    right(right_conventions.ReturnsBias, "skipped weights"),
    wrong(weights_that_sum_to_two, failed=("weights",)),
    undecided(Rows, "batch"),
    right(right_language_models.InterleavedPartial, "rotary positions (base 10000"),
    # Blocks count only if they were used.
    right(InBlocks, "passed several blocks", init={"efficient": True}),
    right(InBlocks, "right, as far as tried: no several blocks"),
    undecided(InBlocks, "no several blocks", strict=True),
    # Whether it is causal, by its docstring or its name.
    *share([right(sdpa(doc=doc)) for doc in DENIALS], 4),
    *(right(sdpa(doc=doc, is_causal=True)) for doc in CLAIMS),
    *(undecided(sdpa(doc=doc), "its docstring says causal") for doc in CLAIMS),
    *(right(sdpa(doc=doc), causal=False) for doc in CLAIMS),
    *(wrong(sdpa(doc=doc), "no-mask", causal=True) for doc in CLAIMS),
    right(sdpa("NanoCausalAttention", is_causal=True)),
    wrong(sdpa("NanoCausalAttention"), "no-mask"),
    right(sdpa("NonCausalAttention")),
    undecided(sdpa("NonCausalAttention", is_causal=True), "a mask that the check does not know"),
    # The window of a number may mean several things; one key more is a warning unless it is stated.
    right(itself_and_n_before, "itself and n keys before it", "warned of window-off-by-one"),
    right(ItselfAndBefore, "itself and n keys before it"),
    right(n_on_either_side, "n keys on either side"),
    right(half_on_either_side, "n // 2 keys on either side"),
    right(buckets_that_look_back, "its own and the one before"),
    right(left_and_right),
    wrong(itself_and_n_before, "window-off-by-one", says=["leave window= out"], window=4),
    wrong(one_key_fewer, "window-off-by-one"),
    # Which axis is the batch, by its docstring and by what it does.
    right(TokensFirst),
    undecided(TokensSecond, "its docstring says (seq_len, batch, embed_dim)"),
    undecided(ItemsFirst, "attends along its first axis"),
    # The headline says what right code was found to be.
    right(window_of_6, "is right, as attention in a window of 6: "),
    right(causal, "is right, as a mask that is causal: "),
    # What begins at 64 tokens, and another scale, are for the author to say.
    *share([undecided(thing, FROM_64) for thing in (local_64, longer_is_sharper, chunk_64)], 3),
    right(local_64, window=64),
    undecided(mup, "say scale="),
    right(InferenceOnly, "it switches them off itself"),
    # The pairs of options that were tried and refused, precedence by a docstring, and what drops another.
    right(options.everything, "passed options in pairs", *PAIRS),
    right(options.TwoMasks, "mask with padding", true_means="hide"),
    right(options.refuses_without_words, "skipped causal and mask"),
    right(options.documented_precedence, "is_causal is ignored where attn_mask is given, as its text says"),
    right(options.unused_scale, "assumed scale is not used, as its text says"),
    # What a scale does is said, since only the author knows which was meant.
    right(options.scaled_once_more, "assumed scale: multiplies the scores, beside 1/√D"),
    right(options.divided_by_the_scale, "assumed scale: divides the scores, in place of 1/√D"),
    wrong(
        options.fused_path_has_no_cap, why="padding and softcap: `key_padding_mask` switches `softcap` off"
    ),
    right(usual_caches.PastKeyValue, *CACHED),
    right(usual_caches.Preallocated, *CACHED),
    right(dropout_rates.takes_a_layer, "passed dropout in training"),
    # What shows only under some masks or scores.
    wrong(first_head_for_all, says=["failed mask (B, H, T, S)"]),
    wrong(weights_before_the_mask, says=["failed weights"]),
    wrong(maximum_from_zero, says=["failed extreme scores"]),
]


@pytest.mark.parametrize("entry", REPORTS, ids=str)
def test_the_report(entry):
    entry.judge()


def of_transformers(module, name, **sizes):
    """Return an attention module of Transformers."""
    modeling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    config = getattr(pytest.importorskip("transformers"), f"{name}Config")(**sizes)
    return getattr(modeling, f"{name}Attention")(config, layer_idx=0)


def test_a_window_that_the_model_puts_into_the_mask_is_explained():
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    report = check(of_transformers("mistral", "Mistral", **sizes, sliding_window=4), window=4)
    assert report.verdict == "undecided", str(report)
    assert "the mask that the model makes" in report.summary


def test_rotary_tables_of_gpt_oss_under_the_name_of_transformers():
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    right(modeling.GptOssAttention).judge()


def test_t5_returns_its_biases_before_its_weights():
    report = check(of_transformers("t5", "T5", d_model=48, d_kv=12, num_heads=4, dropout_rate=0.0))
    assert report.ok, str(report)
    assert "weights" in [c.name for c in report.passed]
