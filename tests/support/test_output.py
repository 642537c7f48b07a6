"""What notebooks and terminals show: pictures and tables, and text that others wrote, as text."""

import base64
import dataclasses
import io
import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
from regard.attention.steps import trace
from regard.checker import Check, CheckError, Diagnosis, Report
from regard.cli import app, check, main
from regard.cli.heads import _title
from regard.gpt import GPT
from regard.heads import HeadTable
from regard.heads.tables.table import HeadRow, Score
from regard.heads.tables.table_text import summary_text
from regard.interventions import Effect
from regard.show import capture_output
from regard.show.figures import figure
from regard.support.characters import escape
from regard.support.table import MOST_ROWS, Table
from tests.captures import captured


def shown(thing):
    bundle = thing._repr_mimebundle_()
    assert set(bundle) <= {"text/plain", "text/html", "image/png"}
    assert "object at 0x" not in bundle["text/plain"]
    assert not re.search("<script|<iframe|<[^>]*onerror", bundle.get("text/html", ""))
    return bundle


def picture(thing):
    """The pixels of the picture, which the HTML holds as well."""
    bundle = shown(thing)
    assert bundle["image/png"] in bundle["text/html"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))))


def test_text_in_a_table_is_only_text_and_a_long_table_is_cut():
    page = Table(["<b>"], [("<script>alert(1)</script>",)] * (MOST_ROWS + 3)).html()
    assert "<script" not in page
    assert page.count("<tr>") == MOST_ROWS + 1
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 3} rows" in page


