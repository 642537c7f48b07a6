"""A tiny model on disk, and commands that run in this process."""

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.gpt import GPT, Config
from regard.gpt.tokens import bpe_tokenizer

TEXT = "the sea was high and the wind was in the north so the ships came home to the land again "


def save_model(path, noise=0.0):
    """Save an untrained model, whose weights may be moved by noise."""
    torch.manual_seed(1)
    config = Config(vocab_size=300, context_length=64, num_layers=2, num_heads=4, num_kv_heads=2, d_model=16)
    model = GPT(config).eval()
    for weight in model.parameters():
        weight.data += noise * torch.randn(weight.shape)
    model.tokenizer = bpe_tokenizer([TEXT], 300)
    model.save(path)
    return path


def runner(command):
    """Return a function that runs a command and returns what it prints, or raises what it raised."""

    def run(*arguments):
        result = CliRunner().invoke(app, [command, *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of an untrained model of 2 layers with 4 heads."""
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def noisy(tmp_path_factory):
    """The folder of a model whose heads are unlike each other."""
    return save_model(tmp_path_factory.mktemp("model"), noise=0.3)
