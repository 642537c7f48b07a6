"""Maps as figures and in a terminal: axes, cells and foot, and that a long map is never dense."""

import io
import json
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

import regard
from regard.maps.scale_end import overview_edges, scale_end
from regard.recorder import Capture, Evidence, Layer
from regard.show.data.map_view import tiles
from regard.show.figure_drawing import MOST_CELLS, WARNING
from regard.show.figures import figure, plot
from regard.show.terminal import print_map
from regard.stages.figures.picture import colour_map
from regard.support.cells import ink
from tests.refusals import refused
from tests.sampling import share

TOKENS = ["The", " sea", " was", "\n", "$5"]


def a_map(T=5, S=None, heads=None):
    lead = () if heads is None else (1, heads)
    q, k = torch.randn(*lead, T, 8), torch.randn(*lead, S or T, 8)
    return regard.attention_map(2 * q, k, mask=regard.causal)


def seen(*, problem=None, heads=(0, 1), T=5):
    m = a_map(T, heads=len(heads))
    evidence = Evidence(1e-7, 1e-6, 1e-7, T, T, "causal", m.scale, problem=problem)
    tokens = [TOKENS if T == 5 else [f"t{i}" for i in range(T)]]
    return Capture([Layer(3, "h.3.attn", "", m, evidence, heads)], "a $model$", None, tokens)


def words(drawn):
    drawn.canvas.draw()
    return "\n".join(text.get_text() for text in drawn.findobj(lambda x: hasattr(x, "get_text")))


def test_a_small_map_has_its_tokens_and_a_number_in_each_cell_that_can_be_seen():
    m = a_map()
    ax = plot(m, TOKENS).axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key (attended to)", "query")
    assert [x.get_text() for x in ax.get_xticklabels()] == ["The", "·sea", "·was", "↵", "$5"]
    assert [x.get_text() for x in ax.get_yticklabels()] == ["The", "·sea", "·was", "↵", "$5"]
    dense = m.to_dense()
    written = {x.get_position(): x for x in ax.texts}
    assert set(written) == {(j, i) for i in range(5) for j in range(i + 1)}
    end = scale_end(dense[dense > 0], 1.0)
    for (j, i), text in written.items():
        assert text.get_text() == f"{dense[i, j]:.2f}"
        assert text.get_color() == ink(float(dense[i, j] / end))


def test_a_longer_map_has_all_its_tokens_and_no_numbers():
    drawn = plot(a_map(40), [f"t{i}" for i in range(40)])
    ax = drawn.axes[0]
    assert [x.get_text() for x in ax.get_xticklabels()] == [f"t{i}" for i in range(40)]
    assert not ax.texts
    (cells,) = ax.collections  # few cells are shapes
    shown = cells.get_array()
    assert shown.mask[0, 1:].all()
    assert not shown.mask[-1].any()


@pytest.mark.parametrize("reduce", ["mass", "max"])
def test_a_long_map_is_pooled_exactly_and_never_dense(reduce, monkeypatch):
    T = 3 * MOST_CELLS
    m = a_map(T)
    expected = m.pool(MOST_CELLS, MOST_CELLS, reduce)
    monkeypatch.setattr(regard.AttentionMap, "to_dense", lambda *_: pytest.fail("it was made dense"))
    ax = plot(m, [f"t{i}" for i in range(T)], reduce=reduce).axes[0]
    shown = torch.tensor(ax.images[0].get_array().filled(0))
    assert torch.equal(shown, expected.float())
    labels = [x.get_text() for x in ax.get_yticklabels()]
    assert labels[0] == "0 t0"
    assert labels[-1] == f"{T - 3:,} t{T - 3}"


def test_queries_stand_at_the_end_of_the_keys_or_have_tokens_of_their_own():
    ax = plot(a_map(2, 5), TOKENS).axes[0]
    assert [x.get_text() for x in ax.get_yticklabels()] == ["↵", "$5"]
    ax = plot(a_map(2, 5), TOKENS, query_tokens=["x", "y"]).axes[0]
    assert [x.get_text() for x in ax.get_yticklabels()] == ["x", "y"]


def test_a_log_scale_tells_small_weights_apart():
    weights = torch.tensor([[0.9, 0.1, 1e-3, 0.0]])
    linear, log = (plot(weights, scale=scale).axes[0].collections[0] for scale in ("linear", "log"))
    assert [float(log.norm(x)) for x in (1.0, 1e-2, 0.0)] == pytest.approx([1, 0, 0], abs=1e-6)
    assert float(log.norm(0.1)) > 0.4 > float(linear.norm(0.1))


