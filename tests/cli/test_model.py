"""Models of Transformers that the commands open: a config that asks for more than its weights is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from regard.cli.model import Model
from regard.files import ModelFileError

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny BERT, which Regard's GPT does not have."""
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    return tmp_path


def test_a_model_of_transformers_is_opened(folder: Path) -> None:
    assert Model.open(str(folder)).vocab_size >= 12


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num_hidden_layers", 1_000_000, r"num_hidden_layers: expected at most \d+, the number of tensors"),
        ("hidden_size", 1 << 20, "got sizes of .* parameters"),
        ("vocab_size", 1 << 40, "expected sizes of a model whose weights are in its files"),
        ("hidden_size", "wide", "is not a model that Transformers can open"),
    ],
)
def test_a_config_beyond_its_weights_is_refused_at_once(
    folder: Path, name: str, value: object, says: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    start = time.process_time()
    with pytest.raises(ModelFileError, match=says):
        Model.open(str(folder))
    assert time.process_time() - start < 3
