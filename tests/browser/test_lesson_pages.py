"""The lessons in Chromium: pictures have legible letters on every screen, and the dot product moves."""

import base64
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect

from regard.learn.course import LESSONS, get_lesson
from regard.learn.page import page_path, write_pages
from tests.sampling import share

SMALLEST = 9.0  # pixels of a letter's size
WINDOWS = (("light", 1280), ("light", 768), ("light", 390), ("dark", 390))
# Matplotlib draws letters as shapes of 100 units, and scales them to their size in points.
LETTER = re.compile(r"scale\(([\d.]+) -")
VIEW = re.compile(r'viewBox="0 0 ([\d.]+) ')
SOURCES = """() => [...document.querySelectorAll("main img, .content img")].map((img) => img.src)"""
MEASURE = """() => {
  const pictures = [...document.querySelectorAll("main img, .content img")].map((img) => {
    const { paddingLeft, paddingRight, borderLeftWidth } = getComputedStyle(img);
    const { width, right } = img.getBoundingClientRect();
    const around = parseFloat(paddingLeft) + parseFloat(paddingRight) + 2 * parseFloat(borderLeftWidth);
    return [width - around, right];
  });
  const size = (text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a;
  const texts = [...document.querySelectorAll(".movable text")].map(size);
  return { pictures, texts, overflow: document.documentElement.scrollWidth - innerWidth };
}"""


def letter_share(source):
    """The size of the smallest letter of a picture as a share of its width, from its address."""
    if source.startswith("data:"):
        svg = base64.b64decode(source.partition(",")[2]).decode("utf-8")
    else:
        svg = Path(unquote(urlsplit(source).path)).read_text(encoding="utf-8")
    width = VIEW.search(svg)
    return min(100 * float(scale) for scale in LETTER.findall(svg)) / float(width[1])


def assert_legible(page, pictures):
    """Measure the letters of so many pictures on the page in windows of every width, one of them dark."""
    shares = [letter_share(source) for source in page.evaluate(SOURCES)]
    assert len(shares) == pictures
    for theme, width in WINDOWS:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 200})  # what is not in sight is not painted
        measured = page.evaluate(MEASURE)
        assert measured["overflow"] <= 0, width
        assert all(size >= SMALLEST for size in measured["texts"])
        for part, (shown, right) in zip(shares, measured["pictures"], strict=True):
            assert part * shown >= SMALLEST, (width, shown)
            assert right <= width


@pytest.fixture(scope="module")
def lessons(tmp_path_factory):
    """A learner's folder with the pages of all lessons."""
    folder = tmp_path_factory.mktemp("lessons")
    write_pages(folder)
    return folder


def test_letters_are_legible_on_the_pages_of_the_lessons(lessons, page):
    for lesson in share(LESSONS, 4):
        page.goto(page_path(lesson, lessons).as_uri())
        assert_legible(page, lesson.text.count(".svg)"))


def test_the_dot_product_follows_the_arrows(lessons, page):
    page.goto(page_path(get_lesson(1), lessons).as_uri())
    said, k = page.locator(".movable p").first, page.get_by_role("slider", name="The vector k")
    expect(said).to_contain_text("q · k = 1.00 · 0.30 + 0.50 · 1.10 = 0.85")
    k.focus()
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    expect(said).to_contain_text("1.00 · (−0.60) + 0.50 · 1.20 = 0.00")
    expect(said).to_contain_text("The angle is 90°")
    expect(said).to_contain_text("a weight of 0.50")
    drawing = page.locator(".movable svg")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    held = k.locator("circle").nth(1).bounding_box()
    page.mouse.move(held["x"] + held["width"] / 2, held["y"] + held["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 10, box["y"] + box["height"] - 10)
    page.mouse.up()
    expect(said).to_contain_text("= −")
    expect(k).to_have_attribute("aria-valuetext", re.compile("−1.*, −1"))
