"""The documentation site in Chromium, from disk: what it asks for, what it shows, on a phone as well."""

import pytest
from playwright.sync_api import expect

from scripts.docs import LESSONS, place
from tests.sampling import share

pytestmark = pytest.mark.at_length("test_sphinx_follows_every_link_of_the_documents")


def addresses(site):
    """A page of each kind."""
    lesson = place(LESSONS[-1].folder / "lesson.md").with_suffix(".html")
    names = ["index.html", str(lesson), "reference/index.html", "transformers.html", "performance.html"]
    return [(site / name).as_uri() for name in names]


def test_no_request_leaves_the_site(site, page, context):
    asked = []
    context.on("request", lambda request: asked.append(request.url))
    for address in [*addresses(site), (site / "search.html").as_uri() + "?q=induction"]:
        page.goto(address, wait_until="load")
    expect(page.locator("#search-results li").first).to_be_visible()
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize(
    ("query", "noun"),
    share(
        [
            ("causal mask", "mask"),
            ("softmax", "similarity"),
            ("multi-head", "heads"),
            ("positional", "positions"),
            ("kv cache", "cache"),
        ],
        2,
    ),
)
def test_a_search_finds_the_lesson_of_its_subject_first(site, page, query, noun):
    page.goto((site / "search.html").as_uri() + "?q=" + query.replace(" ", "+"))
    lesson = next(lesson for lesson in LESSONS if lesson.noun == noun)
    first = page.locator("#search-results li a").first
    expect(first).to_have_text(f"{lesson.number} {lesson.title}")


def test_the_contents_of_a_page_are_visible_at_1280_pixels(site, page):
    page.goto((site / "reference" / "maps.html").as_uri())
    contents = page.locator(".toc-drawer").get_by_role("link", name="regard.AttentionMap", exact=True)
    expect(contents).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_arrow_keys_turn_the_slides(site, page):
    page.goto((site / "_static" / "slides.html").as_uri() + "#2")
    expect(page.get_by_role("heading", name=f"0 {LESSONS[0].title}")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("section.shown img").first).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("heading", name="Attention from nothing")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("section.shown h2")).to_contain_text(f"{LESSONS[-1].title}: takeaways")


def test_the_page_of_regard_is_live_in_a_document(site, page):
    page.goto((site / "inspector.html").as_uri())
    frames = page.locator("figure.live-page iframe")
    assert frames.count() == 3
    for index, title in enumerate(("Map", "Text", "Steps")):
        frames.nth(index).scroll_into_view_if_needed()
        shown = frames.nth(index).content_frame
        expect(shown.get_by_role("tab", name=title)).to_have_attribute("aria-selected", "true")
    expect(frames.nth(2).content_frame.get_by_text("So the query of “learns”")).to_be_visible()


def test_the_model_runs_on_the_first_page(site, page):
    page.goto((site / "index.html").as_uri())
    shown = page.locator("figure.live-page iframe").first.content_frame
    shown.get_by_text("Read another text").first.click()
    shown.get_by_label("A text to read").fill("The ship left the harbour. The ship left the")
    shown.get_by_role("button", name="Read it").click()
    expect(shown.locator("#text option:checked")).to_contain_text("The ship left")


def test_a_session_is_copied_without_prompts_and_output(site, page, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto((site / "reference" / "attention.html").as_uri())
    block = page.locator("div.highlight", has_text="which_backend(q, k, v, softcap=30.0)")
    block.hover()
    button = block.get_by_role("button", name="Copy")
    # The button says so for a moment only, which a busy machine may miss: the page itself takes note of it.
    button.evaluate(
        "b => new MutationObserver(() => (b.title += b.textContent + ' ')).observe(b, {childList: true})"
    )
    button.click()
    expect(block.locator("button[title*=Copied]")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "regard.which_backend(q, k, v, softcap=30.0).backend"


@pytest.mark.parametrize("context_options", [{"viewport": {"width": 390, "height": 844}}], ids=["phone"])
def test_nothing_is_wider_than_a_phone(site, page, context_options):
    for address in addresses(site):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
