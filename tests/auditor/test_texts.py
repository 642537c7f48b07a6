"""The texts of a batch read only themselves, each of them in order: what is found wrong, and what is not."""

import pytest
import torch
from torch import nn

import regard
from tests.auditor.small_models import (
    LENGTH,
    VOCABULARY,
    PlainGPT,
    new_model,
    packed,
    padded,
    prefixed,
    small_model,
    strengthened,
    tokens,
)


class BatchFirstForgotten(nn.Module):
    """PyTorch's own encoder on (B, T, C), which it takes for (T, B, C)."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        layer = nn.TransformerEncoderLayer(16, 4, 32)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids):
        x = self.tokens(input_ids)
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        return self.head(self.encoder(x, mask=mask))


class Mixed(PlainGPT):
    """A GPT behind whose attention a function of its logits (B, T, V) mixes them."""

    def __init__(self, mix):
        super().__init__()
        self.mix = mix

    def forward(self, idx):
        return self.mix(super().forward(idx)[0])


def mixed(mix):
    torch.manual_seed(0)
    return strengthened(Mixed(mix))


def names(audit):
    return [diagnosis.name for diagnosis in audit.diagnoses]


@pytest.mark.parametrize("B", [2, 3, LENGTH])  # with as many texts as tokens, a mask fits either axis
def test_attention_over_the_batch_is_wrong(B):
    torch.manual_seed(0)
    audit = regard.audit(BatchFirstForgotten(), tokens(B), expect=regard.causal)
    assert names(audit) == ["batch-items-mixed"], audit
    assert "changing other texts of the batch moves position 0 of text" in audit.diagnoses[0].what


def test_attention_over_a_batch_of_one_is_undecided():
    torch.manual_seed(0)
    audit = regard.audit(BatchFirstForgotten(), tokens(1), expect=regard.causal)
    assert audit.verdict == "undecided", audit
    assert "no attention layer could be compared" in audit.undecided
    assert "its queries and keys are not the tokens of the batch" in audit.undecided


def test_a_mean_over_the_batch_beside_right_masks_is_wrong():
    model = new_model("Llama").eval()
    model.model.layers[0].mlp.register_forward_hook(lambda *call: call[2] + call[2].mean(0, keepdim=True))
    audit = regard.audit(model, tokens(3))
    assert names(audit) == ["batch-items-mixed"], audit
    assert all(layer.is_compared for layer in audit.layers)


def test_an_encoder_that_mixes_its_texts_is_wrong():
    model = new_model("T5").eval()
    model.encoder.final_layer_norm.register_forward_hook(lambda *call: call[2].flip(0))
    batch = {"input_ids": tokens(), "decoder_input_ids": tokens(2, 7, seed=1)}
    assert names(regard.audit(model, batch)) == ["batch-items-mixed"]


def joined(logits):
    """The mean of everything before, through all texts as if they were one."""
    flat = logits.flatten(0, 1)
    return (flat + flat.cumsum(0) / len(flat)).view_as(logits)


# Which text reads which: by turns, in reverse, from the one before, from the one after, in pairs.
MIXES = {
    "mean": lambda x: x + x.mean(0, keepdim=True),
    "flip": lambda x: x + x.flip(0),
    "the one before": lambda x: x + x.roll(1, 0),
    "the one after": lambda x: x + x.roll(-1, 0),
    "only later texts": lambda x: x + x.flip(0).cumsum(0).flip(0),
    "first tokens": lambda x: x + x[:, :1].mean(0, keepdim=True),
    "one long text": joined,
    "one long text, from its end": lambda x: joined(x.flip(0)).flip(0),
}


@pytest.mark.parametrize("B", [2, 3, 4])
@pytest.mark.parametrize("mix", MIXES)
def test_texts_that_read_each_other_are_found_and_named_alone(mix, B):
    audit = regard.audit(mixed(MIXES[mix]), tokens(B), expect=regard.causal)
    assert names(audit) == ["batch-items-mixed"], audit


@pytest.mark.parametrize("B", [1, 2, 3])
@pytest.mark.parametrize("T", [2, 3, 7, LENGTH])
def test_a_mean_over_time_is_no_mix_of_texts(T, B):
    audit = regard.audit(mixed(lambda x: x + x.mean(1, keepdim=True)), tokens(B, T), expect=regard.causal)
    assert names(audit) == ["future-seen"], audit


def test_a_mean_over_texts_and_time_is_both():
    audit = regard.audit(mixed(lambda x: x + x.mean((0, 1))), tokens(3), expect=regard.causal)
    assert set(names(audit)) == {"future-seen", "batch-items-mixed"}, audit


def chunks_normed(size):
    """Return a norm over whole chunks of tokens; those that fill no chunk are left as they are."""

    def norm(x):
        n = x.shape[1] // size * size
        chunks = x[:, :n].unflatten(1, (-1, size))
        return torch.cat([(chunks - chunks.mean(2, keepdim=True)).flatten(1, 2), x[:, n:]], 1)

    return norm


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize(("size", "T"), [(s, T) for s in (2, 3, 4, 5) for T in (10, 11, 13, 15)])
def test_chunks_that_read_ahead_are_found_wherever_they_end(size, T, B):
    audit = regard.audit(mixed(chunks_normed(size)), tokens(B, T), expect=regard.causal)
    assert names(audit) == ["future-seen"], audit
    assert audit.answers[0].inside  # the masks are right


@pytest.mark.parametrize("key", [5, 8])
def test_one_output_that_reads_far_ahead_is_found(key):
    def reads(x):
        return torch.cat([x[:, :1] + x[:, key : key + 1], x[:, 1:]], 1)

    audit = regard.audit(mixed(reads), tokens(1, 10), expect=regard.causal)
    assert names(audit) == ["future-seen"], audit
    assert "changing text 0 from position 3 on moves position 0" in audit.diagnoses[0].what


@pytest.mark.parametrize("statistics", [True, False])
def test_batch_norm_mixes_texts_only_if_it_keeps_no_statistics(statistics):
    norm = nn.BatchNorm1d(VOCABULARY, track_running_stats=statistics)
    model = mixed(lambda x: norm(x.mT).mT)
    model.norm = norm
    audit = regard.audit(model.train(), tokens(3), expect=regard.causal)
    assert audit.verdict == ("right" if statistics else "wrong"), audit
    assert ("batch-items-mixed" in names(audit)) is not statistics


def test_dropout_in_training_is_no_alarm():
    model = mixed(nn.Dropout(0.5))
    audit = regard.audit(model.train(), tokens(3), expect=regard.causal)
    assert audit.verdict == "right", audit
    assert audit.outside.answers["texts"]
    noisy = regard.audit(mixed(nn.functional.dropout), tokens(3), expect=regard.causal)
    assert "texts" not in noisy.outside.answers
    assert "two runs on the same batch differ by more than rounding" in noisy.notes[0]


class Experts(nn.Module):
    """An expert for every token whose largest logit is an even one, which takes so many tokens of a batch."""

    def __init__(self, capacity):
        super().__init__()
        self.capacity = capacity

    def forward(self, x):
        flat = x.flatten(0, 1)
        chosen = flat.argmax(1) % 2 == 0
        taken = chosen & (chosen.cumsum(0) <= self.capacity)
        return torch.where(taken[:, None], 2 * flat, flat).view_as(x)


@pytest.mark.parametrize(("capacity", "mistakes"), [(100, []), (8, ["batch-items-mixed"])])
def test_experts_of_a_limited_capacity_mix_texts(capacity, mistakes):
    audit = regard.audit(mixed(Experts(capacity)), tokens(3), expect=regard.causal)
    assert names(audit) == mistakes, audit


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        ("Llama", padded("left", (LENGTH, 6, 0))),
        ("Llama", padded("left", (0, LENGTH, 6))),
        ("GPT-2", padded("right", (2, 1, LENGTH))),
        ("BERT", padded("right", (1, 5, LENGTH))),
        ("BERT", tokens(3)),
        ("gpt-oss", tokens(4)),  # experts
        ("Qwen3-Next", tokens(3)),
        ("PaliGemma", prefixed()),
        ("BART", {"input_ids": tokens(3), "decoder_input_ids": tokens(3, 7, seed=1)}),
    ],
)
def test_whole_texts_are_changed_without_a_false_alarm(kind, batch):
    audit = regard.audit(small_model(kind), batch)
    assert audit.verdict == "right", audit
    assert audit.outside.answers["texts"], audit
    assert not any("not asked" in note for note in audit.notes)


@pytest.mark.parametrize(
    ("batch", "options", "why"),
    [
        (packed(), {}, "there is one"),
        (padded("left", (LENGTH, 0)), {}, "there is one"),
        (tokens(), {"outside": False}, "no other tokens were tried"),
    ],
)
def test_a_right_verdict_says_that_texts_were_not_compared(batch, options, why):
    audit = regard.audit(small_model("Llama"), batch, **options)
    assert audit.verdict == "right", audit
    assert f"not asked: whether the texts of a batch are apart; {why}" in audit.notes


def test_a_right_verdict_says_how_many_layers_were_not_compared():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.vision = mixed(lambda x: x), nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, idx):
            patches = torch.ones(len(idx), 5, 16)
            return self.text(idx) + 0 * self.vision(patches, patches, patches)[0].sum()

    audit = regard.audit(Towers(), tokens(), expect=regard.causal)
    assert audit.verdict == "right", audit
    assert "1 of 3 layers not compared" in audit.summary