def test_the_boundary_is_a_line_on_both_axes():
    ax = plot(a_map(40), boundary=30).axes[0]
    lines = [line for line in ax.lines if line.get_gid() == "boundary"]
    assert sorted((set(line.get_xdata()), set(line.get_ydata())) == ({29.5}, {0, 1}) for line in lines) == [
        False,
        True,
    ]
    assert {29.5} in [set(line.get_ydata()) for line in lines]
    assert "generated" in ax.texts[0].get_text()


def test_a_capture_names_layer_and_head_and_shows_what_its_certificate_says():
    drawn = figure(seen(heads=(4, 7)), 3, 7)
    text = words(drawn)
    assert "a $model$: layer 3, head 7" in text
    assert "Certified: weights times values are within 1.0e-07" in text
    assert "Text: “The sea was $5”." in text
    assert "hidden by the mask" in text
    # bbox_inches="tight", which notebooks use, keeps all words.
    drawn.canvas.draw()
    kept = drawn.get_tightbbox().padded(0.01)
    sizes = [one.get_window_extent().transformed(drawn.dpi_scale_trans.inverted()) for one in drawn.texts]
    assert len(sizes) >= 4
    assert all(kept.count_contains(size.corners()) == 4 for size in sizes)
    gallery = figure(seen(heads=(4, 7)), 3)
    assert [ax.get_title(loc="left") for ax in gallery.axes] == ["head 4", "head 7"]


def test_a_decoder_that_looks_at_an_encoder_has_the_tokens_of_both():
    m = regard.attention_map(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8))
    evidence = Evidence(1e-7, 1e-6, 1e-7, 3, 3, "full", m.scale)
    capture = Capture([Layer(0, "cross", "cross", m, evidence, (0, 1))], "both", None, [TOKENS])
    capture.target_tokens = [["x", "y", "z"]]
    ax = figure(capture, "cross.0", 1).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "y", "z"]
    assert [label.get_text() for label in ax.get_xticklabels()][1] == "·sea"


def test_what_is_not_certified_says_so_in_the_figure():
    drawn = figure(seen(problem="its scale is not known"), 3, 0)
    (warning,) = [text for text in drawn.texts if text.get_text().startswith("Not certified")]
    assert warning.get_text() == "Not certified: its scale is not known."
    assert warning.get_color() == WARNING


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_it_saves_as(kind, begins):
    file = io.BytesIO()
    figure(seen(), 3, 1).savefig(file, format=kind)
    assert file.getvalue().startswith(begins)


test_what_cannot_be_drawn_is_said = refused(
    [
        (lambda: plot(a_map(), ["a"]), "key_tokens: expected 5 tokens"),
        (lambda: plot(a_map(), "abcde"), "key_tokens: expected 5 .* got one string"),
        (lambda: plot(a_map(), scale="cubic"), "scale: expected 'linear' or 'log'"),
        (lambda: plot(a_map(), reduce="min"), "reduce: expected 'mass' or 'max'"),
        (lambda: plot(a_map(), boundary=9), "boundary: expected from 1 to 4"),
        (lambda: plot(torch.zeros(2, 2, 2)), "attention_map: expected an AttentionMap"),
        (lambda: plot(a_map()[0:1][0]), "attention_map: expected an AttentionMap"),
        (lambda: plot(a_map(heads=2), ax=Figure().subplots()), "ax: expected one head"),
    ]
)


def test_a_difference_has_diverging_colours_that_are_symmetrical():
    a, b = a_map(), a_map()
    ax = plot(a - b, TOKENS).axes[0]
    image, dense = ax.collections[0], (a - b).to_dense()
    assert image.norm.vmax == scale_end(dense[torch.ones(5, 5).tril() > 0], 1.0)
    assert image.norm.vmin == -image.norm.vmax
    assert float(image.norm(0.0)) == 0.5
    assert image.get_array().mask[0, 1:].all()  # hidden in both
    red, _, blue, _ = image.cmap(1.0)
    assert red > blue
    red, _, blue, _ = image.cmap(0.0)
    assert blue > red
    written = {x.get_position(): x.get_text() for x in ax.texts}
    for (j, i), text in written.items():
        rounded = round(float(dense[i, j]), 2)
        assert text == ("0" if rounded == 0 else f"{rounded:+.2f}".replace("-", "−"))


