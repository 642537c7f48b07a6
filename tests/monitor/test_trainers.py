"""A monitor inside other people's trainers: it hears the steps that are due, and the training is the same."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import regard
from tests.auditor.small_models import GROUPED
from tests.monitor.trainers_program import ACCUMULATED, EXAMPLES, STEPS
from tests.sampling import share


def collate(examples: Any) -> dict[str, Any]:
    ids = torch.tensor([example["input_ids"] for example in examples])
    return {"input_ids": ids, "labels": ids}


def train(folder: Path, monitored: bool, **settings: Any) -> tuple[regard.Monitor, LlamaForCausalLM]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**GROUPED))
    monitor = regard.Monitor(model, every=2, rows=4, quiet=True)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATED,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        dataloader_pin_memory=False,
        disable_tqdm=True,
        **settings,
    )
    callbacks = [monitor.callback()] if monitored else []
    Trainer(
        model=model, args=arguments, train_dataset=EXAMPLES, data_collator=collate, callbacks=callbacks
    ).train()
    return monitor, model


@pytest.mark.parametrize("settings", share([{"gradient_checkpointing": True, "bf16": True}, {}], 2), ids=str)
def test_transformers_trainer(settings: dict[str, Any], tmp_path: Path) -> None:
    monitor, ours = train(tmp_path, True, **settings)
    _, theirs = train(tmp_path, False, **settings)
    assert [record.step for record in monitor.history.records] == [0, 2, 4]
    assert all(x.certified for record in monitor.history.records for x in record.layers.values())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("library", ["trl", "lightning"])
def test_other_trainers(library: str) -> None:
    if find_spec(library) is None:  # not imported here: it changes more of a process than a test may
        pytest.skip(f"{library} is not installed")
    program = [sys.executable, "-m", "tests.monitor.trainers_program", library]
    root = Path(__file__).parents[2]
    run = subprocess.run(program, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found == {"steps": [0, 2, 4], "certified": True, "same bits": True}
