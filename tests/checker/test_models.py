"""Whole models and blocks: a verdict for every attention layer, and for the model by its tokens."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.checker import Report
from tests.checker.corpus import right, undecided, wrong
from tests.checker.language_models import Attention, Block, LanguageModel
from tests.checker.layers import FourLayers
from tests.sampling import share


class Windowed(LanguageModel):
    def mask(self, T):
        return torch.ones(T, T).tril().triu(-3)


class OneAhead(LanguageModel):
    def mask(self, T):
        return torch.ones(T, T).tril(1)


class Unmasked(LanguageModel):
    def mask(self, T):
        return None


class SumOfBatch(LanguageModel):
    def forward(self, idx, targets=None):
        logits, loss = super().forward(idx, targets)
        return logits + logits.mean(0, keepdim=True), loss


class MeanOfTokens(LanguageModel):
    """Its attention is causal, and its head is not."""

    def forward(self, idx, targets=None):
        logits, loss = super().forward(idx, idx)
        return logits + logits.mean(1, keepdim=True), loss


def rows(report):
    return [(layer.name, layer.verdict, layer.mistake, layer.mask) for layer in report.layers]


@pytest.mark.parametrize(("model", "mask"), [(LanguageModel, "causal"), (Windowed, "causal & window(4)")])
def test_every_layer_of_a_model_has_a_line(model, mask):
    report = regard.check(model)
    assert report.verdict == "right", str(report)
    assert rows(report) == [(f"h.{i}.attn", "right", "", mask) for i in (0, 1)]
    assert {check.name for check in report.passed} == {
        "output",
        "causality",
        "causality in training",
        "batch",
    }
    for i in (0, 1):
        assert f"h.{i}.attn  Attention is right, mask {mask}" in str(report)
    assert Report.from_dict(report.to_dict()).layers == report.layers
    assert f"h.0.attn  Attention is right, mask {mask}".replace("&", "&amp;") in report._repr_html_()


class Prepare(nn.Module):
    """One projection that splits its heads, as in labml's attention."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.linear, self.heads = nn.Linear(d_model, d_model), heads

    def forward(self, x):
        return self.linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)


PrepareForMultiHeadAttention = type("PrepareForMultiHeadAttention", (Prepare,), {})


class OfParts(nn.Module):
    def __init__(self, d_model=48, heads=4):
        super().__init__()
        self.query, self.key, self.value = (PrepareForMultiHeadAttention(d_model, heads) for _ in range(3))
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        return self.output((weights @ v).transpose(1, 2).flatten(2))


def test_an_attention_of_parts_is_not_a_model():
    report = regard.check(OfParts)
    assert report.verdict == "right", str(report)
    assert not report.layers


NAMES = {
    "T5ForConditionalGeneration": "causal, bias",
    "LlamaForCausalLM": "causal",
    "BertModel": "full",
    "GPT2LMHeadModel": "causal",
}


@pytest.mark.parametrize("name", share(NAMES, 4))
@pytest.mark.filterwarnings("ignore")
def test_classes_of_transformers_are_built_small(name):
    transformers = pytest.importorskip("transformers")
    report = regard.check(getattr(transformers, name))
    assert report.verdict == "right", str(report)
    assert "padding" in {check.name for check in report.passed}
    assert any(layer.mask.startswith(NAMES[name]) for layer in report.layers)


def test_layers_of_a_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    sizes |= dict(vocab_size=64, intermediate_size=64, max_position_embeddings=32)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, sliding_window=4))
    report = regard.check(model)
    assert report.verdict == "right", str(report)
    assert {layer.mask for layer in report.layers} == {"causal & window(4)"}
    report = regard.check(type(model.model.layers[0]))
    assert report.verdict == "right", str(report)
    assert [row.name for row in report.layers] == ["self_attn"]


class MixedStack(LanguageModel):
    """Its last layer has no mask."""

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        x = self.h[0](x, self.mask(idx.shape[1]))
        return self.lm_head(self.h[1](x))


class MixedStates(MixedStack):
    """As `MixedStack`, with hidden states for its output, and no name that says what they are for."""

    def __init__(self, vocab_size, n_embd, n_head, block_size):
        super().__init__(vocab_size, n_embd, n_head, block_size)
        self.lm_head = nn.Identity()


class Plain(Unmasked):
    """An encoder with `targets` and an `lm_head`, as for masked language modelling."""


class LocalAndFull(LanguageModel):
    """Its layers are causal, the first in a window, as in Gemma."""

    def forward(self, idx, targets=None):
        x, mask = self.wte(idx) + self.wpe(torch.arange(idx.shape[1])), self.mask(idx.shape[1])
        return self.lm_head(self.h[1](self.h[0](x, mask.triu(-2)), mask))


Stack = type("Stack", (MixedStack,), {})
States = type("States", (MixedStates,), {})
LocalAndFullStack = type("LocalAndFullStack", (LocalAndFull,), {})


TinyNet = type("TinyNet", (Unmasked,), {"__module__": __name__})
TinyGPT = TinyNet


