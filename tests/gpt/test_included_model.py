"""The model in the package: the figures of its card, measured again on its weights."""

import json
import sys
from pathlib import Path

import pytest
import torch

from regard.gpt import GPT
from regard.gpt.files.loader import INCLUDED_MODEL
from regard.gpt.training.evaluation import next_token_loss
from regard.heads import probe, repeated

DRAWS = 15
STORY = (
    "The old man went down to the river in the morning. The water was cold, and no one was on the road. "
    "He thought of the years when he was young, and of the house in which his father had lived."
)


@pytest.fixture(scope="module")
def model():
    return GPT.from_pretrained("default").eval()


@pytest.fixture(scope="module")
def probed(model):
    """Olsson's probe: 25 random tokens four times over, after the start token."""
    ids = repeated(model.config.vocab_size, start=0, tokens=25, times=4, draws=DRAWS, seed=5)
    return probe(model.maps, ids)


def best(probed, name):
    """The scores of the best head, one a draw, and the null."""
    every = torch.stack([getattr(layer, name) for layer in probed[0]])  # (layers, draws, H)
    layer, head = divmod(int(every.mean(1).argmax()), every.shape[2])
    return every[layer, :, head], float(torch.stack([getattr(layer, name) for layer in probed[1]]).mean())


@pytest.mark.parametrize(("name", "least"), [("induction", 0.4), ("previous_token", 0.5), ("sink", 0.45)])
def test_a_clear_head_of_each_kind(probed, name, least):
    scores, null = best(probed, name)
    error = float(scores.std()) / DRAWS**0.5
    assert scores.shape == (DRAWS,)
    assert float(scores.mean()) - 3 * error > least
    assert float(scores.mean()) > 10 * null


def test_it_knows_english(model):
    """The loss of a story is far below that of its words in random order."""
    words = STORY.split()
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0)).tolist()

    def surprise(text):
        ids = torch.tensor([model.tokenizer.encode(text).ids])
        with torch.no_grad():
            return float(next_token_loss(model(ids[:, :-1]), ids[:, 1:]))

    story, shuffled = surprise(STORY), surprise(" ".join(words[i] for i in order))
    assert story < 3.5
    assert shuffled > story + 1.5


def test_it_goes_on_writing(model):
    text = model.generate("The city of", max_new_tokens=60, temperature=0.8, top_p=0.95, seed=1)
    assert text.startswith("The city of")
    assert len(set(text.split())) > 20
    assert text == model.generate("The city of", max_new_tokens=60, temperature=0.8, top_p=0.95, seed=1)


def test_it_is_small():
    assert sum(path.stat().st_size for path in INCLUDED_MODEL.iterdir()) <= 12e6


def test_the_card_says_what_was_measured(model, probed, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "scripts"), *sys.path])
    from included_model_card import card

    assert (INCLUDED_MODEL / "README.md").read_text(encoding="utf-8") == card(INCLUDED_MODEL)
    summary = json.loads((INCLUDED_MODEL / "summary.json").read_text())
    assert summary["parameters"] == model.num_parameters
    for name in ("induction", "previous_token", "sink"):
        # Other draws than the card's, hence not the same digits.
        assert float(best(probed, name)[0].mean()) == pytest.approx(
            summary["best_heads"][f"{name} on repeats"]["score"], abs=0.05
        )
