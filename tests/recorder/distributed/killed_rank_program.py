"""Two ranks open a capture of one model, and rank 1 is killed inside of it."""

from __future__ import annotations

import os
import signal

import torch
from torch import distributed

import regard
from regard.gpt import GPT, Config
from tests import ranks


def main() -> None:
    rank, folder = ranks.join_group()
    torch.manual_seed(0)
    model = GPT(Config(vocab_size=64, context_length=16, num_layers=2, num_heads=4, d_model=32)).eval()
    with regard.capture(model, group=distributed.group.WORLD, folder=folder / "run"), torch.no_grad():
        model(torch.arange(9)[None])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