class CrossAttention(FourLayers):
    def forward(self, x, memory, mask=None):
        q, k, v = self.project(x, memory, memory)
        return self.finish(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Translator(nn.Module):
    causal, causal_cross = True, False

    def __init__(self, vocab_size=64, d_model=48, n_head=4, max_len=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, d_model), nn.Embedding(max_len, d_model)
        self.encoder, self.self_attn, self.cross_attn = (CrossAttention(d_model, n_head) for _ in range(3))
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, input_ids, decoder_input_ids):
        x, y = (self.tok(i) + self.pos(torch.arange(i.shape[1])) for i in (input_ids, decoder_input_ids))
        x, T = x + self.encoder(x, x), y.shape[1]
        mask = torch.ones(T, max(T, x.shape[1]), dtype=torch.bool).tril()
        y = y + self.self_attn(y, y, mask[:, :T] if self.causal else None)
        return self.head(y + self.cross_attn(y, x, mask[:, : x.shape[1]] if self.causal_cross else None))


class GivenMask(Translator):
    """Its decoder's mask comes from the caller, as in nn.Transformer."""

    def forward(self, input_ids, decoder_input_ids, tgt_mask=None):
        x, y = (self.tok(i) + self.pos(torch.arange(i.shape[1])) for i in (input_ids, decoder_input_ids))
        y = y + self.self_attn(y, y, tgt_mask)
        return self.head(y + self.cross_attn(y, x + self.encoder(x, x)))


def turn(x, angles):
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class RotaryAttention(Attention):
    def forward(self, x, angles):
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(turn(q, angles), turn(k, angles), v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class RotaryModel(nn.Module):
    factor = 1.0

    def __init__(self, vocab_size=64, n_embd=48, n_head=4):
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(vocab_size, n_embd), nn.Linear(n_embd, vocab_size)
        self.attn = nn.ModuleList(RotaryAttention(n_embd, n_head) for _ in range(2))
        self.D = n_embd // n_head

    def forward(self, idx):
        x = self.wte(idx)
        angles = torch.arange(idx.shape[1])[:, None] * 10000.0 ** -torch.linspace(0, 1, self.D // 2)
        angles = angles.to(x.dtype)
        for attn in self.attn:
            x += attn(x, angles)
            angles *= self.factor
        return self.lm_head(x)


class TimeFirstBlock(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(d_model, nhead), nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 96), nn.GELU(), nn.Linear(96, d_model))

    def forward(self, x):
        y = self.norm(x)
        return x + self.mlp(self.attn(y, y, y, need_weights=False)[0])


class SaysBatchFirst(TimeFirstBlock):
    def forward(self, x):
        """Return (B, T, C), as x is."""
        return super().forward(x)


SeesLaterTokens = type("SeesLaterTokens", (Translator,), {"causal": False})
CausalCross = type("CausalCross", (Translator,), {"causal_cross": True})
Changing = type("Changing", (RotaryModel,), {"factor": 2.0})
EVERYTHING_TRIED = "is right: "


@pytest.mark.parametrize(
    "entry",
    [
        # Mistakes of a model around its layers.
        wrong(OneAhead, "one-token-ahead", failed=("h.0.attn", "h.1.attn", "causality"), causal=True),
        wrong(Unmasked, "no-mask", failed=("causality",), causal=True),
        wrong(SumOfBatch, "batch-items-mixed", failed=("batch",), causal=True),
        wrong(MeanOfTokens, why="though every attention layer's mask is causal", failed=("causality",)),
        right(Windowed, window=4),
        wrong(LanguageModel, "window-dropped", window=4),
        right(Block, "attn  Attention is right, mask full", "hidden states (2, 11, 48)"),
        # Stacks of layers with and without a causal mask.
        wrong(Stack, why="h.0.attn causal, h.1.attn not", failed=("causality",)),
        right(States, "no one answer on causality (h.0.attn causal, h.1.attn not)"),
        right(States, EVERYTHING_TRIED, causal=False),
        wrong(States, causal=True),
        right(Plain, EVERYTHING_TRIED),
        right(LocalAndFullStack, EVERYTHING_TRIED),
        wrong(TinyGPT, "no-mask"),  # another name of the class counts
        # Decoders of another text.
        pytest.param(right(Translator, EVERYTHING_TRIED), marks=pytest.mark.at_length("test_the_report")),
        pytest.param(
            wrong(SeesLaterTokens, failed=("causality",)), marks=pytest.mark.at_length("test_the_report")
        ),
        pytest.param(
            right(CausalCross, "`cross_attn` is causal"), marks=pytest.mark.at_length("test_the_report")
        ),
        right(GivenMask, "`tgt_mask` was not passed"),
        # Positions that change from layer to layer are in the headline.
        right(RotaryModel, EVERYTHING_TRIED),
        right(Changing, "`angles`, which is changed in place between `attn.0` and `attn.1`"),
        pytest.param(
            right(TimeFirstBlock, "as a block on (T, B, C)"), marks=pytest.mark.at_length("test_the_report")
        ),
        pytest.param(
            undecided(SaysBatchFirst, "its source says (B, T, C)"),
            marks=pytest.mark.at_length("test_the_report"),
        ),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()
