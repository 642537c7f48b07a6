"""The model inside a saved page gives the tokens and the logits of the library's."""

import json
import random
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright._impl._driver import compute_driver_executable
from tokenizers import normalizers

import regard
from regard.cli.parts.demo_text import STORY as DEMO
from regard.cli.parts.model import Model
from regard.gpt import GPT, Config
from regard.gpt.tokens import bpe_tokenizer, character_tokenizer
from regard.layers import Llama3Scaling
from regard.recorder.tokens_of_maps.tokens import decode_tokens, decode_vocabulary
from regard.show.data.contents import Contents, EditedRun
from regard.show.data.cuts import parse_cuts
from regard.show.data.map_view.quantity import Quantity, text_units
from regard.show.saved import bundle
from regard.show.saved.model_block import check_model, pack_model
from regard.show.saved.pack import pack
from regard.show.saved.rounded_model import measure_change, read_again, round_model
from tests.patience import HANGING

DRIVER = Path(__file__).parents[2] / "web" / "model_driver.js"
STORY = (
    "The keeper's lamp didn't burn. We'll light 12 lamps; the keeper said so, and the keeper slept.\n\n" * 3
)
SIZES = {
    "vocab_size": 300,
    "context_length": 64,
    "num_layers": 2,
    "num_heads": 4,
    "d_model": 24,
}
CONFIGS = {
    "as GPT-2": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "exact GELU, untied": {"activation": "gelu", "tie_word_embeddings": False},
    "as Llama": {"norm": "rms", "positions": "rotary", "activation": "swiglu", "num_kv_heads": 2},
    "as Qwen3, with windows": {
        "norm": "rms",
        "positions": "rotary",
        "activation": "swiglu",
        "qk_norm": True,
        "head_dim": 10,
        "num_kv_heads": 1,
        "window": (5, None),
        "rotary_scaling": Llama3Scaling(4.0, 1.0, 4.0, 32),
    },
}


