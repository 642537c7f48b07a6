"""A training run that takes a second: what the tests of training share, and can start in another process."""

import os
import random
from dataclasses import replace
from functools import cache

import torch

from regard.gpt import Config
from regard.gpt.training.corpus import prepare
from regard.gpt.training.history import read_metrics
from regard.gpt.training.settings import TrainingSettings
from regard.gpt.training.train import train
from tests import forks

CONTEXT = 8
SETTINGS = TrainingSettings(
    steps=30,
    batch_size=4,
    learning_rate=0.02,
    warmup_steps=5,
    evaluate_every=15,
    save_every=7,
    evaluate_tokens=64,
)


def text(length=3000):
    """Sentences of a small grammar, the same every time."""
    draw = random.Random(0)
    words = ["the", "a", "cat", "dog", "sees", "hears", "one", "small", "old", "and"]
    return " ".join(draw.choice(words) for _ in range(length // 4))[:length]


@cache
def corpus():
    return prepare(text(), CONTEXT)


def config(**changes):
    sizes = {
        "context_length": CONTEXT,
        "num_layers": 2,
        "num_heads": 2,
        "d_model": 8,
        "dropout": 0.1,
    }
    return Config(vocab_size=corpus().vocab_size, **sizes | changes)


def run(folder, resume=False, settings=SETTINGS, **changes):
    torch.set_num_threads(1)
    # Where bfloat16 fails in oneDNN, PyTorch leaves oneDNN for the rest of the process, and bits differ then.
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(True)
    try:
        return train(config(**changes), corpus(), folder, settings, resume=resume, device="cpu", quiet=True)
    finally:
        torch._C._set_mkldnn_enabled(before)


def losses(folder):
    """The loss of every step, and every validation loss, in the order of the history."""
    lines = read_metrics(folder)
    return [(line["step"], line["loss"] if "loss" in line else line["validation"]) for line in lines]


def in_another_process(folder, resume=True):
    """The run, begun or resumed in a process of its own."""
    return started(run, folder, resume)


def as_rank(rank, port, folder):
    """A run of half the batch as one of two ranks, in the environment that `torchrun` sets."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(number) for name, number in names.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    run(folder, settings=replace(SETTINGS, steps=20, batch_size=2), dropout=0.0)


def started(target, *args):
    """A process for a function, forked from the server that has imported PyTorch."""
    process = forks.context().Process(target=target, args=args)
    process.start()
    return process
