"""Trains for a few steps with another library's trainer and a monitor, and prints the steps that it heard.

`test_trainers` starts it as `python -m`, since these libraries change more of a process than a test may.
"""

import json
import sys
import tempfile
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import regard
from tests.auditor.small_models import GROUPED, VOCABULARY, tokens

EXAMPLES: Any = [{"input_ids": tokens(1, 9, seed=n)[0].tolist()} for n in range(24)]
STEPS, ACCUMULATED = 5, 2


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**GROUPED | {"eos_token_id": 1}))


def train_with_trl(monitored: bool) -> tuple[regard.Monitor, Any]:
    import datasets  # type: ignore[import-not-found]
    import trl  # type: ignore[import-not-found]

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
    rows = datasets.Dataset.from_list([x | {"labels": x["input_ids"]} for x in EXAMPLES])
    model = llama()
    monitor = regard.Monitor(model, every=2, rows=4, quiet=True)
    settings = {"report_to": [], "use_cpu": True, "bf16": False, "save_strategy": "no"}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": ACCUMULATED}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.SFTTrainer(
            model=model,
            args=trl.SFTConfig(output_dir=folder, max_steps=STEPS, **sizes, **settings),
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[monitor.callback()] if monitored else [],
        )
        trainer.train()
    return monitor, model


def train_with_lightning(monitored: bool) -> tuple[regard.Monitor, Any]:
    import lightning.pytorch as lightning  # type: ignore[import-not-found]

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = llama()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Module()
    monitor = regard.Monitor(module.model, every=2, rows=4, quiet=True)
    batches = torch.utils.data.DataLoader(torch.tensor([x["input_ids"] for x in EXAMPLES]), batch_size=2)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        accumulate_grad_batches=ACCUMULATED,
        callbacks=[monitor.lightning_callback()] if monitored else [],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, batches)
    return monitor, module.model


def main() -> None:
    train = train_with_trl if sys.argv[1] == "trl" else train_with_lightning
    (monitor, ours), (_, theirs) = train(True), train(False)
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    found = {
        "steps": [record.step for record in monitor.history.records],
        "certified": all(x.certified for record in monitor.history.records for x in record.layers.values()),
        "same bits": all(torch.equal(a, b) for a, b in pairs),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