@pytest.mark.parametrize("scale", share(["linear", "log"], 2))
def test_signed_maps_are_pooled_and_named(scale):
    m = a_map(700)
    u = torch.linspace(-1, 1, 700)
    drawn = plot(m.weighted(u), scale=scale)
    image = drawn.axes[0].images[0]
    expected = m.weighted(u).pool(MOST_CELLS, MOST_CELLS)
    assert torch.allclose(torch.tensor(image.get_array().filled(0.0)), expected, atol=1e-6)
    assert float(image.norm(0.0)) == pytest.approx(0.5)
    assert "weight × factor of the key, summed over keys" in words(drawn)
    assert "difference of two weights, summed over keys" in words(plot(m - a_map(700)))
    positive = plot(m.weighted(u.abs())).axes[0].images[0]
    assert positive.norm.vmin == 0  # nothing is below 0, so nothing diverges


def test_a_capture_is_drawn_against_another():
    a, b = seen(), seen(problem="the map is not the model's")
    drawn = figure(a, 3, 1, against=b)
    dense = (a[3, 1] - b[3, 1]).to_dense()[0]
    assert torch.allclose(
        torch.tensor(drawn.axes[0].collections[0].get_array().filled(0.0)), dense.tril(), atol=1e-6
    )
    assert "layer 3, head 1, difference" in words(drawn)
    assert "Not certified" in words(drawn)  # one of the two is not
    assert len(figure(a, 3, against=b).axes) == 2
    with pytest.raises(ValueError, match="expected two maps of one shape"):
        figure(a, 3, 1, against=seen(T=9))


def test_a_figure_is_drawn_once_in_a_notebook_and_its_files_hold_text():
    for drawn in (figure(seen(), 3, 1), figure(seen(), 3), plot(a_map(), TOKENS), regard.causal.plot(4)):
        assert plt.get_fignums() == []  # pyplot would draw what it still holds a second time
        svg, pdf = io.StringIO(), io.BytesIO()
        drawn.savefig(svg, format="svg")
        drawn.savefig(pdf, format="pdf")
        assert ">query</text>" in svg.getvalue()
        assert b"/CIDFontType2" in pdf.getvalue()  # an embedded TrueType font, not outlines


@pytest.mark.parametrize("T", share([325, 40, 600], 3))
def test_colours_and_their_end_are_the_page_s(T):
    web = Path(regard.__file__).parent / "show" / "web"
    m = a_map(T)
    edges, _ = overview_edges((T, T))
    values = m.pool(edges, edges)
    visible = values[torch.ones(len(values), len(values)).tril() > 0]
    script = (
        f'import {{ ramp }} from "{web.as_uri()}/parts/colours.js";'
        f'import {{ applySettings, overviewLevel }} from "{web.as_uri()}/data/settings.js";'
        f"applySettings({{ tile: {tiles.SIDE} }});"
        f"if (2 ** overviewLevel({T}, {T}) !== {edges[1]}) throw new Error('other cells than the page');"
        f'import {{ scaleEnd }} from "{web.as_uri()}/parts/map_scale.js";'
        f"const end = scaleEnd(Float32Array.from({visible.tolist()}), {{ most: 1 }});"
        'console.log(JSON.stringify([end, ramp("light").colours, ramp("light", true).colours]));'
    )
    said = subprocess.run(
        ["node", "--input-type=module"], input=script, capture_output=True, text=True, check=True
    )
    end, *ramps = json.loads(said.stdout)
    drawn = plot(m).axes[0]
    shown = drawn.collections[0] if T == 40 else drawn.images[0]
    assert shown.norm.vmax == end
    assert f"the darkest is {end:.0%} " in m._repr_mimebundle_()["text/html"]
    for signed, colours in zip((False, True), ramps, strict=True):
        own = colour_map(signed)(torch.linspace(0, 1, 256).numpy())[:, :3] * 255
        assert abs(own - torch.tensor(colours).numpy()).max() < 8


def drawn(m, **options):
    file = io.StringIO()
    print_map(Console(file=file, width=80, **options), m)
    return file.getvalue().splitlines()


def first_and_previous(T):
    q = torch.zeros(T, T + 1)
    q[range(T), range(T)] = q[range(1, T), range(T - 1)] = 9.0
    return regard.attention_map(q, torch.eye(T, T + 1), mask=regard.causal, scale=1.0)


def test_shades_where_there_is_no_colour():
    lines = drawn(first_and_previous(8))
    assert len(lines) == 4
    assert all(len(line) <= 8 for line in lines)
    assert lines[0].startswith("█")
    assert lines[0][2:].strip() == ""  # nobody sees the future
    assert lines[3].rstrip().endswith("█")


def test_two_rows_a_line_in_colour_and_a_long_map_is_pooled():
    lines = drawn(first_and_previous(300), force_terminal=True, color_system="truecolor")
    assert len(lines) == 32
    assert all(line.count("▀") == 64 for line in lines)
    assert "\x1b[38;2;" in lines[0]
