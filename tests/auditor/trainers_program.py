"""Trains for one step with other people's trainers, each with an audit of its first batch.

`test_callback` starts it as `python -m`. It prints the verdict of each run as JSON.
"""

import json
import sys
import tempfile

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

from regard.auditor import audit_callback, lightning_callback
from tests import trainers
from tests.auditor.small_models import GROUPED, tokens

EXAMPLES = [{"input_ids": tokens(1, n, seed=n)[0].tolist()} for n in (5, 7, 6, 4)]
TRL = {
    "padded": {},
    "bfd": {"packing": True, "max_length": 24, "packing_strategy": "bfd"},
    "padding-free": {"padding_free": True, "max_length": None},
}


def llama():
    return LlamaForCausalLM(LlamaConfig(**GROUPED | {"eos_token_id": 1}))


def train_with_trl():
    """Return the verdict on each of TRL's ways of making batches."""
    verdicts = {}
    for name, options in TRL.items():
        callback = audit_callback()
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainers.trl_trainer(llama(), EXAMPLES, [callback], folder, max_steps=1, **options)
            trainer.train()
        assert trainer.state.global_step == 1
        verdicts[name] = callback.audit.summary
    return verdicts


def train_with_lightning():
    """Return the verdict on a batch whose documents are apart, and on one that makes a cache."""
    verdicts = {}
    for name, use_cache in {"without a cache": False, "with a cache": True}.items():

        def collate(examples, use_cache=use_cache):
            return dict(DataCollatorWithFlattening()(examples)) | {"use_cache": use_cache}

        callback = lightning_callback(model="model", on_wrong="warn")
        batches = torch.utils.data.DataLoader(EXAMPLES, batch_size=2, collate_fn=collate)
        with tempfile.TemporaryDirectory() as folder:
            settings = {"max_steps": 1, "default_root_dir": folder}
            trainer = trainers.fit_with_lightning(
                llama(), lambda model, batch: model(**batch).loss, batches, [callback], **settings
            )
        assert trainer.global_step == 1
        verdicts[name] = callback.audit.summary
    return verdicts


if __name__ == "__main__":
    train = {"trl": train_with_trl, "lightning": train_with_lightning}[sys.argv[1]]
    print(json.dumps(train()))
