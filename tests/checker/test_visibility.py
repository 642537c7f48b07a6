"""On the inputs of a check every mistake is clear; on yours you learn which are not."""

import json
import math
import os

import pytest
import torch
from typer.testing import CliRunner

from regard.checker import measure_visibility, mistake_visibility
from regard.checker.catalogue import CATALOGUE, THEMES
from regard.checker.examples import TEMPLATES
from regard.checker.reports import visibility_table
from regard.checker.reports.visibility_table import CLEAR, WIDTH
from regard.cli import app
from scripts import sessions
from tests.sampling import share

SEEN = {  # kinds of input that show a mistake, and kinds that do not
    "top-left-causal": ({"causal, T < S"}, {"causal", "plain"}),
    "window-off-by-one": ({"window"}, {"plain", "causal"}),
    "grouped-heads-tiled": ({"grouped heads"}, {"plain", "causal", "mask"}),
    "softmax-overflow": ({"large scores"}, {"plain", "causal"}),
    "padded-keys-leak": ({"padding"}, {"plain", "mask"}),
    "mask-scaled-too": ({"float mask"}, {"mask"}),
}
KINDS = TEMPLATES if os.environ.get("REGARD_ALL") else ("function", "packed")
OWN = [name for name, mistake in CATALOGUE.items() if mistake.plants.keys() & set(KINDS)]
MEASURED = [name for name in CATALOGUE if name in {*SEEN, *share(OWN, 24)} or os.environ.get("REGARD_ALL")]


