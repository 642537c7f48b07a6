"""A monitor inside other people's trainers: it hears the steps that are due, and the training is the same."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

import regard
from tests.auditor.small_models import GROUPED
from tests.monitor.trainers_program import ACCUMULATED, EXAMPLES, STEPS
from tests.sampling import share
from tests.trainers import arguments_of_transformers, run_program


def collate(examples):
    ids = torch.tensor([example["input_ids"] for example in examples])
    return {"input_ids": ids, "labels": ids}


def train(folder, monitored, **settings):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**GROUPED))
    monitor = regard.Monitor(model, every=2, rows=4, quiet=True)
    settings |= {"max_steps": STEPS, "gradient_accumulation_steps": ACCUMULATED}
    arguments = arguments_of_transformers(folder, **settings)
    callbacks = [monitor.callback()] if monitored else []
    Trainer(
        model=model, args=arguments, train_dataset=EXAMPLES, data_collator=collate, callbacks=callbacks
    ).train()
    return monitor, model


@pytest.mark.parametrize("settings", share([{"gradient_checkpointing": True, "bf16": True}, {}], 2), ids=str)
def test_transformers_trainer(settings, tmp_path):
    monitor, ours = train(tmp_path, True, **settings)
    _, theirs = train(tmp_path, False, **settings)
    assert [record.step for record in monitor.history.records] == [0, 2, 4]
    assert all(x.certified for record in monitor.history.records for x in record.layers.values())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("library", ["trl", "lightning"])
def test_other_trainers(library):
    found = run_program("tests.monitor.trainers_program", library)
    assert found == {"steps": [0, 2, 4], "certified": True, "same bits": True}
