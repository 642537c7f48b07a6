"""Trains for a few steps with another library's trainer and a monitor, and prints the steps that it heard.

`test_trainers` starts it as `python -m`.
"""

import json
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from tests import trainers
from tests.auditor.small_models import GROUPED, tokens

EXAMPLES = [{"input_ids": tokens(1, 9, seed=n)[0].tolist()} for n in range(24)]
STEPS, ACCUMULATED = 5, 2


def monitored_llama():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**GROUPED | {"eos_token_id": 1}))
    return model, regard.Monitor(model, every=2, rows=4, quiet=True)


def train_with_trl(monitored):
    model, monitor = monitored_llama()
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": ACCUMULATED}
    callbacks = [monitor.callback()] if monitored else []
    with tempfile.TemporaryDirectory() as folder:
        trainers.trl_trainer(model, EXAMPLES, callbacks, folder, max_steps=STEPS, **sizes).train()
    return monitor, model


def train_with_lightning(monitored):
    model, monitor = monitored_llama()
    trainers.fit_with_lightning(
        model,
        lambda model, batch: model(input_ids=batch, labels=batch).loss,
        torch.utils.data.DataLoader(torch.tensor([x["input_ids"] for x in EXAMPLES]), batch_size=2),
        [monitor.lightning_callback()] if monitored else [],
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        enable_checkpointing=False,
    )
    return monitor, model


def main():
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
