"""From outside: what moves when tokens change, for models whose attention cannot be heard too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.auditor.outside import document_codes
from tests.auditor.planted import DOCUMENTS, packed_idx, padded_idx
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

    def __init__(self, both_ways: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.mixer = nn.GRU(16, 16, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(32 if both_ways else 16, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.mixer(self.tokens(input_ids))[0])
        return out


def test_a_model_without_attention_is_audited_from_outside() -> None:
    audit = regard.audit(Recurrent(), tokens(), expect=regard.causal)
    assert audit.outside.answers == {"future": True}
    assert audit.verdict == "right", audit
    assert "nothing was heard from inside" in str(audit)


def test_a_model_without_attention_that_reads_both_ways_sees_the_future() -> None:
    audit = regard.audit(Recurrent(both_ways=True), tokens(), expect=regard.causal)
    assert [d.name for d in audit.diagnoses] == ["future-seen"]
    assert "changing the last token of text 0, 11, moves position" in str(audit.diagnoses[0].what)


def test_a_recurrent_model_carries_documents_over() -> None:
    audit = regard.audit(Recurrent(), tokens(1), expect=regard.causal, documents=DOCUMENTS)
    assert [d.name for d in audit.diagnoses] == ["documents-leak"]


def test_a_window_that_is_not_heard_is_undecided() -> None:
    audit = regard.audit(Recurrent(), tokens(), expect=regard.causal & regard.window(4))
    assert audit.verdict == "undecided"
    assert "windows are as configured" in audit.undecided


@pytest.mark.parametrize("fault", ["", "causal", "documents"])
def test_inside_and_outside_agree(fault: str) -> None:
    torch.manual_seed(0)
    audit = regard.audit(strengthened(PlainGPT(fault)), packed_idx())
    assert not any(answer.differs for answer in audit.answers), audit
    assert (audit.verdict == "right") is (fault == "")


@pytest.mark.parametrize("count", range(2, 7))
def test_of_any_two_documents_each_is_changed_without_the_other(count: int) -> None:
    codes = [set(code) for code in document_codes(count, 4)]
    assert all(not a <= b for i, a in enumerate(codes) for j, b in enumerate(codes) if i != j)
    assert len(set().union(*codes)) <= 4


class OneLeak(PlainGPT):
    """A GPT of six documents of which the fourth reads the third, and no mask shows it."""

    def forward(self, idx: Tensor, document_ids: Tensor) -> Tensor:  # type: ignore[override]
        logits: Tensor = super().forward(idx, document_ids=document_ids)[0]
        leaked = logits.abs().max() * idx[:, 5] / VOCABULARY
        return logits + (document_ids == 3)[..., None] * leaked[:, None, None]


def test_a_leak_between_any_two_documents_is_found_from_outside() -> None:
    torch.manual_seed(0)
    documents = torch.arange(LENGTH)[None] // 2
    batch = {"idx": tokens(1), "document_ids": documents}
    audit = regard.audit(strengthened(OneLeak()), batch, expect=regard.causal)
    assert audit.outside.answers["documents"] is False
    assert "in document 3" in audit.outside.evidence["documents"]
    assert audit.verdict == "wrong"  # though every mask is right


def test_without_outside_nothing_is_run_again() -> None:
    audit = regard.audit(small_model("Llama"), packed(), outside=False)
    assert audit.outside.runs == 0
    assert audit.verdict == "right"


class Noisy(nn.Module):
    """A model whose outputs differ from run to run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = strengthened(PlainGPT())

    def forward(self, idx: Tensor) -> Tensor:
        logits: Tensor = self.inner(idx)[0]
        return logits * (1 + torch.rand_like(logits))


def test_a_model_that_is_not_the_same_twice_is_judged_from_inside_alone() -> None:
    audit = regard.audit(Noisy(), tokens(), expect=regard.causal)
    assert audit.outside.why == "two runs on the same batch differ by more than rounding"
    assert audit.verdict == "right"


class Choosy(Noisy):
    """A model that runs on one text only."""

    def forward(self, idx: Tensor) -> Tensor:
        if not torch.equal(idx, tokens()):
            raise KeyError("another text")
        logits: Tensor = self.inner(idx)[0]
        return logits


def test_a_model_that_refuses_other_tokens_is_judged_from_inside_alone() -> None:
    audit = regard.audit(Choosy(), tokens(), expect=regard.causal)
    assert audit.verdict == "right", audit
    assert "it does not run with other tokens: KeyError" in audit.outside.why


def test_the_model_is_left_as_it_was() -> None:
    model = small_model("Llama").train()
    model.lm_head.eval()  # type: ignore[union-attr]
    before = {name: x.clone() for name, x in model.state_dict().items()}
    regard.audit(model, padded("left"))
    assert model.training
    assert not model.lm_head.training  # type: ignore[union-attr]
    assert model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    model.eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("make", [packed, lambda: padded("left")])
def test_rounding_is_no_leak(dtype: torch.dtype, make: Any) -> None:
    model = small_model("Llama").to(dtype)
    try:
        audit = regard.audit(model, make())
    finally:
        model.float()
    assert audit.verdict == "right", audit


def test_a_leak_is_found_in_half_precision() -> None:
    model = small_model("Llama").to(torch.bfloat16)
    try:
        audit = regard.audit(model, tokens(1), documents=DOCUMENTS)
    finally:
        model.float()
    assert not audit.outside.answers["documents"]


def test_gradient_checkpointing_makes_no_cache_in_training() -> None:
    model: Any = small_model("Llama")
    batch = {k: v for k, v in packed().items() if k != "use_cache"}
    model.gradient_checkpointing_enable()
    try:
        audit = regard.audit(model.train(), batch)
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    assert audit.verdict == "right", audit
    assert "use_cache=False, as gradient checkpointing sets it in training" in audit.assumptions


def test_a_classifier_that_gives_one_output_a_text_is_judged_from_inside() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = PlainGPT()

        def forward(self, idx: Tensor, attention_mask: Tensor) -> Tensor:
            logits: Tensor = self.inner(idx, attention_mask=attention_mask)[0]
            return logits[:, -1]

    audit = regard.audit(Classifier(), padded_idx("left"), expect=regard.causal)
    assert audit.outside.why == "it gives no output for every token"
    assert audit.verdict == "right", audit
