"""`regard stages`: what it prints and draws, and how its figure reaches the disk."""

import io
import itertools
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from regard.stages.figures.figure import draw_stages
from regard.stages.figures.picture import draw_heatmap, print_heatmap, save_figure
from regard.stages.figures.walkthrough import walk
from regard.support.cells import RAMP, ink, shade

MATRIX = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
HIDDEN = torch.tensor([[False, True], [False, False]])


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def lightness(colour):
    return 116 * luminance(colour) ** (1 / 3) - 16  # CIE L*


def test_colours_darken_in_even_steps():
    steps = [lightness(a) - lightness(b) for a, b in itertools.pairwise(RAMP)]
    assert min(steps) > 0.7 * max(steps) > 0


def test_numbers_can_be_read_on_every_shade():
    for percent in range(101):
        paper, text = luminance(shade(percent / 100)), luminance(ink(percent / 100))
        assert (max(paper, text) + 0.05) / (min(paper, text) + 0.05) >= 3.5


def test_heatmap_has_labels_numbers_and_hatching():
    ax = Figure().subplots()
    draw_heatmap(ax, MATRIX, ["a", "b"], ["c", "d"], hidden=HIDDEN, title="weights")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key (attended to)", "query")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["c", "d"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    texts = {text.get_position(): text for text in ax.texts}
    assert {place: text.get_text() for place, text in texts.items()} == {
        (0, 0): "1.00",
        (0, 1): "0.25",
        (1, 1): "0.75",
    }
    assert texts[0, 1].get_color() == ink(0.0)  # dark on light
    assert texts[1, 1].get_color() == ink(1.0)  # light on dark
    (ground,) = ax.patches  # behind the cells, of which the hidden one is left open
    assert (ground.get_xy(), ground.get_width(), ground.get_hatch()) == ((-0.5, -0.5), 2, "///")
    assert ax.collections[0].get_array().mask.tolist() == [[False, True], [False, False]]


def test_heatmap_refuses_labels_that_do_not_fit():
    with pytest.raises(ValueError, match=r"matrix: expected \(3, 2\).*got \(2, 2\)"):
        draw_heatmap(Figure().subplots(), MATRIX, "abc", "ab")


def printed(colour):
    out = io.StringIO()
    console = Console(file=out, force_terminal=colour, color_system="truecolor" if colour else None, width=80)
    print_heatmap(console, MATRIX, ["a", "b"], ["c", "d"], hidden=HIDDEN)
    return out.getvalue()


def test_terminal_heatmap_is_plain_where_there_is_no_terminal():
    lines = printed(colour=False).splitlines()
    assert [line.split() for line in lines] == [["c", "d"], ["a", "1.0000", "·"], ["b", "0.2500", "0.7500"]]
    assert len({len(line) for line in lines}) == 1


def test_terminal_heatmap_has_colours_in_a_terminal():
    red, green, blue = (int(RAMP[-1][i : i + 2], 16) for i in (1, 3, 5))
    assert f"48;2;{red};{green};{blue}" in printed(colour=True)


def test_the_picture_in_the_documents_is_this_one():
    """`regard stages --save docs/images/stages.png` draws it again."""
    from PIL import Image, ImageChops, ImageStat

    path, drawn_file = Path(__file__).parents[2] / "docs" / "images" / "stages.png", io.BytesIO()
    draw_stages().savefig(drawn_file, format="png", dpi=160)
    with Image.open(path) as stored, Image.open(drawn_file) as drawn:
        assert stored.size == drawn.size
        small, same = stored.convert("L").resize((64, 38)), drawn.convert("L").resize((64, 38))
        difference = ImageStat.Stat(ImageChops.difference(small, same))
    assert difference.mean[0] < 3  # of 255: letters may differ between versions, cells may not
    assert difference.extrema[0][1] < 60


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_a_figure_is_saved_by_its_suffix_the_same_every_time(tmp_path, suffix, start):
    first, second = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    for path in (first, second):
        figure = Figure()
        draw_heatmap(figure.subplots(), MATRIX, "ab", "cd", hidden=HIDDEN)
        assert save_figure(figure, path) == path
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_the_walk_shows_every_stage_with_its_numbers(capsys):
    before = torch.get_rng_state()
    walk()
    out = capsys.readouterr().out
    headings = [line.split("  ")[0] for line in out.splitlines() if line[:1].isdigit() and ". " in line]
    assert [heading for heading in headings if heading[:2].strip(".").isdigit()] == [
        "1. Simplified",
        "2. Trainable",
        "3. Scaled",
        "4. Causal",
        "5. Head",
        "6. Several heads",
        "7. Output projection",
        "8. Positions",
        "9. Cache",
        "10. Block and GPT",
    ]
    assert out.count("\nLook: ") == 10  # every stage says what to look at
    assert len(out.splitlines()) < 120
    for text in (
        "0.9106  1.3411  1.2896  0.6432  0.8197  0.8643",
        "Each  0.1882  0.1771  0.1821  0.1537  0.1183  0.1806",
        "rounds  0.1705  0.1788  0.1786  0.1551  0.1516  0.1655",
        "model  0.4855  0.5145       ·       ·       ·       ·",
        "output of “model”   0.509965  0.539246  0.569502",
        "its scores   1.1171  1.1993  1.2030  0.8609  0.7628  1.0292",
        "output of “model”   0.480304  0.454230",
        "output   0.553939  0.544996",
        "Each row sums to 1, give or take",
        "6 keys computed instead of 1 + 2 + … + 6 = 21",
        "agrees with torch",
    ):
        assert text in out
    assert "\x1b" not in out  # plain text where there is no terminal
    assert torch.equal(torch.get_rng_state(), before)
