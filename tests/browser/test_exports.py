"""What the views save: figures with real text on white paper, and the numbers behind them."""

import csv
import re
from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import expect

from tests.captures import captured

RUN = {
    "name": "a run",
    "steps": [0, 100],
    "text": {"induction": {"heads": [[[0.1, 0.2]], [[0.3, 0.4]]], "null": [0.05, 0.05]}},
    "validation": [4.0, 3.0],
    "sample": ["", ""],
    "loss": {"steps": [50], "values": [3.5]},
}
WORLD = ["你", "好", "مرحبا", "👩‍👩‍👧", " naïve", "⇥", " Привет", " $x$", "<b>&", '"q"']
FIGURES = {
    "map": [
        "layer 1, head 2",
        "Text: “A text”",
        "key (attended to)",
        "hidden by the mask",
        "One cell is one weight.",
    ],
    "text": ["layer 1, head 2", "Text: “A text”", "attends to"],
    "heads": ["what its heads do", "Layer\n0,\nhead", "previous\ntoken", "Score\ninduction"],
    "steps": ["layer 1, head 2", "Softmax", "sum\nof\nthe\nrow"],
    "cache": ["what a cache keeps", "Layer\n1,\nhead\n2", "attention kept"],
    "time": ["induction over training", "head 0.1", "uniform", "validation"],
}


@pytest.fixture
def context_options():
    return {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"}


def test_every_view_is_a_figure_with_text_on_white_paper(page, saved, export):
    tokens = [WORLD[i % len(WORLD)] for i in range(40)]
    seen = captured(40, tokens=tokens)
    kept = seen.retained(["tova"], budget=[10, 20])
    address = saved(seen, time=RUN, retained=kept, titles=["A text"])
    for view, words in FIGURES.items():
        page.goto(f"{address}#view={view}&layer=1&head=2&row=20")
        expect(page.locator(f"#view-{view}")).to_be_visible()
        if view in ("text", "heads", "cache"):
            expect(page.locator(f"#view-{view} :is(.tok.at, .card, .heat-cell)").first).to_be_visible()
        drawing = ElementTree.parse(export(view, "SVG"))
        texts = [text.text or "" for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
        for word in words:
            assert word in "\n".join(texts), view
        assert not re.search(r"arrow keys?|Enter|press", " ".join(texts)), view  # paper has no keys
        if view == "text":
            assert {"你", "好", "مرحبا", "Привет"} <= set(texts)
    assert page.evaluate("document.documentElement.className") == ""  # the page looks as before
    assert page.evaluate("document.documentElement.dataset.theme") is None
    # The map's few cells are shapes, in the colours of paper, and nothing is dark.
    page.goto(f"{address}#view=map&layer=1&head=2")
    svg = export("map", "SVG").read_text("utf-8")
    assert "<image" not in svg
    assert 'fill="#fff"' in svg
    assert "#14161a" not in svg  # the dark theme's paper
    assert "مرحبا" in svg
    assert "&#60;b&#62;&#38;" in svg
    assert export("map", "PNG").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_printed_alone_on_a_sheet_of_its_size(page, opened):
    page.goto(f"{opened(captured(20))}#view=map&layer=1&head=2")
    expect(page.locator(".map-foot")).to_contain_text("One cell is one weight.")
    title = page.title()
    page.evaluate("window.print = () => {}")  # the dialog would wait for a reader
    page.locator("#view-map").get_by_text("Export", exact=True).click()
    page.get_by_role("menuitem", name="Print to PDF").click()
    sheet = page.locator(".print-sheet svg")
    expect(sheet).to_have_count(1)
    expect(sheet).to_be_hidden()
    assert "layer 1, head 2" in (sheet.text_content() or "")
    assert page.title() == "layer-1-head-2"  # the file's name in the dialog
    sizes = [float(sheet.get_attribute(name) or "nan") for name in ("width", "height")]
    pdf = page.pdf(prefer_css_page_size=True)
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert len(boxes) == 1  # one page
    assert [float(side) for side in boxes[0]] == pytest.approx([0.75 * size for size in sizes], abs=1)
    assert b"/Subtype /Image" not in pdf  # vectors, and text in a font
    assert b"/Type /Font" in pdf
    expect(page.locator(".print-sheet")).to_have_count(0)
    assert page.title() == title


def test_numbers_come_with_their_names(page, saved, export):
    seen = captured(30)
    address = saved(seen, time=RUN)
    tables = {}
    for view in ("map", "text", "heads", "steps", "time"):
        page.goto(f"{address}#view={view}&layer=1&head=2&row=20")
        if view in ("text", "heads"):
            expect(page.locator(f"#view-{view} :is(.tok.at, .card)").first).to_be_visible()
        with export(view, "CSV").open(encoding="utf-8", newline="") as file:
            tables[view] = list(csv.reader(file))
    dense = seen[1, 2].to_dense()[0]
    shown = torch.tensor([[float(x) for x in line[2:]] for line in tables["map"][2:]])
    torch.testing.assert_close(shown, dense, rtol=1e-3, atol=1e-6)
    true = dense[20]
    assert tables["text"][0] == ["position", "token", "weight"]
    assert [float(row[2]) for row in tables["text"][1:]] == pytest.approx(true.tolist(), rel=1e-3, abs=1e-6)
    assert len(tables["heads"]) == 1 + 8
    assert tables["heads"][0][:4] == ["layer", "head", "labels", "sentence"]
    assert "of its attention" in tables["heads"][1][3]
    assert tables["steps"][0][-1] == "weight"
    assert tables["time"] == [
        ["step", "uniform", "0.0", "0.1"],
        ["0", "0.05", "0.1", "0.2"],
        ["100", "0.05", "0.3", "0.4"],
    ]
