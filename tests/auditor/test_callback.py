"""The first batch of a training run, and of a test suite: a wrong one raises, a right one trains."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM, Trainer

from regard.auditor import audit_callback
from regard.testing import assert_reads
from tests.auditor.small_models import GROUPED, packed, padded, small_model, tokens
from tests.trainers import arguments_of_transformers, run_program

EXAMPLES = [{"input_ids": tokens(1, n, seed=n)[0].tolist()} for n in (5, 7, 6, 4)]


def leaky(examples):
    """Collate packed examples with an all-ones mask, under which Transformers joins the documents."""
    batch = dict(DataCollatorWithFlattening()(examples))
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def trainer(folder, collate, *callbacks):
    torch.manual_seed(0)
    return Trainer(
        model=LlamaForCausalLM(LlamaConfig(**GROUPED)),
        args=arguments_of_transformers(folder, max_steps=1, learning_rate=0.1),
        train_dataset=EXAMPLES,
        data_collator=collate,
        callbacks=list(callbacks),
    )


def test_a_right_batch_trains_as_without_an_audit(tmp_path):
    callback = audit_callback()
    audited = trainer(tmp_path, DataCollatorWithFlattening(), callback)
    audited.train()
    assert callback.audit.verdict == "right", callback.audit
    assert audited.state.global_step == 1
    alone = trainer(tmp_path, DataCollatorWithFlattening())
    alone.train()
    for ours, theirs in zip(audited.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_wrong_batch_ends_the_run_before_the_first_step_or_warns(tmp_path):
    leaking = trainer(tmp_path, leaky, audit_callback())
    with pytest.raises(RuntimeError, match="documents-leak"):
        leaking.train()
    assert leaking.state.global_step == 0
    warned = trainer(tmp_path, leaky, audit_callback(on_wrong="warn"))
    with pytest.warns(UserWarning, match="documents-leak"):
        warned.train()
    assert warned.state.global_step == 1


PROGRAM = "tests.auditor.trainers_program"


def test_trl_audits_the_first_batch():
    verdicts = run_program(PROGRAM, "trl")
    assert verdicts.keys() == {"padded", "bfd", "padding-free"}
    assert all("reads what it should" in summary for summary in verdicts.values()), verdicts


def test_lightning_audits_the_first_batch():
    verdicts = run_program(PROGRAM, "lightning")
    assert "reads what it should" in verdicts["without a cache"]
    assert "WRONG: documents-leak" in verdicts["with a cache"]


def test_assert_reads_returns_the_audit_or_fails_with_its_report():
    model, unknown = small_model("Llama"), padded("right", (0, 0))
    assert assert_reads(model, packed()).ok
    assert assert_reads(model, unknown, allow_undecided=True).verdict == "undecided"
    for batch, said in (
        (packed() | {"use_cache": True}, r"WRONG: documents-leak(.|\n)*fix: "),
        (unknown, "UNDECIDED"),
    ):
        with pytest.raises(AssertionError, match=said):
            assert_reads(model, batch)
