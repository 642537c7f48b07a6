"""The Image view: a picture with its patches, the heat of any head over it, by mouse, keyboard and touch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

import regard
from regard.recorder import Capture
from regard.show.server.background import BackgroundServer
from scripts import digits_vit
from tests.browser.eventually import open_settings
from tests.pictures.test_pictures import IMAGE, a_photo, llava, normalised

FIRST = 3  # the first patch, after CLS and two registers


@functools.cache
def digits() -> Capture:
    seen: Capture = digits_vit.capture_digit()
    return seen


@functools.cache
def photo_and_text() -> Capture:
    ids = torch.tensor([[1, 2, 3] + [IMAGE] * 9 + [4, 5, 6]])
    pixels = normalised(a_photo())[None]
    seen = regard.capture(llava(), inputs={"pixel_values": pixels, "input_ids": ids})
    seen.tokens = [["<s>", "User", ":", *["<image>"] * 9, "What", " is", " this"]]
    return seen


def strongest(weights: torch.Tensor, count: int = 3) -> list[str]:
    """The names of the tokens with the largest weights, as the page writes them."""
    pictures = digits().pictures
    assert pictures is not None
    layout = pictures.layout(0, "keys")
    assert layout is not None
    return [
        str(layout.name(token)).replace(" ", "\u2005")
        for token in weights.argsort(descending=True)[:count].tolist()
    ]


def expect_ranked(page: Page, weights: torch.Tensor) -> None:
    """Wait until the list of the strongest begins with those of these weights."""
    for place, name in enumerate(strongest(weights)):
        expect(page.locator("#view-image .ranked .token").nth(place)).to_have_text(name)


def colour_at(picture: Locator, row: int, col: int) -> list[int]:
    """The colour of a canvas in the middle of a patch: red, green and blue."""
    colour: list[int] = picture.evaluate(
        """(canvas, [row, col]) => {
          const [x, y] = [(col + 0.5) * canvas.width / 8, (row + 0.5) * canvas.height / 8];
          const copy = new OffscreenCanvas(1, 1).getContext("2d");
          copy.drawImage(canvas, x, y, 1, 1, 0, 0, 1, 1);
          return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [row, col],
    )
    return colour


