"""Figures of maps: what is on the axes, in the cells and at the foot, and that a long map is never dense."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import regard
from regard.recorder import Capture, Evidence, Layer
from regard.show.figures import MOST_CELLS, figure, legible, plot
from regard.stages.picture import ink

TOKENS = ["The", " sea", " was", "\n", "$5"]


def a_map(T: int = 5, S: int | None = None, heads: int | None = None) -> regard.AttentionMap:
    lead = () if heads is None else (1, heads)
    q, k = torch.randn(*lead, T, 8), torch.randn(*lead, S or T, 8)
    return regard.attention_map(2 * q, k, mask=regard.causal)


def seen(*, problem: str | None = None, heads: tuple[int, ...] = (0, 1), T: int = 5) -> Capture:
    map = a_map(T, heads=len(heads))
    evidence = Evidence(1e-7, 1e-6, 1e-7, T, T, "causal", map.scale, problem=problem)
    tokens = [TOKENS if T == 5 else [f"t{i}" for i in range(T)]]
    return Capture([Layer(3, "h.3.attn", "", map, evidence, heads)], "a $model$", None, tokens)


def words(drawn: Figure) -> str:
    drawn.canvas.draw()
    return "\n".join(text.get_text() for text in drawn.findobj(lambda x: hasattr(x, "get_text")))


def test_a_small_map_has_its_tokens_and_a_number_in_each_cell_that_can_be_seen() -> None:
    map = a_map()
    ax = plot(map, TOKENS).axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("attended-to (key)", "query")
    assert [x.get_text() for x in ax.get_xticklabels()] == ["The", "·sea", "·was", "↵", "$5"]
    assert [x.get_text() for x in ax.get_yticklabels()] == ["The", "·sea", "·was", "↵", "$5"]
    dense = map.to_dense()
    written = {x.get_position(): x for x in ax.texts}
    assert set(written) == {(j, i) for i in range(5) for j in range(i + 1)}
    for (j, i), text in written.items():
        assert text.get_text() == f"{dense[i, j]:.2f}"
        assert text.get_color() == ink(float(dense[i, j] / dense.max()))


def test_a_longer_map_has_all_its_tokens_and_no_numbers() -> None:
    drawn = plot(a_map(40), [f"t{i}" for i in range(40)])
    ax = drawn.axes[0]
    assert [x.get_text() for x in ax.get_xticklabels()] == [f"t{i}" for i in range(40)]
    assert not ax.texts
    shown = ax.images[0].get_array()
    assert shown.mask[0, 1:].all()
    assert not shown.mask[-1].any()


@pytest.mark.parametrize("reduce", ["mass", "max"])
def test_a_long_map_is_pooled_exactly_and_never_dense(reduce: str, monkeypatch: pytest.MonkeyPatch) -> None:
    T = 3 * MOST_CELLS
    map = a_map(T)
    expected = map.pool(MOST_CELLS, MOST_CELLS, reduce)
    monkeypatch.setattr(regard.AttentionMap, "to_dense", lambda *_: pytest.fail("it was made dense"))
    ax = plot(map, [f"t{i}" for i in range(T)], reduce=reduce).axes[0]
    shown = torch.tensor(ax.images[0].get_array().filled(0))
    assert torch.equal(shown, expected.float())
    labels = [x.get_text() for x in ax.get_yticklabels()]
    assert labels[0] == "t0  0"
    assert labels[-1] == f"t{T - 3}  {T - 3:,}"


def test_queries_stand_at_the_end_of_the_keys_or_have_tokens_of_their_own() -> None:
    ax = plot(a_map(2, 5), TOKENS).axes[0]
    assert [x.get_text() for x in ax.get_yticklabels()] == ["↵", "$5"]
    ax = plot(a_map(2, 5), TOKENS, queries=["x", "y"]).axes[0]
    assert [x.get_text() for x in ax.get_yticklabels()] == ["x", "y"]


def test_a_log_scale_tells_small_weights_apart() -> None:
    weights = torch.tensor([[0.9, 0.1, 1e-3, 0.0]])
    linear, log = (plot(weights, scale=scale).axes[0].images[0] for scale in ("linear", "log"))
    assert [float(log.norm(x)) for x in (0.9, 9e-5, 0.0)] == pytest.approx([1, 0, 0], abs=1e-6)
    assert float(log.norm(1e-3)) > 0.2 > float(linear.norm(1e-3))


def test_the_boundary_is_a_line_on_both_axes() -> None:
    ax = plot(a_map(40), boundary=30).axes[0]
    lines = [line for line in ax.lines if line.get_gid() == "boundary"]
    assert sorted((set(line.get_xdata()), set(line.get_ydata())) == ({29.5}, {0, 1}) for line in lines) == [
        False,
        True,
    ]
    assert {29.5} in [set(line.get_ydata()) for line in lines]
    assert "generated" in ax.texts[0].get_text()


def test_every_head_of_a_map_gets_a_panel() -> None:
    drawn = plot(a_map(heads=6))
    titles = [ax.get_title(loc="left") for ax in drawn.axes if ax.get_visible()]
    assert titles == [f"head {h}" for h in range(6)]


def test_axes_that_are_there_are_drawn_on() -> None:
    drawn = Figure()
    ax = drawn.subplots()
    assert plot(a_map(), ax=ax) is drawn
    assert len(drawn.axes) == 1


def test_a_capture_names_layer_and_head_and_shows_what_its_certificate_says() -> None:
    drawn = figure(seen(heads=(4, 7)), 3, 7)
    text = words(drawn)
    assert "a $model$: layer 3, head 7" in text
    assert "certified: weights times values are within 1.0e-07" in text
    gallery = figure(seen(heads=(4, 7)), 3)
    assert [ax.get_title(loc="left") for ax in gallery.axes] == ["head 4", "head 7"]


def test_a_decoder_that_looks_at_an_encoder_has_the_tokens_of_both() -> None:
    map = regard.attention_map(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8))
    evidence = Evidence(1e-7, 1e-6, 1e-7, 3, 3, "full", map.scale)
    capture = Capture([Layer(0, "cross", "cross", map, evidence, (0, 1))], "both", None, [TOKENS])
    capture.target_tokens = [["x", "y", "z"]]
    ax = figure(capture, "cross.0", 1).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "y", "z"]
    assert [label.get_text() for label in ax.get_xticklabels()][1] == "·sea"


def test_what_is_not_certified_says_so_in_the_figure() -> None:
    foot = figure(seen(problem="its scale is not known"), 3, 0)._supxlabel
    assert foot.get_text() == "not certified: its scale is not known"
    assert foot.get_color() != figure(seen(), 3, 0)._supxlabel.get_color()


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_it_saves_as(kind: str, begins: bytes) -> None:
    file = io.BytesIO()
    figure(seen(), 3, 1).savefig(file, format=kind)
    assert file.getvalue().startswith(begins)


def test_a_boundary_of_a_capture_is_drawn() -> None:
    capture = dataclasses.replace(seen(T=40), boundary=20)
    assert any(line.get_gid() == "boundary" for line in figure(capture, 3, 0).axes[0].lines)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot(a_map(), ["a"]), "tokens: expected 5 of them"),
        (lambda: plot(a_map(), "abcde"), "tokens: expected 5 .* got one string"),
        (lambda: plot(a_map(), scale="cubic"), "scale: expected 'linear' or 'log'"),
        (lambda: plot(a_map(), reduce="min"), "reduce: expected 'mass' or 'max'"),
        (lambda: plot(a_map(), boundary=9), "boundary: expected from 1 to 4"),
        (lambda: plot(torch.zeros(2, 2, 2)), "map: expected an AttentionMap"),
        (lambda: plot(a_map()[0:1][0]), "map: expected an AttentionMap"),
        (lambda: plot(a_map(heads=2), ax=Figure().subplots()), "ax: expected one head"),
    ],
)
def test_what_cannot_be_drawn_is_said(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_labels_show_what_cannot_be_seen() -> None:
    assert [legible(x) for x in ("a", " a", "\t", "", "\x1b[31m")] == ["a", "·a", "⇥", "∅", "�[31m"]


def test_it_is_the_function_of_the_package(tmp_path: Path) -> None:
    drawn = regard.plot(a_map(), TOKENS, title="five tokens")
    drawn.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
