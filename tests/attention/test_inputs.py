"""Bad input is answered with a sentence; whole numbers of every kind; answers to PyTorch’s names."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import randn, zeros

import regard
from regard import padding, stages
from regard.attention.arguments import PYTORCH_ARGUMENTS
from regard.gpt import Config
from regard.gpt.sampler import Sampler
from regard.gpt.training.settings import TrainingSettings
from regard.heads.repeated_tokens import repeated
from regard.layers import Attention, KVCache, Rotary, SinkCache, WindowCache
from regard.show.server.limits import RefusedError, check_number
from tests.sampling import together

q = randn(2, 4, 3, 8)  # (B, H, T, D)
k = randn(2, 2, 5, 8)  # (B, G, S, D)
v = randn(2, 2, 5, 6)  # (B, G, S, E)
elsewhere = torch.device("meta")

BAD = [
    ({"q": [[1.0]]}, "q: expected a torch.Tensor, got list"),
    ({"k": None}, "k: expected a torch.Tensor, got NoneType"),
    ({"q": randn(8)}, r"q: expected \(batch, heads, length, width\).*got \(8,\)"),
    ({"q": randn(2, 3, 8)}, r"k: expected 3 dimensions, as q has, got \(2, 2, 5, 8\)"),
    ({"k": randn(2, 5, 8)}, r"k: expected 4 dimensions, as q has, got \(2, 5, 8\)"),
    ({"q": zeros(2, 4, 3, 8).long()}, r"q: expected a floating-point.*got torch.int64: pass .float"),
    ({"q": zeros(2, 4, 3, 8).cfloat()}, "q: expected a floating-point.*got torch.complex64"),
    ({"k": k.double()}, "k: expected torch.float32, as q has, got torch.float64"),
    ({"k": k.to(elsewhere)}, "k: expected it on cpu, where q is, got meta"),
    ({"q": q.to(elsewhere)}, "k: expected it on meta"),
    ({"k": k.to_sparse()}, "k: expected an ordinary dense tensor"),
    ({"k": randn(2, 2, 5, 7)}, r"k: expected width 8, as q has, got \(2, 2, 5, 7\)"),
    ({"q": randn(2, 4, 3, 0), "k": randn(2, 2, 5, 0)}, r"q: expected a width of at least 1, got"),
    ({"v": randn(2, 2, 4, 6)}, r"v: expected 5 keys, as k has, got \(2, 2, 4, 6\)"),
    ({"v": randn(2, 4, 5, 6)}, r"v: expected \(2, 2\) before \(S, E\), as k has, got \(2, 4, 5, 6\)"),
    ({"k": randn(3, 2, 5, 8), "v": randn(3, 2, 5, 6)}, r"k: expected batch \(2,\).*got \(3, 2"),
    (
        {"k": randn(2, 3, 5, 8), "v": randn(2, 3, 5, 6)},
        "k: expected a number of heads that divides q's 4, got 3",
    ),
    ({"k": randn(2, 0, 5, 8), "v": randn(2, 0, 5, 6)}, "k: .* divides q's 4, got 0"),
    ({"q": randn(2, 0, 3, 8)}, "k: .* divides q's 0, got 2"),
    ({"mask": zeros(3, 5).fill_diagonal_(1)}, r"mask: a float mask is added.*only 0 and 1.*pass \.bool\(\)"),
    ({"mask": lambda b, h, q, k: q >= k}, "mask: expected a tensor or a mask, got function"),
    ({"mask": zeros(5, 3)}, r"mask .*: expected a shape that broadcasts to \(2, 4, 3, 5\), got \(5, 3\)"),
    ({"mask": zeros(3, 5, device=elsewhere).bool()}, "mask: expected it on cpu, where q is, got meta"),
    ({"mask": padding([1, 2, 3])}, r"mask padding\(\[1, 2, 3\]\): expected one entry for each of the 2"),
    ({"scale": "8"}, "scale: expected a finite number.*got '8'"),
    ({"scale": True}, "scale: expected a finite number"),
    ({"scale": math.nan}, "scale: expected a finite number.*got nan"),
    ({"softcap": 0.0}, "softcap: expected a number above 0, or None, got 0.0"),
    ({"softcap": "30"}, "softcap: expected a number above 0, or None, got '30'"),
    ({"dropout": 1.1}, "dropout: expected a probability from 0 to 1, got 1.1"),
    ({"dropout": False}, "dropout: expected a probability"),
    ({"dropout": None}, "dropout: expected a probability from 0 to 1, got None"),
    ({"sinks": [0.0] * 4}, "sinks: expected a torch.Tensor, got list"),
    ({"sinks": zeros(2)}, r"sinks: expected \(4,\), one logit a head, got \(2,\)"),
    ({"sinks": zeros(4, device=elsewhere)}, "sinks: expected it on cpu, where q is, got meta"),
]


@together(("changes", "message"), BAD)
def test_bad_input_is_named_every_time_also_beside_a_call_that_has_a_plan(changes, message):
    right = {"q": q, "k": k, "v": v, "mask": regard.causal, "scale": 1.0, "dropout": 0.0}
    for attention in (regard.scaled_dot_product_attention, regard.attend) * 2:
        attention(**right)
        with pytest.raises(ValueError, match=f"^{message}"):
            attention(**right | changes)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            zeros(3, 2, 2, 4, 4).bool(),
            r"mask: expected a batch that broadcasts to \(2, 3\), got \(3, 2, 2, 4, 4\)",
        ),
        (zeros(2, 1, 4, 4).bool(), r"mask: expected a batch that broadcasts to \(2, 3\), got \(2, 1, 4, 4\)"),
        (zeros(1, 1, 1, 1, 4, 4).bool(), r"mask: expected at most .* dimensions"),
        (padding([1, 2]), "mask .*: expected one entry for each of the 6 sequences in the batch, got 2"),
    ],
)
def test_bad_masks_for_five_dimensions(mask, message):
    x = randn(2, 3, 2, 4, 5)
    with pytest.raises(ValueError, match=f"^{message}"):
        regard.scaled_dot_product_attention(x, x, x, mask)


def test_padding_for_a_batch_without_heads_says_how_to_add_them():
    x = randn(2, 3, 4)  # two heads of one sequence, though the caller may mean two sequences
    with pytest.raises(ValueError, match=r"add a heads axis with \.unsqueeze\(1\)"):
        regard.scaled_dot_product_attention(x, x, x, padding([1, 2]))


def test_a_learned_bias_of_another_float_dtype_is_fine():
    bias = randn(3, 5, dtype=torch.float64, requires_grad=True)
    output, _ = regard.scaled_dot_product_attention(q, k, v, bias)
    output.sum().backward()
    assert bias.grad.dtype == torch.float64
    assert bias.grad.abs().max() > 0


def test_numbers_of_numpy_are_numbers():
    q = torch.randn(1, 2, 3, 4)
    expected = regard.attend(q, q, q, scale=0.5, softcap=5.0)
    assert torch.equal(regard.attend(q, q, q, scale=np.float32(0.5), softcap=np.int64(5)), expected)


X = torch.randn(1, 2, 6, 4)
SIZES = (16, 8, 2, 2, 4)  # vocabulary, context, layers, heads, width
CALLERS = {
    "window": regard.window,
    "prefix": regard.prefix,
    "chunks": regard.chunks,
    "KVCache": KVCache,
    "WindowCache": WindowCache,
    "SinkCache(first)": lambda n: SinkCache(n, 4),
    "Rotary": Rotary,
    "Attention(d_model)": lambda n: Attention(n, 2),
    "Attention(num_heads)": lambda n: Attention(8, n),
    "MultiHeadAttention": lambda n: stages.MultiHeadAttention(8, 8, n),
    "LearnedPositions": lambda n: stages.LearnedPositions(8, n),
    "alibi_bias": lambda n: stages.alibi_bias(n, 3),
    "SmallGPT(vocab_size)": lambda n: stages.SmallGPT(n, 8, 8, 2, 1),
    "pool(rows)": lambda n: regard.attention_map(X, X).pool(n, 2),
    "topk": lambda n: regard.attention_map(X, X).topk(n),
    "repeated": lambda n: repeated(50, tokens=n),
    "Config(layers)": lambda n: Config(16, 8, n, 2, 4),
    "Config(window)": lambda n: Config(*SIZES, window=n),
    "TrainingSettings(steps)": lambda n: TrainingSettings(steps=n),
    "Sampler(top_k)": lambda n: Sampler(1.0, top_k=n),
    "capture_size": lambda n: regard.capture_size(Config(*SIZES), n),
    "the server": lambda n: check_number("tokens", n, 1, 8),
}


@pytest.mark.parametrize("name", CALLERS)
@together("n", [4, np.int64(4), np.int32(4), torch.tensor(4)])
def test_every_integer_is_a_whole_number(name, n):
    CALLERS[name](n)


@pytest.mark.parametrize("name", CALLERS)
@together("wrong", [True, 2.5, np.float64(4), np.bool_(True), torch.tensor(True), [4]])
def test_nothing_else_is(name, wrong):
    # A pool takes increasing edges beside a number of cells.
    edges = name.startswith("pool") and isinstance(wrong, list)
    message = "expected at least two increasing positions" if edges else "expected a whole number"
    with pytest.raises((ValueError, RefusedError), match=message):
        CALLERS[name](wrong)


def test_numbers_are_stored_as_plain_integers():
    layer = Attention(np.int64(8), np.int64(4), num_kv_heads=np.int64(2), head_dim=np.int64(2))
    sizes = (layer.d_model, layer.num_heads, layer.num_kv_heads, layer.head_dim)
    assert {type(size) for size in (*sizes, KVCache(np.int64(4)).max_length)} == {int}
    config = Config(*map(np.int64, SIZES), window=(np.int64(4), None))
    assert config == Config(*SIZES, window=(4, None))
    assert {type(size) for size in dataclasses.astuple(config)[:8]} == {int}


FUNCTIONS = {
    "attend": lambda **other: regard.attend(X, X, X, **other),
    "scaled_dot_product_attention": lambda **other: regard.scaled_dot_product_attention(X, X, X, **other),
    "attention_map": lambda **other: regard.attention_map(X, X, **other),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ({"attn_mask": torch.ones(6, 6).bool()}, "write mask="),
        ({"is_causal": True}, "write mask=regard.causal"),
        ({"dropout_p": 0.1}, "write dropout="),
        ({"enable_gqa": True}, "leave it out"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_arguments_of_pytorch_are_answered_with_what_to_write(function, argument, advice):
    (name,) = argument
    with pytest.raises(TypeError, match=rf"^{function}\(\) has no argument '{name}': {advice}"):
        FUNCTIONS[function](**argument)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mistyped'"):
        FUNCTIONS[function](mistyped=1)


def test_every_argument_of_pytorch_is_known_or_answered():
    theirs = {"query", "key", "value", *PYTORCH_ARGUMENTS, "scale"}
    text = torch.nn.functional.scaled_dot_product_attention.__doc__ or ""
    signature = text[text.index("(") + 1 : text.index(")")]
    assert {part.split("=")[0].split(":")[0].strip(" *\n") for part in signature.split(",")} <= theirs | {""}
