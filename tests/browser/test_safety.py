"""Nothing that a text or a model says becomes part of the page, and no other page gets at anything."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from regard.recorder import Capture
from regard.show.server.background import BackgroundServer
from tests.captures import HOSTILE, captured

ATTACK = "<img src=x onerror=\"document.title='taken'\">"


def hostile() -> Capture:
    tokens = [
        *HOSTILE,
        ATTACK,
        "</script><script>document.title='taken'</script>",
        "--><!--",
        "]]>",
        "\ud800",
    ]
    return captured(len(tokens) * 2, tokens=tokens * 2, model=f"</title>{ATTACK}")


def visit_every_view(page: Page) -> None:
    """Opens each tab, points at what is there, and chooses a cell or a token with the keyboard."""
    tabs = page.get_by_role("tab")
    for number in range(max(1, tabs.count())):
        if tabs.count() > 1:
            tabs.nth(number).click()
        view = page.locator("main > section:not([hidden])")
        expect(view).to_be_visible()
        box = view.bounding_box()
        assert box is not None
        for share in (0.3, 0.5, 0.7):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + share * min(box["height"], 700))
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(150)


def nothing_was_taken(page: Page) -> None:
    assert page.title() != "taken"
    made = page.evaluate(
        """() => {
          const odd = (one) =>
            [...one.attributes].some((attribute) => attribute.name.startsWith("on")) ||
            one.localName === "b" ||
            (one.localName === "img" && !/^(data|blob):/.test(one.getAttribute("src"))) ||
            (one.localName === "script" && one.textContent.includes("title='taken'"));
          return [...document.querySelectorAll("*")].filter(odd).map((one) => one.outerHTML.slice(0, 200));
        }"""
    )
    assert made == []


def test_hostile_tokens_are_only_text_when_served(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    seen = hostile()
    page.goto(serve([seen, hostile()], contents={"titles": [ATTACK, "</option>" + ATTACK]}).address)
    expect(page.locator("#model")).to_have_text(seen.model)
    visit_every_view(page)
    nothing_was_taken(page)


def test_hostile_tokens_are_only_text_in_a_saved_file(page: Page, saved: Callable[..., str]) -> None:
    seen = hostile()
    page.goto(saved([seen, hostile()], titles=[ATTACK, "</option>" + ATTACK]))
    expect(page.locator("#model")).to_have_text(seen.model)
    visit_every_view(page)
    nothing_was_taken(page)


def test_a_hostile_address_is_only_an_address(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    address = serve().address
    for part in (
        f"#view={ATTACK}&layer={ATTACK}&head={ATTACK}",
        "#text=99999999&row=-5&col=1e99&zoom=1e300&x=NaN",
        "#__proto__=1&constructor=2&view=__proto__",
        "#%E0%A4%A",
    ):
        page.goto("about:blank")
        page.goto(address + part)
        expect(page.locator("canvas").first).to_be_visible()
        nothing_was_taken(page)


def test_a_name_that_was_pointed_at_this_machine_is_refused(
    page: Page, serve: Callable[..., BackgroundServer]
) -> None:
    running = serve()
    response = page.goto(f"http://rebound.example:{running.bound_address.port}/")
    assert response is not None
    assert response.status == 421
    response = page.goto(f"http://rebound.example:{running.bound_address.port}/api/meta")
    assert response is not None
    assert response.status == 421
    page.problems.clear()  # type: ignore[attr-defined]  # the console reports the refusals


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A page of somebody else's."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_page_cannot_read_post_or_frame(
    page: Page, serve: Callable[..., BackgroundServer], elsewhere: str
) -> None:
    read: list[str] = []

    def reader(text: str, tell: Callable[[str, int, int], None]) -> Capture:
        read.append(text)
        return captured(4)

    running = serve(read=reader)
    page.goto(elsewhere)
    attempt = """async ([url, options]) => {
      try { const r = await fetch(url, options); return `${r.type} ${(await r.text()).length}`; }
      catch (error) { return "failed"; }
    }"""
    own = running.address
    post = {"method": "POST", "body": '{"text": "read this"}'}
    assert page.evaluate(attempt, [f"{own}api/meta", {}]) == "failed"
    assert page.evaluate(attempt, [f"{own}api/meta", {"mode": "no-cors"}]) in ("failed", "opaque 0")
    json = {"headers": {"content-type": "application/json"}}
    assert page.evaluate(attempt, [f"{own}api/capture", {**post, **json}]) == "failed"
    assert page.evaluate(attempt, [f"{own}api/capture", {**post, "mode": "no-cors"}]) in (
        "failed",
        "opaque 0",
    )
    page.evaluate(
        """(url) => new Promise((resolve) => {
          const frame = document.createElement("iframe");
          frame.onload = frame.onerror = resolve;
          frame.src = url;
          document.body.append(frame);
        })""",
        own,
    )
    inside = page.frames[-1]
    assert inside is not page.main_frame
    assert inside.locator("#model").count() == 0
    assert read == []
    page.problems.clear()  # type: ignore[attr-defined]  # the console reports what was refused


def test_with_a_secret_in_the_address_the_page_works(
    page: Page, serve: Callable[..., BackgroundServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.show.server.guard.is_loopback", lambda host: False)
    running = serve()
    assert running.bound_address.token
    page.goto(running.address)
    expect(page.locator("#model")).to_have_text("random")
    expect(page.locator("canvas").first).to_be_visible()
    answer = page.goto(
        running.address.replace(running.bound_address.token, "x" * len(running.bound_address.token))
    )
    assert answer is not None
    assert answer.status == 403
    assert page.problems.pop().startswith("error: Failed to load resource")  # type: ignore[attr-defined]
