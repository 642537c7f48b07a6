"""Interventions and logit attribution against numbers of TransformerLens (`transformer_lens/theirs.py`)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from tests.sampling import combine

transformers = pytest.importorskip("transformers")

NUMBERS = load_file(Path(__file__).parent / "transformer_lens" / "numbers.safetensors")
WEIGHTS, THEIRS = (
    {name.removeprefix(f"{kind} "): x for name, x in NUMBERS.items() if name.startswith(f"{kind} ")}
    for kind in ("weight", "result")
)
IDS, OTHER = NUMBERS["ids"], NUMBERS["other"]
LAYERS, HEADS = 3, 4
PLACES = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
CLOSE = {"rtol": 0, "atol": 1e-4}  # of logits with a standard deviation of about 1, through three layers


@pytest.fixture(scope="module")
def model():
    """Transformers' GPT-2 with the weights of the file."""
    vocab_size, width = WEIGHTS["transformer.wte.weight"].shape
    config = transformers.GPT2Config(
        vocab_size=vocab_size,
        n_embd=width,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=len(WEIGHTS["transformer.wpe.weight"]),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    model.load_state_dict(WEIGHTS)
    return model


@pytest.fixture(scope="module")
def source(model):
    return regard.capture(model, inputs={"input_ids": OTHER}, values=True)


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def test_the_model_is_the_same(model):
    torch.testing.assert_close(logits(model), THEIRS["plain"], **CLOSE)


@pytest.mark.parametrize(("place", "kind"), combine(PLACES, ["zero", "mean", "output", "block", "pattern"]))
def test_an_edit_gives_the_same_logits(model, source, place, kind):
    layer, head = place
    edges = regard.rule(lambda b, h, q, k: (q - k == 2) | ((k == 0) & (q > 3)))
    edit = {
        "zero": lambda: regard.ablate(layer, head),
        "mean": lambda: regard.ablate(layer, head, by=regard.interventions.mean_outputs(model, IDS)),
        "output": lambda: regard.patch(layer, head, source),
        "block": lambda: regard.block(layer, head, edges=edges),
        "pattern": lambda: regard.patch(layer, head, source, what="pattern"),
    }[kind]()
    with regard.intervene(model, edit):
        edited = logits(model)
    expected = THEIRS[f"{kind} {layer}.{head}"]
    assert (expected - THEIRS["plain"]).abs().max() > 1e-2
    torch.testing.assert_close(edited, expected, **CLOSE)


def test_heads_have_the_same_direct_effect_on_a_logit(model):
    seen = regard.capture(model, inputs={"input_ids": IDS}, contributions=True)
    attribution = seen.attribution(int(IDS[0, 0]))
    torch.testing.assert_close(attribution.heads.flatten().float(), THEIRS["attribution"][:, 0], **CLOSE)