def test_a_map_is_a_picture_that_is_darker_where_attention_is():
    m = captured(8)[0, 1]
    pixels = picture(m).astype(int).sum(2)
    cell = pixels.shape[0] // 8
    weights, darkness = (
        m[0].to_dense(),
        -torch.from_numpy(pixels[cell // 2 :: cell, cell // 2 :: cell].copy()),
    )
    order = weights.flatten().argsort()
    assert (darkness.flatten()[order].diff() >= 0).all()


def test_a_difference_diverges_from_0_and_nan_is_grey():
    seen = captured(6)
    below, above = picture(seen[0, 0] - seen[0, 1]), picture(seen[0, 1] - seen[0, 0])
    assert not np.array_equal(below, above)
    assert "blue is below 0" in shown(seen[0, 0] - seen[0, 1])["text/html"]
    broken = regard.attention_map(torch.full((3, 4), torch.nan), torch.randn(3, 4))
    assert (picture(broken) == picture(broken)[0, 0]).all()


def test_an_empty_map_and_one_that_is_too_large_are_text():
    empty = regard.attention_map(torch.randn(0, 4), torch.randn(3, 4))
    assert set(shown(empty)) == {"text/plain"}
    large = regard.attention_map(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    large.q = torch.zeros(1, 1, 1, 1).expand(1, 1, 1 << 15, 1)
    large.k = torch.zeros(1, 1, 1, 1).expand(1, 1, 1 << 15, 1)
    large.lse = torch.zeros(1, 1, 1).expand(1, 1, 1 << 15)
    assert set(shown(large)) == {"text/plain"}


@pytest.mark.parametrize(
    "mask",
    [
        regard.causal,
        regard.window(100) & regard.causal,
        ~regard.chunks(4) | regard.prefix(2),
        regard.padding(torch.tensor([3, 5])),
        regard.documents(torch.tensor([[0, 0, 1, 1, 1]])) & regard.causal,
        regard.tensor_mask(torch.rand(6, 9) > 0.5),
        regard.rule(lambda b, h, q, k: (q + k) % 3 == 0),
    ],
    ids=str,
)
def test_a_mask_is_a_picture_of_what_is_visible(mask):
    T, S = mask.picture_shape()
    dense = mask.to_dense(T, S)
    visible = dense[0, 0] if dense.ndim == 4 else dense
    pixels = picture(mask)
    cells = pixels[:: pixels.shape[0] // T, :: pixels.shape[1] // S, 0] < 128
    if max(T, S) <= 256:
        assert np.array_equal(cells[:T, :S], visible.numpy())


def test_tables_certificates_and_effects_say_what_they_hold():
    seen = captured(12, model="<b>")
    assert "certified" in shown(seen.certificate)["text/html"]
    assert repr(seen.certificate) == "Certificate(2 of 2 layers certified)"
    assert "certified" in shown(seen.certificate[0])["text/html"]
    table = seen.heads()
    page = shown(table)["text/html"]
    assert page.count("<tr>") == len(table) + 1
    assert table[0, 1].sentence.split(";")[0] in page
    assert "Layer 0, head 1" in shown(table[0, 1])["text/plain"]
    x = torch.randn(1, 2, 5, 8)
    assert "tiled: taken" in shown(regard.which_backend(x, x, x, softcap=30.0))["text/html"]
    effect = Effect(0.5, 0.4, 0.6, [0.4, 0.6], 3.0, [0.0, 0.1], -0.1, 0.1, None, ("ablate 5.3",), "loss")
    assert "+0.500" in shown(effect)["text/html"]
    assert "more than the band of 2 random edits (2 draws: weak)" in shown(effect)["text/html"]


def test_a_capture_is_a_picture_and_a_sentence_without_the_page():
    seen = captured(16, tokens=["</p><img src=x onerror=alert(1)>"] * 16, model="</p><script>")
    bundle = shown(seen)
    assert picture(seen).size
    assert "attention" in bundle["text/html"]
    assert "seen.widget()" in bundle["text/html"]
    assert sum(map(len, bundle.values())) < 150_000  # no code of the page
    assert set(shown(regard.Capture())) == {"text/plain", "text/html"}


@pytest.mark.parametrize("has_matplotlib", [True, False])
def test_the_picture_of_a_capture_names_tokens_and_its_scale(has_matplotlib, monkeypatch):
    drawn = []
    monkeypatch.setattr(capture_output, "figure", lambda *x, **y: drawn.append(figure(*x, **y)) or drawn[0])
    if not has_matplotlib:
        monkeypatch.setattr(capture_output, "find_spec", lambda name: None)
    tokens = [f" word{i}" for i in range(15)] + ["世"]  # which Matplotlib's font does not have
    page = shown(captured(16, tokens=tokens))["text/html"]
    assert re.search(r"(·word\d+|世) \(\d+\) → (·word\d+|世) \(\d+\): \d+%", page)
    if not has_matplotlib:
        assert re.search(r"the darkest is \d+% of a query&#x27;s attention or more", page)
        return
    (one,) = drawn
    words = [text.get_text() for text in one.findobj(lambda x: hasattr(x, "get_text"))]
    assert "·word3" in words
    assert "One cell is one weight. The colours are linear." in words


def test_predictions_steps_edits_and_layers_are_tables_or_sentences():
    model = GPT.from_pretrained("default")
    seen = regard.capture(model, text="The cat sat. The cat", predictions=True)
    page = shown(seen.predictions)["text/html"]
    assert page.count("<tr>") == len(seen.tokens[0]) + 1
    assert f"{seen.predictions.probabilities[0, 3, 0]:.1%}" in page
    assert repr(seen.predictions).startswith("Predictions(1 text of ")
    layers = shown(seen.layers)["text/html"]
    assert layers.count("<tr>") == len(seen.layers) + 1
    assert '<td style="text-align:left">certified</td>' in layers
    assert (
        shown(regard.ablate(heads=[(4, 0), (4, 2)]))["text/html"] == "<pre>heads 4.0, 4.2 set to zero</pre>"
    )
    x = torch.randn(1, 2, 5, 8)
    steps = shown(trace(x, x, x, regard.causal))["text/html"]
    assert steps.count("<tr>") == 6
    assert "−inf" in steps
    assert "1×2×5×8" in steps
    assert shown(trace(x[0, 0, :0], x[0, 0], x[0, 0]))["text/html"].count("<tr>") == 6  # without queries
    loaded = dataclasses.replace(seen, layers=list(seen.layers))
    assert shown(loaded.layers)["text/html"] == layers


HOSTILE = (
    "\x1b[31mred\x1b]52;c;bWluZQ==\x07\x1b]8;;http://example.org\x1b\\\x9b2J\r\x08\x7f\x85"
    "\u202eevil\u2066\u2028\ud800\U000e0041[/red][link=x]"
)
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)


def test_nothing_unsafe_is_left_and_json_stays_json():
    assert escape(HOSTILE).startswith("\\u001b[31mred\\u001b]52;")
    shown = escape(json.dumps(HOSTILE, ensure_ascii=False))
    assert not UNSAFE.search(shown)
    assert json.loads(shown) == HOSTILE
    assert shown.encode().decode() == shown


@pytest.mark.parametrize(
    "text", ["", "a\tb\nc", "naïve – “weights” √D", "日本語", "می‌خواهم", "👩‍💻 ❤️", "C:\\x1b"]
)
def test_what_is_harmless_stays(text):
    assert escape(text) == text


def test_a_report_shows_them(capsys):
    diagnosis = Diagnosis("no-scale", HOSTILE, HOSTILE, HOSTILE)
    checks = [
        Check(f"{HOSTILE}{status}", status, HOSTILE) for status in ("passed", "failed", "skipped", "warning")
    ]
    report = Report(HOSTILE, [HOSTILE], checks, [diagnosis], example=f"{HOSTILE}\n{HOSTILE}")
    check.print_report(report)
    for shown in (str(report), repr(report), capsys.readouterr().out):
        assert not UNSAFE.search(shown)
        assert "\\u001b[31mred" in shown
    assert json.loads(escape(report.to_json())) == json.loads(report.to_json())
    assert not UNSAFE.search(str(CheckError(HOSTILE)))


def test_names_and_messages_of_checked_code_are_shown(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def attention(q, k, v):\n"
        f"    raise type({HOSTILE[:20]!r}, (KeyboardInterrupt,), {{}})({HOSTILE!r})\n"
        f"attention.__name__ = {HOSTILE!r}\n"
    )
    said = CliRunner().invoke(app, ["check", f"{tmp_path}/mine.py:attention", "--json"])
    assert said.exit_code == 2
    assert not UNSAFE.search(said.stdout)
    assert "could not be checked: \\u001b[31mred" in json.loads(said.stdout)["error"]


def test_an_error_shows_them(monkeypatch, capsys, tmp_path):
    name = HOSTILE.replace("\ud800", "")
    page = ["--out", str(tmp_path / "page.html")]
    for words in (["generate", "x", "--model", name], ["inspect", name, *page], ["heads", "--model", name]):
        monkeypatch.setattr(sys, "argv", ["regard", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert not UNSAFE.search(capsys.readouterr().err)


def test_a_table_of_heads_shows_them(capsys):
    from rich.console import Console

    scores = {"sink": Score(*[0.5] * len(Score._fields))}
    row = HeadRow(0, 0, 0, ("sink",), 0, scores, stack=HOSTILE)
    table = HeadTable([row], model=HOSTILE)
    screen = Console(width=400)
    screen.print(_title(table))
    screen.print(summary_text(table, label="sink", key_texts={0: HOSTILE}), markup=False)
    screen.print(table)
    print(table)
    said = capsys.readouterr().out
    assert not UNSAFE.search(said)
    assert said.count("[/red][link=x]") >= 3  # as text, not as markup; the narrow table cuts it
