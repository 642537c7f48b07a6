"""Trains for one step with other people's trainers, each with an audit of its first batch.

`test_callback` starts it as `python -m`, since these libraries change more of a process than a test may. It
prints the verdict of each run as JSON.
"""

import json
import sys
import tempfile

import torch
from tokenizers import Tokenizer, models
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from regard.auditor import audit_callback, lightning_callback
from tests.auditor.small_models import GROUPED, VOCABULARY, tokens

EXAMPLES = [{"input_ids": tokens(1, n, seed=n)[0].tolist()} for n in (5, 7, 6, 4)]
TRL = {
    "padded": {},
    "bfd": {"packing": True, "max_length": 24, "packing_strategy": "bfd"},
    "padding-free": {"padding_free": True, "max_length": None},
}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def llama():
    return LlamaForCausalLM(LlamaConfig(**GROUPED | {"eos_token_id": 1}))


def train_with_trl():
    """Return the verdict on each of TRL's ways of making batches."""
    import datasets
    import trl

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
    rows = datasets.Dataset.from_list([x | {"labels": x["input_ids"]} for x in EXAMPLES])
    verdicts = {}
    for name, options in TRL.items():
        callback = audit_callback()
        with tempfile.TemporaryDirectory() as folder:
            settings = {"report_to": [], "use_cpu": True, "bf16": False, "save_strategy": "no"}
            trainer = trl.SFTTrainer(
                model=llama(),
                args=trl.SFTConfig(output_dir=folder, max_steps=1, **settings, **options),
                train_dataset=rows,
                processing_class=tokenizer,
                callbacks=[callback],
            )
            trainer.train()
        assert trainer.state.global_step == 1
        verdicts[name] = callback.audit.summary
    return verdicts


def train_with_lightning():
    """Return the verdict on a batch whose documents are apart, and on one that makes a cache."""
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = llama()

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    verdicts = {}
    for name, use_cache in {"without a cache": False, "with a cache": True}.items():

        def collate(examples, use_cache=use_cache):
            return dict(DataCollatorWithFlattening()(examples)) | {"use_cache": use_cache}

        callback = lightning_callback(model="model", on_wrong="warn")
        with tempfile.TemporaryDirectory() as folder:
            trainer = lightning.Trainer(
                max_steps=1, accelerator="cpu", callbacks=[callback], default_root_dir=folder, **QUIET
            )
            trainer.fit(Module(), torch.utils.data.DataLoader(EXAMPLES, batch_size=2, collate_fn=collate))
        assert trainer.global_step == 1
        verdicts[name] = callback.audit.summary
    return verdicts


if __name__ == "__main__":
    train = {"trl": train_with_trl, "lightning": train_with_lightning}[sys.argv[1]]
    print(json.dumps(train()))
