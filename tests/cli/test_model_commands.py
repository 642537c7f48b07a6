"""Commands that read a model: what they print and write, beside the library, and wrong use."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.gpt import GPT
from regard.heads import HeadTable, read_survey
from regard.interventions import effect
from regard.support.files import SurveyFileError
from tests.cli.conftest import TEXT, runner

LONG = TEXT * 9
ablate = runner("ablate")


def test_it_prints_the_effect_beside_random_heads(noisy):
    shown = ablate("--model", noisy, "--head", "1.2", "--text", LONG, "--length", 32, "--windows", 3)
    assert "with head 1.2 set to zero (3 texts, 96 tokens)" in shown
    model = GPT.from_pretrained(noisy)
    ids = model.tokenizer.encode(LONG).ids
    texts = [torch.tensor(ids[:32]), *(torch.tensor([0, *ids[i : i + 31]]) for i in (32, 63))]
    expected = effect(model, texts, regard.ablate(1, 2))
    assert f"{expected.plain:.3f} → {expected.plain + expected.value:.3f}" in shown
    assert f"{expected.baseline_low:+.3f} to {expected.baseline_high:+.3f}" in shown
    assert "weak band of 3 sets of as many other heads" in shown
    assert ("That is more than random heads do." in shown) == (expected.value > expected.baseline_high)
    # The ten likeliest before, in order, then those that come in.
    rows = [line for line in shown.splitlines() if line.startswith("'")]
    before = [float(re.findall(r"(\d+\.\d)%", row)[0]) for row in rows[:10]]
    assert len(before) == 10
    assert before == sorted(before, reverse=True)
    assert all(len(re.findall(r"\d+\.\d%", row)) == 3 for row in rows)


def test_means_several_heads_and_labels(noisy):
    shown = ablate("--model", noisy, "--head", "0.1", "--head", "1.3", "--mean", "--text", LONG, "--draws", 0)
    assert "with heads 0.1, 1.3 set to its mean" in shown
    assert "none to compare with" in shown
    shown = ablate("--model", noisy, "--head", "1.1", "--head", "1.3", "--text", LONG, "--draws", 4)
    assert "of other layers too" in " ".join(shown.split())  # a line of 80 columns is broken
    with pytest.raises(ValueError, match="none is labelled 'induction'"):
        ablate("--model", noisy, "--label", "induction", "--text", LONG)


cache = runner("cache")


def test_a_table_a_picture_and_a_file_show_what_every_head_keeps(noisy, tmp_path):
    picture, file, page = (tmp_path / f"cache.{kind}" for kind in ("png", "json", "html"))
    shown = cache(
        *("--model", noisy, "--text", TEXT * 9, "--policy", "tova,streaming", "--budget", "8:32"),
        *("--length", 48, "--loss", "--picture", picture, "--json", file, "--page", page),
    )
    assert re.search(r"\(48 tokens, the first of \d+: --length reads more\)", shown)
    model = GPT.from_pretrained(noisy)
    ids = torch.tensor([model.tokenizer.encode(TEXT * 9).ids[:48]])
    curve = regard.capture(model, inputs=(ids,), values=True).retained(["tova", "streaming"], [8, 16, 32])
    assert str(curve).splitlines()[1] in shown
    assert "keep less than 95% with 32 keys" in shown
    data = json.loads(file.read_text())
    assert data["budgets"] == [8, 16, 32]
    assert data["policies"]["tova"]["share"][1] == pytest.approx(curve.shares[0, 1].tolist())
    rise = regard.effect(model, [ids[0]], regard.evict("tova", 8), draws=0).value
    assert data["policies"]["tova"]["rise of the loss"][0] == pytest.approx(rise, abs=1e-6)
    assert f"{rise:+.3f}" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<title>" in page.read_text("utf-8")
    assert "#view=cache" in shown


def test_budgets_beyond_the_text_are_answered_with_a_sentence(noisy):
    shown = cache("--model", noisy, "--text", TEXT, "--policy", "key_norm", "--budget", "4096", "--loss")
    assert "A budget of 4,096 keys holds the whole text, so that nothing is lost." in shown
    assert "+0.000" in shown


LONGER = TEXT * 4
heads = runner("heads")


def test_a_table_with_every_head(folder):
    shown = heads("--model", folder, "--text", LONGER, "--all")
    assert "0 of 8 heads have a label" in shown  # an untrained model looks everywhere alike
    assert "layer kv head does" in shown
    assert [line.split()[-2] for line in shown.splitlines() if "–" in line] == ["–"] * 8
    assert max(map(len, shown.splitlines())) <= 80


def test_the_answer_comes_first(folder):
    shown = heads("--model", folder, "--text", LONGER)
    kinds = ["induction", "duplicate", "previous token", "self", "local"]
    assert [line.partition(": ")[0] for line in shown.splitlines() if ": attention on" in line] == kinds
    assert shown.count("no head; the highest score is") == 5  # an untrained model has no kinds
    assert "8 heads have no label: --all" in shown
    assert "layer kv head" not in shown
    only = heads("--model", folder, "--text", LONGER, "--label", "previous token")
    assert only.count(": attention on") == 1
    assert "have no label:" not in only


def test_importance_stands_beside_the_scores(folder, tmp_path):
    path = tmp_path / "heads.json"
    options = [
        "--model",
        folder,
        "--text",
        LONGER,
        "--length",
        32,
        "--windows",
        2,
        "--no-probe",
        "--no-shuffle",
    ]
    shown = heads(*options, "--importance", "--json", path, "--top", 2)
    assert "importance: rise of the loss when the head is ablated" in shown
    table = HeadTable.from_json(path)
    scores = json.loads(path.read_text())[0]["scores"]
    assert "induction_on_repeats" not in scores
    assert scores["itself"]["shuffled"] is None
    for row in table.best("importance", 2):
        assert f"{row.scores['importance'].value:+.3f}" in shown
        assert row.place in shown
    whole = heads(*options, "--importance", "--all")
    assert whole.count("+0.") + whole.count("-0.") >= 8  # a value for every head
    assert max(map(len, whole.splitlines())) <= 80


def test_long_texts_are_read_in_windows_and_files_written(folder, tmp_path):
    (tmp_path / "text.txt").write_text(LONGER * 3)
    files = ("--json", tmp_path / "heads.json", "--csv", tmp_path / "heads.csv")
    shown = heads("--model", folder, "--file", tmp_path / "text.txt", "--length", 32, "--windows", 3, *files)
    assert "(3 texts, 96 tokens)" in shown
    rows = json.loads((tmp_path / "heads.json").read_text())
    assert [(row["layer"], row["head"], row["kv_head"]) for row in rows[4:]] == [
        (1, 0, 0),
        (1, 1, 0),
        (1, 2, 1),
        (1, 3, 1),
    ]
    assert "induction_on_repeats" in rows[0]["scores"]
    assert rows[0]["scores"]["itself"]["shuffled"] is not None
    assert len(HeadTable.from_json(tmp_path / "heads.json")) == 8
    assert len((tmp_path / "heads.csv").read_text().splitlines()) == 9


survey = runner("survey")


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus.txt").write_text(f"{TEXT}\n" * 10)
    return tmp_path / "corpus.txt"


def test_parquet_with_a_row_a_head(folder, corpus, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "survey.parquet"
    said = survey(corpus, "--model", folder, "--out", out, "--length", 32, "--windows", 3, "--device", "cpu")
    assert "8 heads over 3 windows, 96 tokens; 0 have a label" in said
    found = parquet.read_table(out).to_pydict()
    assert found["kv_head"] == [0, 0, 1, 1] * 2
    assert all(
        low <= value <= high
        for low, value, high in zip(found["itself_low"], found["itself"], found["itself_high"], strict=True)
    )


def test_the_examples_go_to_the_page(folder, corpus, tmp_path):
    out = tmp_path / "survey.csv"
    options = ["--model", folder, "--out", out, "--length", 32, "--device", "cpu", "--windows", 3]
    assert "regard inspect --survey" in survey(corpus, *options, "--examples", 2)
    page = tmp_path / "page.html"
    arguments = ["inspect", "--survey", out, "--model", folder, "--text", "the wind", "--out", page]
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0
    assert 'id="survey"' in page.read_text()
    survey(corpus, *options, "--examples", 0)
    assert not (tmp_path / "survey.csv.examples").exists()  # it was of the survey before
    with pytest.raises(SurveyFileError, match="survey: expected the examples of a survey beside its table"):
        read_survey(out)


def test_shards_are_joined_to_the_same_bytes(folder, corpus, tmp_path):
    options = ["--model", folder, "--length", 8, "--windows", 7, "--device", "cpu"]
    survey(corpus, *options, "--out", tmp_path / "whole.csv")
    out = tmp_path / "joined.csv"
    with pytest.raises(SurveyFileError, match="are missing"):
        survey(corpus, *options, "--out", out, "--join")
    for shard in ("1/2", "0/2"):
        assert f"shard {shard}" in survey(corpus, *options, "--out", out, "--shard", shard)
    assert "8 heads over" in survey(corpus, *options, "--out", out, "--join")
    for suffix in ("", ".examples"):
        whole = tmp_path / f"whole.csv{suffix}"
        assert (tmp_path / f"joined.csv{suffix}").read_bytes() == whole.read_bytes()
    with pytest.raises(ValueError, match="--join: expected it without --shard"):
        survey(corpus, *options, "--join", "--shard", "0/2")
    with pytest.raises(ValueError, match="shard: expected i/n"):
        survey(corpus, *options, "--shard", "2/2")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("ablate", (), "--head: expected the heads to cut, as --head 5.3, or --label induction"),
        ("ablate", ("--head", "1.2", "--label", "sink"), "--head: expected the heads to cut"),
        ("ablate", ("--head", "5"), r"--head: expected a layer and a head, as 5.3 or decoder.5.3, got '5'"),
        ("ablate", ("--head", "1.x"), "--head: expected a layer and a head"),
        ("ablate", ("--head", "1.9"), "head: expected a head of layer 1, from 0 to 3, got 9"),
        ("ablate", ("--label", "inductoin"), "label: expected one of induction"),
        ("ablate", ("--head", "1.2", "--draws", "-1"), "draws: expected"),
        ("ablate", ("--head", "1.2", "--length", "1"), "--length: expected at least 2"),
        ("cache", ("--policy", "h2o,lru"), "policy: expected one of streaming, h2o, .* got 'lru'"),
        ("cache", ("--policy", "h2o,tova,h2o"), "policy: expected different names, got h2o twice"),
        ("cache", ("--policy", "own"), "policy: expected policies with a budget, got own"),
        ("cache", ("--budget", "0"), "--budget: expected numbers of keys"),
        ("cache", ("--length", "0"), "^--length: expected at least 2 tokens, got 0$"),
        ("cache", ("--json", "heads.csv"), "--json: expected a file that ends with .json, got heads.csv"),
        (
            "cache",
            ("--picture", "c.xyz"),
            "--picture: expected a file that ends with .png, .svg or .pdf, got c.xyz",
        ),
        ("cache", ("--page", "c.pdf"), "--page: expected a file that ends with .html, got c.pdf"),
        ("cache", ("--text", "a", "--text", "b"), "^text: expected one text to measure, got 2$"),
        ("cache", ("--picture", "no/c.png"), "--picture: expected a file in a folder that exists"),
        ("heads", ("--json", "heads.txt"), r"expected a file that ends with \.json"),
        (
            "heads",
            ("--label", "inductoin"),
            r"label: expected one of induction, duplicate, .*got 'inductoin'",
        ),
        ("heads", ("--all", "--top", 2), "--all: expected without --label and --top"),
        ("heads", ("--top", 0), "--top: expected at least 1, got 0"),
        ("heads", ("--text", ""), "at least two tokens"),
        ("heads", ("--text", TEXT, "--length", 1), "--length"),
        ("survey", ("--out", "survey.txt"), r"\.json, \.csv or \.parquet"),
        ("survey", ("--length", "1"), "--length: expected at least 2"),
        ("survey", ("--batch", "0"), "--batch: expected at least 1"),
    ],
)
def test_what_a_user_gets_wrong(folder, corpus, command, arguments, message):
    given = {
        "ablate": ("--model", folder, "--text", LONG),
        "cache": ("--model", "no such model"),  # refused before the model is opened
        "heads": ("--model", folder),
        "survey": (corpus, "--model", folder, "--device", "cpu"),
    }
    with pytest.raises(ValueError, match=message):
        runner(command)(*given[command], *arguments)
