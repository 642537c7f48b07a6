"""From outside: what moves when tokens change, for models whose attention cannot be heard too."""

import pytest
import torch
from torch import nn

import regard
from regard.auditor.outside import document_codes
from tests.auditor.planted import DOCUMENTS
from tests.auditor.small_models import (
    LENGTH,
    VOCABULARY,
    PlainGPT,
    packed,
    padded,
    small_model,
    strengthened,
    tokens,
)


class Recurrent(nn.Module):
    """A language model without attention: a GRU, one way or both."""

    def __init__(self, both_ways=False):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.mixer = nn.GRU(16, 16, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(32 if both_ways else 16, VOCABULARY)

    def forward(self, input_ids):
        return self.head(self.mixer(self.tokens(input_ids))[0])


@pytest.mark.parametrize(
    ("both_ways", "documents", "mistakes"),
    [(False, None, []), (True, None, ["future-seen"]), (False, DOCUMENTS, ["documents-leak"])],
)
def test_a_model_without_attention_is_audited_from_outside(both_ways, documents, mistakes):
    audit = regard.audit(Recurrent(both_ways), tokens(1), expect=regard.causal, documents=documents)
    assert [d.name for d in audit.diagnoses] == mistakes, audit
    assert audit.ok == (not mistakes)
    assert "nothing was heard from inside" in str(audit)
    assert ("from outside only" in audit.summary) == audit.ok
    if both_ways:
        assert "changing the last token of text 0, 11, moves position" in audit.diagnoses[0].what


def test_a_window_that_is_not_heard_is_undecided():
    audit = regard.audit(Recurrent(), tokens(), expect=regard.causal & regard.window(4))
    assert audit.verdict == "undecided"
    assert "windows are as configured" in audit.undecided


@pytest.mark.parametrize("count", range(2, 7))
def test_of_any_two_documents_each_is_changed_without_the_other(count):
    codes = [set(code) for code in document_codes(count, 4)]
    assert all(not a <= b for i, a in enumerate(codes) for j, b in enumerate(codes) if i != j)
    assert len(set().union(*codes)) <= 4


class OneLeak(PlainGPT):
    """A GPT of six documents of which the fourth reads the third, and no mask shows it."""

    def forward(self, idx, document_ids):
        logits = super().forward(idx, document_ids=document_ids)[0]
        leaked = logits.abs().max() * idx[:, 5] / VOCABULARY
        return logits + (document_ids == 3)[..., None] * leaked[:, None, None]


def test_a_leak_between_any_two_documents_is_found_from_outside():
    torch.manual_seed(0)
    documents = torch.arange(LENGTH)[None] // 2
    batch = {"idx": tokens(1), "document_ids": documents}
    audit = regard.audit(strengthened(OneLeak()), batch, expect=regard.causal)
    assert audit.outside.answers["documents"] is False
    assert "in document 3" in audit.outside.evidence["documents"]
    assert audit.verdict == "wrong"  # though every mask is right


class Noisy(nn.Module):
    """A model whose outputs differ from run to run."""

    def __init__(self):
        super().__init__()
        self.inner = strengthened(PlainGPT())

    def forward(self, idx):
        logits = self.inner(idx)[0]
        return logits * (1 + torch.rand_like(logits))


class Choosy(Noisy):
    """A model that runs on one text only."""

    def forward(self, idx):
        if not torch.equal(idx, tokens()):
            raise KeyError("another text")
        return self.inner(idx)[0]


class Classifier(Noisy):
    """A model that gives one output for a text."""

    def forward(self, idx):
        logits = self.inner(idx)[0]
        return logits[:, -1]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Noisy, "two runs on the same batch differ by more than rounding"),
        (Choosy, "it does not run with other tokens: KeyError"),
        (Classifier, "it gives no output for every token"),
    ],
)
def test_a_model_whose_outputs_tell_nothing_is_judged_from_inside_alone(model, why):
    audit = regard.audit(model(), tokens(), expect=regard.causal)
    assert audit.outside.why == why
    assert audit.verdict == "right", audit


def test_the_model_is_left_as_it_was():
    model = small_model("Llama").train()
    model.lm_head.eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    regard.audit(model, padded("left"))
    assert model.training
    assert not model.lm_head.training
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    model.eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("batch", "documents"), [(packed(), None), (padded("left"), None), (tokens(1), DOCUMENTS)]
)
def test_a_leak_is_more_than_rounding_in_every_dtype(dtype, batch, documents):
    model = small_model("Llama").to(dtype)
    try:
        audit = regard.audit(model, batch, documents=documents)
    finally:
        model.float()
    assert audit.verdict == ("right" if documents is None else "wrong"), audit
    assert audit.outside.answers.get("documents", True) == (documents is None)


def test_gradient_checkpointing_makes_no_cache_in_training():
    model = small_model("Llama")
    batch = {k: v for k, v in packed().items() if k != "use_cache"}
    model.gradient_checkpointing_enable()
    try:
        audit = regard.audit(model.train(), batch)
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    assert audit.verdict == "right", audit
    assert "use_cache=False, as gradient checkpointing sets it in training" in audit.assumptions