def ask_page(*questions):
    """Answers of the page's own modules, which run in Node."""
    command = [compute_driver_executable()[0], str(DRIVER)]
    done = subprocess.run(
        command, input=json.dumps(questions), capture_output=True, text=True, timeout=HANGING, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return answers


def random_model(**choices):
    torch.manual_seed(0)
    model = GPT(Config(**(SIZES | choices))).eval()
    for weight in model.parameters():  # so that norms and biases matter, and the attention is not uniform
        torch.nn.init.normal_(weight, std=0.2)
    model.tokenizer = bpe_tokenizer([STORY], 300)
    return model


def contents_of(model, text=STORY[:60]):
    return Contents(regard.capture(model, text=text, values=True, predictions=True, contributions=True))


def close(expected):
    """What is equal to a structure of numbers and texts to within 1e-4."""
    if isinstance(expected, dict):
        return {name: close(value) for name, value in expected.items()}
    if isinstance(expected, list | tuple):
        return type(expected)(map(close, expected))
    return pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected


@pytest.fixture(scope="module")
def included():
    """The included model, and what a page holds of it."""
    model = GPT.from_pretrained("default")
    return model, pack_model(model, contents_of(model))


def drawn_texts(count):
    """Texts that are hard to tokenise: any code point, spaces, contractions, halves of special tokens."""
    draw = random.Random(7)
    parts = ["'s", "'ll", "''", " ", "  ", "\n", "\t", "\u00a0", "\u0085", "\u2028", "\ufeff", "12", "½", "Ⅷ"]
    parts += ["é", "e\u0301", "你好", "مرحبا", "👩‍👩‍👧", "🇩🇪", "the keeper", "<|endoftext|>", "<|end", "\x00"]

    def character():
        low, high = draw.choice([(0, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000)])
        return chr(draw.randrange(low, high))

    return [
        "".join(draw.choice(parts) if draw.random() < 0.6 else character() for _ in range(draw.randrange(40)))
        for _ in range(count)
    ]


def test_tokens_are_those_of_the_tokenizers_package(included):
    model, (_, blocks) = included
    tokenizer = model.tokenizer
    texts = ["", "a" * 3000, "aß" * 500, STORY, *drawn_texts(600)]
    [answer] = ask_page({"name": "tokens", "blocks": {**blocks, "model-weights": ""}, "texts": texts})
    assert answer["ids"] == [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert answer["tokens"] == [decode_tokens(tokenizer, torch.tensor([ids]))[0] for ids in answer["ids"]]
    for tokens, units in zip(answer["tokens"], answer["units"], strict=True):
        for edges in units.values():  # every token belongs to one
            assert edges == sorted({0, *edges, len(tokens)})
    # Of prose they are the library's; JavaScript has its own rules for other scripts.
    assert answer["units"][texts.index(STORY)] == text_units(answer["tokens"][texts.index(STORY)])
    assert answer["words"] == decode_vocabulary(tokenizer, torch.arange(model.config.vocab_size))


def test_tokens_of_characters_are_the_same_too():
    model = random_model(vocab_size=len(set(STORY)))
    model.tokenizer = character_tokenizer(STORY)
    _, blocks = pack_model(model, contents_of(model))
    texts = [STORY, "keeper ŋ 你", ""]
    [answer] = ask_page({"name": "tokens", "blocks": blocks, "texts": texts})
    assert answer["ids"] == [encoding.ids for encoding in model.tokenizer.encode_batch(texts)]


def test_logits_are_the_librarys_for_every_kind_of_model():
    ids = torch.randint(0, 300, (1, 50), generator=torch.Generator().manual_seed(1))
    models = [random_model(**choices) for choices in CONFIGS.values()]
    whole, pieces = [50], [7, 1, 1, 41]
    questions = []
    for model in models:
        description, blocks = pack_model(model, contents_of(model))
        for lengths in (whole, pieces):
            question = {"name": "logits", "blocks": blocks, "description": description}
            questions.append({**question, "ids": ids[0].tolist(), "cuts": [[]], "pieces": lengths})
    answers = [answer for [answer] in ask_page(*questions)]
    for number, (name, model) in enumerate(zip(CONFIGS, models, strict=True)):
        with torch.no_grad():
            expected = model(ids)[0]
        for answer in answers[2 * number : 2 * number + 2]:
            torch.testing.assert_close(
                torch.tensor(answer).view_as(expected), expected, atol=1e-4, rtol=0, msg=name
            )


def test_the_included_model_gives_the_same_logits_with_heads_and_edges_cut(included):
    model, (description, blocks) = included
    tokenizer = model.tokenizer
    ids = torch.tensor([tokenizer.encode(STORY).ids[:48]])
    edges = {"kind": "edges", "layer": "1", "head": None, "queries": [5, 20], "keys": [0, 48]}
    one = {"kind": "edges", "layer": "3", "head": 2, "queries": [0, 48], "keys": [0, 1]}
    runs = [
        ([], []),
        ([{"kind": "head", "layer": "2", "head": 1}], [regard.ablate(2, 1)]),
        (
            [edges, one],
            [
                regard.block(1, edges=(slice(5, 20), slice(None))),
                regard.block(3, 2, edges=(slice(None), 0)),
            ],
        ),
    ]
    question = {"name": "logits", "blocks": blocks, "description": description, "ids": ids[0].tolist()}
    [answers] = ask_page({**question, "cuts": [cuts for cuts, _ in runs], "pieces": [48]})
    for answer, (_, edits) in zip(answers, runs, strict=True):
        edited = regard.intervene(model, *edits) if edits else nullcontext()
        with torch.no_grad(), edited:
            expected = model(ids)[0]
        torch.testing.assert_close(torch.tensor(answer).view_as(expected), expected, atol=1e-4, rtol=0)


def test_a_text_that_the_page_reads_is_shown_as_the_library_shows_it():
    model = random_model(**CONFIGS["as Llama"])
    text = "The keeper's 世 lamp didn't burn. Vexed zebras quiz the keeper's lamp"
    contents = contents_of(model, text)
    packed = pack(contents, model=model)
    edges = {"kind": "edges", "layer": "1", "head": 2, "queries": [3, 9], "keys": [0, 4]}
    cuts = [{"kind": "head", "layer": "0", "head": 1}, edges]
    rows = [{"layer": "1", "head": 3, "row": 20}, {"layer": "1", "head": 2, "row": 5}]
    question = {"name": "page", "blocks": packed.blocks | packed.later, "text": text, "cuts": cuts}
    [answer] = ask_page({**question, "rows": rows})
    assert [line["progress"]["done"] for line in answer["lines"]] == [0, 0, 1, 1, 2, 2]
    shares = [line["progress"]["share"] for line in answer["lines"]]
    assert shares == sorted(shares)
    # The logits are counted as work: the layers do not end at 99 %.
    assert 0.5 < shares[3] < 0.96 < shares[5] == 1, shares
    # The library's own run, and the same with the cuts.
    seen = contents.texts[0]
    with regard.intervene(model, regard.ablate(0, 1), regard.block(1, 2, edges=(slice(3, 9), slice(0, 4)))):
        edited = regard.capture(model, text=text, values=True, predictions=True, contributions=True)
    parsed = parse_cuts(cuts, seen)
    contents.add(edited, contents.titles[0], EditedRun(0, tuple(parsed)))
    for number, shown in enumerate((answer["read"], answer["cut"])):
        expected = json.loads(json.dumps(contents.meta["texts"][number]))
        for name in (
            "tokens",
            "telling",
            "boundary",
            "spans",
            "shades",
            "predicted",
            "predictions",
        ):
            assert shown["meta"][name] == close(expected[name]), name
        assert all(layer["evidence"]["certified"] for layer in shown["meta"]["layers"])
        for row, weights in zip(rows, shown["weights"], strict=True):
            exact = contents[number].row(row["layer"], int(row["head"]), int(row["row"]))
            assert weights == close(exact.tolist())
        assert shown["steps"] == close(contents[number].steps("1", 3, 20))
        logit = Quantity("logit", position=20)
        assert shown["attribution"] == close(contents[number].attribution(logit))
        for shade, values in shown["factors"].items():
            exact = contents[number].row("1", 3, 20, logit if shade == "logit" else Quantity("values"))
            assert values == close(exact.tolist()), shade
        for position, prediction in enumerate(shown["predictions"]):
            assert prediction == close(contents[number].prediction(position))
        for key, layer in enumerate(shown["thumbs"]):
            thumbs, sinks, _ = contents[number].thumbnail(key)
            assert np.abs(thumbs.reshape(-1).astype(int) - layer["pictures"]).max() <= 1
            assert layer["sinks"] == close(sinks)
        for own, expected_row in zip(shown["heads"], contents[number].heads(), strict=True):
            assert own["sink_key"] == expected_row["sink_key"]
            if re.match("Nothing|Too few(?!.*on token)", expected_row["sentence"]):
                assert own["sentence"] == expected_row["sentence"]
            scores = {name: (x["value"], x["null"]) for name, x in own["scores"].items()}
            exact_scores = {
                name: (x["value"], x["null"])
                for name, x in expected_row["scores"].items()
                if name not in ("fixed_offset", "one_token")  # need the library, as labels do
            }
            assert scores == close(exact_scores)
    assert answer["read"]["meta"]["title"] == f"{contents.titles[0]} (2)"  # the page has the text already
    run, exact_run = answer["cut"]["meta"]["edited"], contents.meta["texts"][1]["edited"]
    assert run["cuts"] == exact_run["cuts"]
    assert run["changes"] == close(exact_run["changes"])


def test_a_rounded_model_computes_what_its_page_leaves_out(tmp_path):
    """The page stores the layer that it opens on; its model reads the rest again, with the same weights."""
    model = random_model(**CONFIGS["as Llama"])
    rounded = round_model(model)
    contents = read_again(contents_of(model, STORY[:90]), rounded.model)
    packed = pack(contents, model=rounded._replace(change=measure_change(contents, contents)))
    first = contents.meta["start"]["layer"]
    assert [name for name in packed.blocks if name.startswith("layer-")] == [f"layer-0-{first}"]
    description = packed.later | packed.blocks
    rows = [{"layer": key, "head": 3, "row": 20} for key in ("0", "1")]
    [answer] = ask_page({"name": "stored", "blocks": description, "rows": rows, "position": 20})
    for row, weights in zip(rows, answer["weights"], strict=True):
        assert weights == close(contents[0].row(row["layer"], 3, 20).tolist())
    assert answer["attribution"] == close(contents[0].attribution(Quantity("logit", position=20)))
    page = tmp_path / "page.html"
    exact = bundle.write(contents_of(model), tmp_path / "exact.html", model=model, exact=True)
    assert bundle.write(contents_of(model), page, model=model).stat().st_size < exact.stat().st_size


def test_rounding_keeps_labels_and_most_predictions_of_the_included_model():
    """The figures that the docs state, and that the page states of its own text."""
    model = GPT.from_pretrained("default")
    seen = contents_of(model, DEMO)
    change = measure_change(seen, read_again(seen, round_model(model).model))
    assert change["labels"] == 0
    assert change["score"] < 0.03
    assert change["same"] > 0.9
    assert abs(change["losses"][1] - change["losses"][0]) < 0.03


def test_generation_is_the_librarys():
    model = random_model(**CONFIGS["as Llama"])
    packed = pack(contents_of(model), model=model)
    options = {"text": "The keeper", "tokens": 6, "temperature": 0}
    blocks = packed.blocks | packed.later
    [lines] = ask_page({"name": "generation", "blocks": blocks, "options": options})
    steps, again = lines[1:7], lines[7:13]
    opened = Model.of(model, "a model")
    expected = json.loads(json.dumps([*opened.generate("The keeper", tokens=6)]))
    assert lines[0]["start"]["tokens"] == expected[0]["start"]["tokens"]
    assert lines[-1]["end"]["why"] == expected[-1]["end"]["why"]
    for number, (own, other, exact) in enumerate(zip(steps, again, expected[1:-1], strict=True)):
        for name in ("token", "token_id", "position", "computed", "keys_read", "cache_bytes"):
            assert own["step"][name] == close(exact["step"][name]), name
        assert own["step"]["seconds"]["recomputed"] is None
        assert other["again"]["step"] == number
        assert other["again"]["difference"] < 1e-6
        assert other["again"]["same"]


def test_weights_that_float16_cannot_hold_are_kept_whole(included):
    model = random_model()
    description, _ = pack_model(model, contents_of(model))
    assert {tensor["type"] for tensor in description["tensors"]} == {"f32"}
    assert {tensor["type"] for tensor in included[1].description["tensors"]} == {"f16"}


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="expected a model that Regard's GPT can run, got Linear"):
        check_model(torch.nn.Linear(2, 2))
    with torch.device("meta"):
        large = GPT(Config(**(SIZES | {"d_model": 2048, "num_layers": 6})))
    with pytest.raises(ValueError, match=r"fits into a page of 20 MB, got \d+ MB of weights"):
        check_model(large)
    model = random_model()
    contents = contents_of(model)
    with pytest.raises(ValueError, match="expected the one that was captured"):
        pack_model(random_model(num_layers=1), contents)
    model.tokenizer.normalizer = normalizers.NFC()
    with pytest.raises(ValueError, match="expected a BPE of bytes, as GPT-2's, or of characters"):
        pack_model(model, contents)
    model = random_model()
    monkeypatch.setattr(bundle, "MOST_BYTES", 200_000)
    with pytest.raises(ValueError, match=r"with its model, got .* MB: read fewer or shorter texts"):
        bundle.write(contents_of(model), tmp_path / "page.html", model=model)
    assert list(tmp_path.iterdir()) == []


def test_a_page_with_a_model_keeps_its_policy_and_its_first_picture_first(tmp_path):
    model = random_model()
    page = bundle.write(contents_of(model), tmp_path / "page.html", model=model).read_text("utf-8")
    plain = bundle.write(contents_of(model), tmp_path / "plain.html").read_text("utf-8")

    def policy(text):
        return text.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]

    assert policy(page).replace(" 'wasm-unsafe-eval'", "") == policy(plain)
    assert page.index('id="regard-data"') < page.index("<script>") < page.index('id="model-weights"')
    assert "model-weights" not in plain.replace(bundle.bundle_modules("whole_page"), "")
