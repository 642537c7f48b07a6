"""Models that the commands open: what they predict, what is cut, and a config that is refused."""

import json

import pytest
import torch

from regard.cli.parts.model import Model
from regard.show.data.cuts import EdgeCut, HeadCut
from regard.support.files import ModelFileError

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    """A tiny BERT, which Regard's GPT does not have."""
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    return tmp_path


def test_only_a_causal_language_model_predicts_the_next_token(folder):
    bert = Model.open(str(folder))
    assert bert.vocab_size >= 12
    assert not bert.can_generate
    assert not bert.predicts
    read = bert.read("a b c")
    assert read.predictions is None
    assert read[1, 0].shape == (1, 5, 5)
    assert [token.strip() for token in (read.tokens or [[]])[0]] == ["[CLS]", *"abc", "[SEP]"]
    config = transformers.GPTNeoXConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    transformers.GPTNeoXForCausalLM(config).save_pretrained(folder)
    causal = Model.open(str(folder))
    seen = causal.read("a b c d")
    assert causal.predicts
    with torch.no_grad():
        expected = causal.module(seen.ids, labels=seen.ids).loss
    assert seen.predictions.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    edited = causal.run_cut(seen, [HeadCut("1", 0)])
    assert edited.edits == ("head 1.0 set to zero",)
    assert edited.predictions.loss.item() != seen.predictions.loss.item()


@pytest.fixture(scope="module")
def included():
    return Model.open("default")


def test_a_cut_head_gives_nothing_and_the_others_read_the_same_tokens(included):
    seen = included.read("The cat sat. The cat")
    edited = included.run_cut(seen, [HeadCut("5", 3)])
    assert edited.edits == ("head 5.3 set to zero",)
    assert edited.tokens == seen.tokens
    assert edited.certificate.certified
    attention = next(m for m in included.module.blocks[5].modules() if hasattr(m, "out"))
    width = attention.out.in_features // 4

    def zero(_, inputs):
        heads = inputs[0].clone()
        heads[..., 3 * width : 4 * width] = 0
        return (heads,)

    hook = attention.out.register_forward_pre_hook(zero)
    expected = included.read("The cat sat. The cat")
    hook.remove()
    torch.testing.assert_close(edited.predictions.losses, expected.predictions.losses, rtol=1e-4, atol=1e-5)
    again = included.read("The cat sat. The cat")  # the model is as it was
    assert torch.equal(again.predictions.losses, seen.predictions.losses)


@pytest.mark.parametrize(
    ("cut", "edit", "heads"),
    [
        (EdgeCut("4", 1, (3, 6), (1, 3)), "head 4.1 without the edges", [1]),
        (EdgeCut("4", None, (0, 7), (0, 1)), "layer 4 without the edges from all to 0", [0, 1, 2, 3]),
        (EdgeCut("4", 2, (5, 6), (5, 6)), "head 4.2 without the edges from 5 to 5", [2]),
    ],
)
def test_cut_edges_have_no_weight_and_all_others_stay_visible(cut, edit, heads, included):
    seen = included.read("The cat sat. The cat")
    edited = included.run_cut(seen, [cut])
    assert edited.edits[0].startswith(edit)
    weights, own = (x[4].to_dense()[0] for x in (edited, seen))  # (H, T, S)
    inside = torch.zeros_like(own, dtype=torch.bool)
    inside[heads, slice(*cut.queries), slice(*cut.keys)] = True
    assert torch.equal(weights == 0, (own == 0) | inside)


def test_a_cut_that_changes_nothing_is_said(included):
    seen = included.read("The cat sat. The cat")
    hidden = [EdgeCut("4", 1, (0, 1), (5, 6))]
    with pytest.raises(ValueError, match=r"the edit did not act .*: its layers ran, but no edge"):
        included.run_cut(seen, hidden)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num_hidden_layers", 1_000_000, r"num_hidden_layers: expected at most \d+, the number of tensors"),
        ("hidden_size", 1 << 20, "got sizes of .* parameters"),
        ("vocab_size", 1 << 40, "expected sizes of a model whose weights are in its files"),
        ("hidden_size", "wide", "is not a model that Transformers can open"),
    ],
)
def test_a_config_beyond_its_weights_is_refused(folder, name, value, says):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(ModelFileError, match=says):
        Model.open(str(folder))
