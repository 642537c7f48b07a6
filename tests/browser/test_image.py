"""Pictures: patches as fields, the heat of any head over them, by mouse, keyboard and touch."""

import functools
import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from scripts import digits_vit
from tests.browser.eventually import open_settings
from tests.pictures.test_pictures import IMAGE, a_photo, llava, normalised

FIRST = 3  # the first patch, after CLS and two registers


def named(row, col):
    """A patch as the page names it."""
    return f"row\u2005{row},\u2005column\u2005{col}"


@functools.cache
def digits():
    seen = digits_vit.capture_digit()
    return seen


@functools.cache
def photo_and_text():
    ids = torch.tensor([[1, 2, 3] + [IMAGE] * 9 + [4, 5, 6]])
    pixels = normalised(a_photo())[None]
    seen = regard.capture(llava(), inputs={"pixel_values": pixels, "input_ids": ids})
    seen.tokens = [["<s>", "User", ":", *["<image>"] * 9, "What", " is", " this"]]
    return seen


def strongest(weights, count=3):
    """The names of the tokens with the largest weights, as the page writes them."""
    pictures = digits().pictures
    layout = pictures.layout(0, "keys")
    return [
        str(layout.name(token)).replace(" ", "\u2005")
        for token in weights.argsort(descending=True)[:count].tolist()
    ]


def expect_ranked(page, weights):
    """Wait until the list of the strongest begins with those of these weights."""
    for place, name in enumerate(strongest(weights)):
        expect(page.locator("#view-image .ranked .token").nth(place)).to_have_text(name)


def colour_at(page, place):
    """The colour over a patch, by its number: red, green, blue and opacity."""
    colour = (
        page.locator(".text-body .tok.patch").nth(place).evaluate("e => getComputedStyle(e).backgroundColor")
    )
    red, green, blue, *opacity = (float(x) for x in re.findall(r"[\d.]+", colour))
    return int(red), int(green), int(blue), opacity[0] if opacity else 1.0


def test_cls_is_looked_from_first_and_pointing_shows_any_patch(page, opened):
    """What the page shows is what the library has: of CLS, of a patch by mouse, and of who attends to it."""
    seen = digits()
    page.goto(opened(seen) + "#layer=1&head=3")
    for tab in ("Text", "Cache"):  # there is no text
        expect(page.get_by_role("tab", name=tab)).to_have_count(0)
    expect(page.get_by_role("tab", name="Image")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#view-image .tok:not(.patch)")).to_have_count(3)
    weights = seen[1, 3].to_dense()[0]
    expect(page.locator("#view-image .big-token")).to_have_text("CLS")
    expect_ranked(page, weights[0])
    # The strongest patch is warm; over a patch that gets nothing the picture is as it was.
    patches = weights[0, FIRST:]
    red, _, blue, opacity = colour_at(page, int(patches.argmax()))
    assert red > blue + 40
    assert opacity > 0.8
    assert colour_at(page, int(patches.argmin()))[3] < 0.1

    def patch(row, col):
        return page.locator(".text-body .tok.patch").nth(8 * (row - 1) + col - 1)

    # By mouse: row 3, column 4, then pinned; a second patch under the pointer is named with its weight.
    patch(3, 4).hover()
    expect(page.locator("#view-image .big-token")).to_have_text(named(3, 4))
    patch(3, 4).click()
    query = FIRST + 2 * 8 + 3
    page.wait_for_url(f"**row={query}*")
    expect_ranked(page, weights[query])
    patch(8, 1).hover()
    expect(page.locator("#view-image .text-said")).to_contain_text(f"attends to “{named(8, 1)}”:")
    open_settings(page)
    page.get_by_label("what attends to it").check()
    patch(5, 3).click()
    expect(page.locator("#view-image .big-token")).to_have_text(named(5, 3))
    expect_ranked(page, weights[:, FIRST + 4 * 8 + 2])


def test_keys_move_between_patches_and_heads_have_small_pictures(page, serve):
    seen = digits()
    page.goto(serve(seen).address + "#layer=1&head=3")
    page.locator("#view-image .text-body").focus()
    for _ in range(FIRST):
        page.keyboard.press("ArrowRight")  # from CLS over the registers into the picture
    expect(page.locator("#view-image .big-token")).to_have_text(named(1, 1))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view-image .big-token")).to_have_text(named(2, 2))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**row={FIRST + 8 + 1}*")
    page.keyboard.press("Escape")
    page.locator("#view-image .tok", has_text="register").first.click()
    expect(page.locator("#view-image .big-token")).to_have_text("register 1")
    heads = page.locator(".head-picture")
    expect(heads).to_have_count(4)
    heads.nth(2).click()
    expect(page.get_by_label("Head", exact=True)).to_have_value("2")
    first = page.locator("#view-image .ranked .token").first
    expect(first).to_have_text(strongest(seen[1, 2].to_dense()[0, 1])[0])
    # Outliers have a ring, are named, and can be left out of the colours.
    expect(page.locator("#view-image .text-notes")).to_contain_text("Ringed:")
    open_settings(page)
    page.get_by_label("left out").check()
    expect(page.locator("#view-image .text-notes")).to_contain_text("Left out of the shading:")


def test_the_map_names_patches_and_heads_have_scores_in_two_dimensions(page, serve):
    page.goto(serve(digits()).address + f"#view=map&layer=1&head=3&row=0&col={FIRST + 8 + 4}")
    expect(page.locator("#view-map .facts").first).to_contain_text("row 2, column 5")
    page.get_by_role("tab", name="Heads").click()
    expect(page.locator("#view-heads")).to_contain_text("patch distance")
    expect(page.locator("#view-heads")).not_to_contain_text("previous token")


@pytest.fixture
def context_options(request):
    if "phone" in request.node.name:
        return {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True}
    return {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"}


def test_image_tokens_of_a_text_are_fields_of_the_picture(page, opened):
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
    expect(page.locator("#view-text .shares")).to_contain_text("text")


def test_the_picture_is_exported_with_words_and_numbers(page, saved, export):
    seen = digits()
    page.goto(saved(seen) + "#layer=1&head=3")
    expect_ranked(page, seen[1, 3].to_dense()[0, 0])

    svg = export("image", "SVG").read_text("utf-8")
    assert "<image" in svg  # the picture itself
    for words in ("layer 1, head 3", "“CLS” attends to", "amber", "A ring marks"):
        assert words in svg
    lines = [line.split(",", 1) for line in export("image", "CSV").read_text("utf-8").splitlines()]
    assert lines[0] == ["position", "token,weight"]
    assert lines[FIRST + 1][1].startswith('"row')
    numbers = [float(line.rsplit(",", 1)[1]) for _, line in lines[1:]]
    assert numbers == pytest.approx(seen[1, 3].to_dense()[0, 0].tolist(), rel=1e-3, abs=1e-6)
