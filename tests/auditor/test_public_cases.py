"""Faults that people met and reported, rebuilt from their threads: each is wrong, by the right name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DataCollatorWithFlattening

import regard
from tests.auditor.planted import DOCUMENTS, _later
from tests.auditor.small_models import LENGTH, packed, small_model, tokens


def names(audit: regard.Audit) -> list[str]:
    assert audit.verdict == "wrong", audit
    return [diagnosis.name for diagnosis in audit.diagnoses]


def test_transformers_46634_an_all_ones_mask_joins_packed_documents() -> None:
    model, batch = small_model("Llama"), packed()
    assert regard.audit(model, batch).verdict == "right"
    leaking = regard.audit(model, batch | {"attention_mask": torch.ones_like(batch["input_ids"])})
    assert names(leaking) == ["documents-leak"]
    assert not leaking.answers[1].inside
    assert not leaking.answers[1].outside


EXAMPLES = [{"input_ids": tokens(1, n, seed=n)[0].tolist()} for n in (5, 7)]


def _flattened() -> dict[str, Any]:
    return dict(DataCollatorWithFlattening()(EXAMPLES))


def _flattened_for_flash_attention() -> dict[str, Any]:
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    return dict(collator(EXAMPLES))


def _wrapped() -> dict[str, Any]:
    """Documents one after the other, cut where the text is full: nothing says where they begin."""
    ids = torch.tensor([[number for x in EXAMPLES for number in x["input_ids"]]])
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize("collate", [_flattened, _flattened_for_flash_attention])
def test_trl_5316_padding_free_batches_are_isolated_only_without_a_cache(collate: Any) -> None:
    model, batch = small_model("Llama"), collate()
    assert regard.audit(model, batch | {"use_cache": False}).verdict == "right"
    assert names(regard.audit(model, batch))[0] == "documents-leak"


def test_trl_5316_wrapped_batches_are_not_isolated() -> None:
    found = names(regard.audit(small_model("Llama"), _wrapped(), documents=DOCUMENTS))
    assert found == ["documents-leak", "targets-cross-documents"]


def test_nanovlm_204_positions_restart_and_the_mask_does_not() -> None:
    mask = (_later(LENGTH) >= 0)[None, None]
    audit = regard.audit(small_model("Llama"), packed() | {"attention_mask": mask})
    assert names(audit) == ["documents-leak"]


def test_wrinklefree_53_document_1_moves_document_2() -> None:
    audit = regard.audit(small_model("Llama"), tokens(1), documents=DOCUMENTS)
    assert names(audit) == ["documents-leak"]
    assert "changing document 0 of text 0 moves position 5, in document 1" in str(audit.outside.evidence)
