"""Other people's trainers, for the tests of what hears them.

TRL and Lightning change more of a process than a test may, so that programs of their own run them.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

QUIET = {"report_to": [], "use_cpu": True, "save_strategy": "no"}


def arguments_of_transformers(folder, **settings):
    """Return the arguments of Transformers' trainer: on a CPU, two examples at once, nothing saved."""
    from transformers import TrainingArguments

    settings |= QUIET | {"dataloader_pin_memory": False, "disable_tqdm": True}
    return TrainingArguments(output_dir=str(folder), per_device_train_batch_size=2, **settings)


def trl_trainer(model, examples, callbacks, folder, **settings):
    """Return TRL's trainer of a model, on examples whose tokens are words of a tokenizer."""
    import datasets
    import trl
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(model.config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(output_dir=folder, bf16=False, **QUIET, **settings),
        train_dataset=datasets.Dataset.from_list([x | {"labels": x["input_ids"]} for x in examples]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1"),
        callbacks=callbacks,
    )


def fit_with_lightning(model, loss, batches, callbacks, **settings):
    """Train a model with Lightning, by a loss of (model, batch), and return the trainer."""
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return loss(self.model, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", callbacks=callbacks, **quiet, **settings)
    trainer.fit(Module(), batches)
    return trainer


def run_program(module, library):
    """Run a program that trains with a library, if that is installed, and return the JSON that it prints."""
    if find_spec(library) is None:  # not imported here: see above
        pytest.skip(f"{library} is not installed")
    root = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-m", module, library], cwd=root, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])