@pytest.fixture(scope="module")
def of_the_check():
    """The mistakes on the inputs of a check: with REGARD_ALL=1 all of them, which takes a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mistake_visibility, "CATALOGUE", {name: CATALOGUE[name] for name in MEASURED})
        patch.setattr(mistake_visibility, "TEMPLATES", {kind: TEMPLATES[kind] for kind in KINDS})
        return mistake_visibility._of_the_check.__wrapped__()


@pytest.fixture
def printed(of_the_check, monkeypatch):
    """The same, to be printed: the table goes by themes."""
    themes = {theme: [m for m in mistakes if m.name in MEASURED] for theme, mistakes in THEMES.items()}
    monkeypatch.setattr(visibility_table, "THEMES", themes)
    monkeypatch.setattr(mistake_visibility, "measure_visibility", lambda: of_the_check)
    return of_the_check


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_template_is_right_and_asked_something(kind):
    assert list(mistake_visibility._questions(kind))


def test_every_mistake_is_clear_on_some_input_or_says_why_it_cannot_be(of_the_check):
    clear = {name for name in MEASURED if of_the_check[name].largest >= CLEAR}
    excused = {name for name in MEASURED if CATALOGUE[name].unseen_because}
    assert clear | excused == set(MEASURED), "not seen, without a reason"
    assert not clear & excused, "seen after all"


def test_every_form_of_a_mistake_is_seen_on_some_input(of_the_check):
    partly = {m.name: m.unseen_forms for m in of_the_check.mistakes if m.unseen_forms}
    # The output of the first is right, and no score of a check is as low as −999.
    partly.pop("weights-detached", None)
    assert all("99" in form or "-1000" in form for form in partly.pop("weak-mask-value", {})), partly
    # No text of a check is longer than a block of 128 keys.
    assert all("= 128" in form for forms in partly.values() for form in forms), partly


@pytest.mark.at_length("test_the_command_prints_the_table_and_json")
def test_the_documents_show_what_the_command_prints(printed):
    """`test_docs` holds the other documents; the numbers of this one are at hand here."""
    text = sessions.VISIBILITY.read_text(encoding="utf-8")
    assert sessions.run_sessions(text) == text


def test_the_table_fits_a_terminal_and_names_every_mistake(printed):
    lines = str(printed).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in MEASURED)
    shown = sessions.VISIBILITY.read_text(encoding="utf-8").splitlines()
    assert all(any(line.startswith(f"{name} ") for line in shown) for name in CATALOGUE)


SINK = "the sink logits are −∞, which takes no share"
WINDOW = "the window of 7 is longer than the text of 7 keys"


def draw(B=2, H=4, G=4, T=7, S=7, D=10, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype) for shape in ((B, H, T, D), (B, G, S, D), (B, G, S, D))]


@pytest.mark.parametrize(
    ("sizes", "options", "name", "reason"),
    [
        ({}, {"causal": True, "window": 7}, "window-dropped", WINDOW),
        ({}, {"causal": True}, "top-left-causal", "there are as many queries as keys"),
        ({"T": 1}, {"causal": True}, "missing-diagonal", None),
        ({"G": 1}, {}, "grouped-heads-tiled", "there is a single key/value head"),
        ({}, {}, "grouped-heads-tiled", "there are as many key/value heads as query heads"),
        ({"B": 1}, {}, "batch-items-mixed", "the batch has one item"),
        ({"H": 1, "G": 1}, {}, "scale-from-model-width", "there is a single head"),
        ({"D": 7}, {}, "scale-by-length", "there are 7 keys, as many as a head is wide"),
        ({}, {"mask": torch.ones(7, 7).bool()}, "no-mask", "no key is hidden"),
        ({}, {"mask": torch.eye(7).bool()}, "transposed-mask", "the mask is symmetric"),
        ({}, {"softcap": 1e6}, "softcap-dropped", "the scores are far below the soft cap"),
        ({}, {"causal": True, "softcap": 60.0}, "softcap-after-mask", "exp(−60) is too little to show"),
        ({}, {"sinks": torch.full((4,), -torch.inf)}, "sink-dropped", SINK),
        ({}, {"sinks": torch.ones(4)}, "sink-of-another-head", "all heads have the same sink logit"),
        ({}, {}, "sink-added-twice", "there is no sink logit"),
        ({}, {"window": 3, "ahead": 6}, "right-window-ignored", None),
        ({}, {"causal": True, "window": 3}, "right-window-ignored", "there is no window to the right"),
        ({}, {}, "softmax-overflow", "no score is above 88"),
        ({}, {}, "weights-detached", "the output is right: only gradients show it"),
        ({}, {"tolerance": 0.9}, "scale-by-length", "it is off by only 0.1 of the tolerance"),
    ],
)  # fmt: skip
def test_your_inputs_say_what_they_do_not_show(sizes, options, name, reason):
    unseen = measure_visibility(*draw(**sizes), **options).unseen
    assert unseen.get(name, "").split("; ")[0] == (reason or "")


def test_a_form_of_a_mistake_that_is_not_seen_is_named():
    padded = measure_visibility(*draw(), padding=torch.ones(2, 7).bool())
    reason = "all lengths are equal, so nothing is padded"
    assert padded["padded-keys-leak"].unseen_forms["padding = ignored"] == reason
    weak = measure_visibility(*draw(), causal=True)["weak-mask-value"]
    assert weak.seen
    assert weak.unseen_forms["fill = -100.0"] == "no visible score comes near -100"


def test_inputs_without_blind_spots_show_everything_that_an_output_can():
    mask = torch.ones(20, 40).bool()
    mask[2, 18] = mask[3, 22] = False
    options = {
        "window": 5,
        "softcap": 2.0,
        "mask": mask,
        "bias": torch.randn(20, 40),
        "sinks": torch.randn(4),
    }
    options["padding"] = torch.arange(40) < torch.tensor([[35], [40]])
    q, k, v = draw(G=2, T=20, S=40)
    causal = measure_visibility(q, k, v, causal=True, **options).unseen
    both_sides = measure_visibility(q, k, v, ahead=2, **options).unseen
    large = measure_visibility(50 * q, k, v, causal=True).unseen
    unseen = causal.keys() & both_sides.keys() & large.keys()
    assert unseen <= {"weights-detached", "softmax-overflow", "softmax-twice"}, unseen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_not_taken_for_a_mistake(dtype):
    unseen = measure_visibility(*draw(dtype=dtype), causal=True).unseen
    assert {"window-dropped", "top-left-causal", "softmax-overflow"} <= set(unseen)


def test_the_command_prints_the_table_and_json(printed):
    shown = CliRunner().invoke(app, ["check", "--visibility"])
    assert shown.exit_code == 0
    assert shown.stdout.rstrip("\n") == str(printed)
    data = json.loads(CliRunner().invoke(app, ["check", "--visibility", "--json"]).stdout)
    assert [entry["name"] for entry in data["mistakes"]] == MEASURED
    overflow = next(entry for entry in data["mistakes"] if entry["name"] == "softmax-overflow")
    assert overflow["seen"]
    assert overflow["distances"]["large scores"] is None
    assert math.isinf(printed["softmax-overflow"].distances["large scores"])
