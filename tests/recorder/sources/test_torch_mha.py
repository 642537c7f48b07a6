"""PyTorch's attention seen: maps equal its weights, outputs keep their bits, nothing is left behind."""

import copy
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from tests.recorder.small_models import captured

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed, switching to BLAS"),  # old CPUs have no bf16
]

FUNCTIONS = (
    (torch.nn.functional, "scaled_dot_product_attention"),
    (torch.nn.functional, "multi_head_attention_forward"),
    (torch, "_native_multi_head_attention"),
    (torch, "_transformer_encoder_layer_fwd"),
)
ORIGINALS = [getattr(where, name) for where, name in FUNCTIONS]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    yield
    assert [getattr(where, name) for where, name in FUNCTIONS] == ORIGINALS
    assert torch.backends.mha.get_fastpath_enabled()


def heads_of(mha, *args, **kwargs):
    """The module's own weights, (B, H, T, S), from its own slow path."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            weights = mha(*args, **kwargs, need_weights=True, average_attn_weights=False)[1]
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return weights if weights.ndim == 4 else weights[None]


class Drawn:
    """An attention and a call of it."""

    def __init__(self, draw):
        self.H, D = draw(st.sampled_from([(1, 4), (2, 4), (3, 2), (4, 8)]))
        width = self.H * D
        batched = draw(st.booleans())
        B, T, S = draw(st.integers(1, 3)) if batched else 1, draw(st.integers(1, 7)), draw(st.integers(1, 7))
        alone = draw(st.booleans())  # self-attention
        S = T if alone else S
        other = not alone and draw(st.booleans())
        kdim, vdim = (draw(st.integers(3, 9)), draw(st.integers(3, 9))) if other else (None, None)
        first = batched and draw(st.booleans())
        torch.manual_seed(draw(st.integers(0, 2**20)))
        self.module = nn.MultiheadAttention(
            width,
            self.H,
            bias=draw(st.booleans()),
            add_bias_kv=draw(st.booleans()),
            add_zero_attn=draw(st.booleans()),
            kdim=kdim,
            vdim=vdim,
            batch_first=first,
        )
        self.module.train(draw(st.booleans()))
        with torch.no_grad():
            for weight in self.module.parameters():  # biases start as 0, which would hide that one is missing
                weight.copy_(torch.randn_like(weight) * 0.6)

        def given(length, size):
            shape = (B, length, size) if first else (length, B, size) if batched else (length, size)
            return torch.randn(shape)

        query = given(T, width)
        self.args = (query,) * 3 if alone else (query, given(S, kdim or width), given(S, vdim or width))
        self.kwargs = {}
        if (kind := draw(st.sampled_from([None, "bool", "float", "causal", "heads"]))) is not None:
            hidden = torch.rand(T, S) < 0.4
            if kind == "causal":
                hidden = torch.ones(T, S).triu(1).bool()
            if kind == "heads":
                hidden = torch.rand(B * self.H, T, S) < 0.4
            hidden[..., 0] = False  # PyTorch gives NaN to a row that may look at nothing
            self.kwargs["attn_mask"] = torch.randn(hidden.shape) if kind == "float" else hidden
        if kind != "float" and draw(st.booleans()):
            hidden = torch.rand(B, S) < 0.4
            hidden[:, 0] = False
            self.kwargs["key_padding_mask"] = hidden if batched else hidden[0]
        self.hint = kind == "causal" and draw(st.booleans())
        self.need = draw(st.booleans())

    def __repr__(self):
        shapes = [tuple(x.shape) for x in self.args]
        masks = {name: tuple(x.shape) for name, x in self.kwargs.items()}
        return f"{self.module} {shapes} {masks} hint={self.hint} need_weights={self.need}"


@given(drawn=st.composite(Drawn)(), grad=st.booleans())
def test_maps_are_the_modules_own_weights(drawn, grad):
    options = {"need_weights": drawn.need, "is_causal": drawn.hint}
    wanted = heads_of(drawn.module, *drawn.args, **drawn.kwargs)
    with torch.set_grad_enabled(grad):
        seen = captured(drawn.module, *drawn.args, **drawn.kwargs, **options)
    if drawn.hint and not drawn.need and "key_padding_mask" not in drawn.kwargs:
        # With the hint PyTorch drops the mask for its own causal one, which counts added keys as any others.
        wanted = wanted.tril() / wanted.tril().sum(-1, keepdim=True)
    torch.testing.assert_close(seen[0].to_dense(), wanted, atol=2e-6, rtol=1e-4)


@given(
    pick=st.data(),
    norm_first=st.booleans(),
    activation=st.sampled_from(["relu", "gelu"]),
    batch_first=st.booleans(),
    grad=st.booleans(),
)
def test_encoders_in_every_way_that_they_run(pick, norm_first, activation, batch_first, grad):
    heads = pick.draw(st.sampled_from([1, 2, 3, 4]))  # an odd number has no fast path
    B, T = pick.draw(st.integers(1, 3)), pick.draw(st.integers(1, 80))
    torch.manual_seed(pick.draw(st.integers(0, 2**20)))
    one = nn.TransformerEncoderLayer(
        12, heads, 24, activation=activation, batch_first=batch_first, norm_first=norm_first
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some settings rule out nested tensors
        model = nn.TransformerEncoder(one, 2, enable_nested_tensor=pick.draw(st.booleans())).eval()
    x = torch.randn(B, T, 12)
    mask = padding = None
    if (kind := pick.draw(st.sampled_from([None, "causal", "causal float", "bool"]))) is not None:
        mask = torch.ones(T, T).triu(1).bool() if "causal" in kind else torch.rand(T, T) < 0.4
        mask[:, 0] = False
    if pick.draw(st.booleans()):
        lengths = torch.randint(1, T + 1, (B,))
        padding = torch.arange(T) >= lengths[:, None]
        if pick.draw(st.booleans()):
            padding = padding.flip(1)  # on the left
            mask = None
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool)
    if mask is not None:
        allowed = allowed & ~mask
        if kind == "causal float":
            mask = torch.zeros(T, T).masked_fill(mask, -torch.inf)
            padding = None
    if padding is not None:
        allowed = allowed & ~padding[:, None, None]
    with torch.set_grad_enabled(grad):
        seen = captured(
            model, x if batch_first else x.transpose(0, 1), mask=mask, src_key_padding_mask=padding
        )
    assert len(seen) == 2
    real = torch.ones(B, T, dtype=torch.bool) if padding is None else ~padding
    layer = model.layers[0]
    with torch.no_grad():
        inside = layer.norm1(x) if norm_first else x
        inside = inside if batch_first else inside.transpose(0, 1)
        hidden = ~allowed.expand(B, heads, T, T).flatten(0, 1)
        wanted = heads_of(layer.self_attn, inside, inside, inside, attn_mask=hidden)
    found = seen[0].to_dense()
    n = found.shape[-1]  # as long as the longest, where nested tensors were used
    rows = real[:, None, :n, None] if padding is not None else 1.0
    torch.testing.assert_close(found * rows, wanted[..., :n, :n] * rows, atol=2e-6, rtol=1e-4)
    assert float((wanted[..., n:] * real[:, None, :, None]).sum()) == 0.0


def test_the_fast_path_is_really_taken_and_seen(monkeypatch):
    taken = []
    for name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
        original = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *args, name=name, original=original: taken.append(name) or original(*args)
        )
    monkeypatch.setitem(globals(), "ORIGINALS", [getattr(where, name) for where, name in FUNCTIONS])
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        with regard.capture(layer) as seen:
            layer(x)
        assert taken == ["_transformer_encoder_layer_fwd"]
        with regard.capture(layer.self_attn) as alone:
            layer.self_attn(x, x, x)
    assert taken[1:] == ["_native_multi_head_attention"]
    assert seen.certificate.certified
    torch.testing.assert_close(seen[0].to_dense(), alone[0].to_dense())


def test_rows_of_padding_that_the_fused_encoder_does_not_compute_are_zeros():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, hidden = torch.randn(2, 9, 16), torch.arange(9) >= torch.tensor([4, 9])[:, None]
    with torch.no_grad(), regard.capture(model, values=True) as seen:
        model(x, src_key_padding_mask=hidden)
    assert seen.certificate.certified, str(seen.certificate)
    for captured_layer in seen.layers:
        rows = captured_layer.map.to_dense().sum(-1)  # (B, H, T)
        assert float(rows[0, :, 4:].abs().max()) == 0.0
        assert float((captured_layer.map @ captured_layer.values)[0, :, 4:].abs().max()) == 0.0
        assert float((rows[1] - 1).abs().max()) < 1e-5
        assert "5 without a visible key are shown as zeros" in str(captured_layer.evidence)


def test_float_masks_as_the_fast_path_reads_them():
    """The fused layer hides where a float mask is not 0, the slow path adds it: each is shown as it ran."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x, bias = torch.randn(2, 5, 16), torch.zeros(5, 5)
    bias[:, 3:] = 0.5
    with torch.no_grad():
        fast = captured(layer, x, src_mask=bias)
    slow = captured(layer, x, src_mask=bias)
    assert str(fast[0].mask) == "padding(1×5)"
    assert float(fast[0].to_dense()[..., 3:].max()) == 0.0
    assert slow[0].mask.biased
    assert float(slow[0].to_dense()[..., 3:].min()) > 0.0