def test_cls_is_looked_from_first_and_pointing_shows_any_patch(
    page: Page, opened: Callable[..., str]
) -> None:
    """What the page shows is what the library has: of CLS, of a patch by mouse, and of who attends to it."""
    seen = digits()
    page.goto(opened(seen) + "#layer=1&head=3")
    for tab in ("Text", "Cache"):  # there is no text
        expect(page.get_by_role("tab", name=tab)).to_have_count(0)
    expect(page.get_by_role("tab", name="Image")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#view-image .chip")).to_have_count(3)
    weights = seen[1, 3].to_dense()[0]
    expect(page.locator("#view-image .big-token")).to_have_text("CLS")
    expect_ranked(page, weights[0])
    # The strongest patch is warm; a patch that gets nothing is grey.
    picture = page.locator(".image-stage .picture")
    patches = weights[0, FIRST:]
    red, _, blue = colour_at(picture, *divmod(int(patches.argmax()), 8))
    assert red > blue + 40
    red, _, blue = colour_at(picture, *divmod(int(patches.argmin()), 8))
    assert abs(red - blue) < 12
    # By mouse: row 3, column 4, then pinned; a second patch under the pointer is named with its weight.
    box = picture.bounding_box()
    assert box is not None

    def place(row: int, col: int) -> dict[str, float]:
        return {"x": (col - 0.5) * box["width"] / 8, "y": (row - 0.5) * box["height"] / 8}

    picture.hover(position=place(3, 4))
    expect(page.locator("#view-image .big-token")).to_have_text("row 3, column 4")
    picture.click(position=place(3, 4))
    query = FIRST + 2 * 8 + 3
    page.wait_for_url(f"**row={query}*")
    expect_ranked(page, weights[query])
    picture.hover(position=place(8, 1))
    expect(page.locator("#view-image .text-said")).to_contain_text("attends to row 8, column 1:")
    open_settings(page)
    page.get_by_label("what attends to it").check()
    picture.click(position=place(5, 3))
    expect(page.locator("#view-image .big-token")).to_have_text("row 5, column 3")
    expect_ranked(page, weights[:, FIRST + 4 * 8 + 2])


def test_keys_move_between_patches_and_heads_have_small_pictures(
    page: Page, serve: Callable[..., BackgroundServer]
) -> None:
    seen = digits()
    page.goto(serve(seen).address + "#layer=1&head=3")
    stage = page.locator(".image-stage")
    stage.focus()
    page.keyboard.press("ArrowRight")  # from CLS into the picture
    expect(page.locator("#view-image .big-token")).to_have_text("row 5, column 5")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#view-image .big-token")).to_have_text("row 4, column 4")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**row={FIRST + 3 * 8 + 3}*")
    page.keyboard.press("Escape")
    page.locator("#view-image .chip", has_text="register").first.click()
    expect(page.locator("#view-image .big-token")).to_have_text("register 1")
    heads = page.locator(".head-picture")
    expect(heads).to_have_count(4)
    heads.nth(2).click()
    expect(page.get_by_label("Head", exact=True)).to_have_value("2")
    first = page.locator("#view-image .ranked .token").first
    expect(first).to_have_text(strongest(seen[1, 2].to_dense()[0, 1])[0])
    # Outliers have a ring, are named, and can be left out of the colours.
    expect(page.locator("#view-image .text-notes")).to_contain_text("ringed")
    open_settings(page)
    page.get_by_label("left out").check()
    expect(page.locator("#view-image .text-notes")).to_contain_text("They are left out of the colours.")


def test_the_map_names_patches_and_heads_have_scores_in_two_dimensions(
    page: Page, serve: Callable[..., BackgroundServer]
) -> None:
    page.goto(serve(digits()).address + f"#view=map&layer=1&head=3&row=0&col={FIRST + 8 + 4}")
    expect(page.locator("#view-map .facts").first).to_contain_text("row 2, column 5")
    page.get_by_role("tab", name="Heads").click()
    expect(page.locator("#view-heads")).to_contain_text("patch distance")
    expect(page.locator("#view-heads")).not_to_contain_text("previous token")


@pytest.fixture
def context_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    if "phone" in request.node.name:
        return {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True}
    return {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"}


def test_image_tokens_of_a_text_are_fields_of_the_picture(page: Page, opened: Callable[..., str]) -> None:
    seen = photo_and_text()
    page.goto(opened(seen) + "#view=text&layer=language_model.0&head=0&row=14")
    fields = page.locator(".patch-picture .tok.patch")
    expect(fields).to_have_count(9)
    expect(fields.nth(5)).to_have_attribute("title", "row\u20052, column\u20053".replace(", ", ",\u2005"))
    expect(page.locator(".text-body")).to_contain_text("User")
    places = fields.evaluate_all("all => all.map((e) => e.getBoundingClientRect().top)")
    assert places[0] == places[2] < places[3]
    weights = seen["language_model.0", 0].to_dense()[0, 14]
    number = page.locator("#view-text .ranked button").first
    assert int(number.locator(".place").inner_text()) == int(weights.argmax())
    expect(page.locator("#view-text .ramp").nth(1)).to_contain_text("in the picture")  # its own colours
    page.get_by_role("tab", name="Image").click()
    expect(page.locator("#view-image .chip")).to_have_count(6)
    expect(page.locator("#view-image .shares")).to_contain_text("text")


def test_the_picture_is_exported_with_its_words_and_its_numbers(
    page: Page, saved: Callable[..., str], tmp_path: Path
) -> None:
    seen = digits()
    page.goto(saved(seen) + "#layer=1&head=3")
    expect_ranked(page, seen[1, 3].to_dense()[0, 0])

    def export(kind: str) -> str:
        page.locator("#view-image").get_by_text("Export", exact=True).click()
        with page.expect_download() as waiting:
            page.locator("#view-image [role=menuitem]", has_text=kind).click()
        assert waiting.value.suggested_filename == f"image-layer-1-token-0.{kind.lower()}"
        waiting.value.save_as(tmp_path / kind)
        return (tmp_path / kind).read_text("utf-8")

    svg = export("SVG")
    assert "<image" in svg  # the picture itself
    for words in ("layer 1, head 3", "CLS attends to", "amber", "A ring marks"):
        assert words in svg
    lines = [line.split(",", 1) for line in export("CSV").splitlines()]
    assert lines[0] == ["token", "name,weight"]
    assert lines[FIRST + 1][1].startswith('"row 1, column 1",')
    numbers = [float(line.rsplit(",", 1)[1]) for _, line in lines[1:]]
    assert numbers == pytest.approx(seen[1, 3].to_dense()[0, 0].tolist(), rel=1e-3, abs=1e-6)
