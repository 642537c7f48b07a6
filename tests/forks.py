"""Processes that fork from one that has imported PyTorch and Transformers, which takes seconds."""

import multiprocessing

# With what PyTorch imports only when the first optimizer is made, which takes two seconds.
IMPORTED = [
    "regard.gpt.training.train",
    "tokenizers",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
]


def context():
    """What starts processes. Python has one server for all of them, so that its imports are in one place."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(IMPORTED)
    return found