def test_a_row_that_sees_nothing_is_not_certified():
    mha = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, hidden = torch.randn(1, 4, 8), torch.zeros(4, 4, dtype=torch.bool)
    hidden[2] = True
    with torch.no_grad(), regard.capture(mha) as seen:
        output, _ = mha(x, x, x, attn_mask=hidden)
    assert bool(output[0, 2].isnan().all())
    assert not seen.certificate.certified
    assert "own output is NaN" in str(seen.certificate)


def test_self_and_cross_are_told_apart():
    model = nn.Transformer(16, 4, 2, 3, 32, batch_first=True).eval()
    source, target = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
    order = nn.Transformer.generate_square_subsequent_mask(5)
    hidden = torch.arange(7) >= torch.tensor([4, 7])[:, None]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            seen = captured(
                model,
                source,
                target,
                tgt_mask=order,
                tgt_is_causal=True,
                src_key_padding_mask=hidden,
                memory_key_padding_mask=hidden,
            )
        shapes = {layer.key: layer.shape for layer in seen.layers}
        assert shapes == {
            "encoder.0": (2, 4, 7, 7),
            "encoder.1": (2, 4, 7, 7),
            "decoder.0": (2, 4, 5, 5),
            "cross.0": (2, 4, 5, 7),
            "decoder.1": (2, 4, 5, 5),
            "cross.1": (2, 4, 5, 7),
            "decoder.2": (2, 4, 5, 5),
            "cross.2": (2, 4, 5, 7),
        }
        assert seen.layer("cross.1").name == "decoder.layers.1.multihead_attn"
        assert seen["decoder.1"].mask is regard.causal
        assert str(seen["cross.2"].mask) == "padding(2×7)"
        assert float(seen["cross.0"].to_dense()[0, ..., 4:].abs().max()) == 0.0
        assert len(seen.maps_of("cross")) == 3


def test_dropout_in_training_is_a_problem_and_nothing_else_changes():
    mha = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 6, 8)
    for need in (True, False):
        seen = captured(mha, x, x, x, need_weights=need, certified=False)
        assert not seen.certificate.certified
        assert "dropout 0.5 was on" in str(seen.certificate)
    wanted = heads_of(copy.deepcopy(mha).eval(), x, x, x)
    torch.testing.assert_close(seen[0].to_dense(), wanted)
