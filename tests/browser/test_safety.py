"""Nothing that a text or a model says becomes part of the page, and no other page gets at anything."""

import http.server
import threading
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect

from regard.show.saved.bundle import write
from tests.captures import HOSTILE, captured
from tests.patience import HANGING

ATTACK = "<img src=x onerror=\"document.title='taken'\">"


def hostile():
    tokens = [
        *HOSTILE,
        ATTACK,
        "</script><script>document.title='taken'</script>",
        "--><!--",
        "]]>",
        "\ud800",
    ]
    return captured(len(tokens) * 2, tokens=tokens * 2, model=f"</title>{ATTACK}")


def visit_every_view(page):
    """Opens each tab, points at what is there, and chooses a cell or a token with the keyboard."""
    tabs = page.get_by_role("tab")
    for number in range(max(1, tabs.count())):
        if tabs.count() > 1:
            tabs.nth(number).click()
        view = page.locator("main > section:not([hidden])")
        expect(view).to_be_visible()
        box = view.bounding_box()
        for share in (0.3, 0.5, 0.7):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + share * min(box["height"], 700))
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(150)


def nothing_was_taken(page):
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


@pytest.mark.parametrize("how", ["served", "saved"])
def test_hostile_tokens_are_only_text(page, request, how):
    seen, titles = [hostile(), hostile()], [ATTACK, "</option>" + ATTACK]
    if how == "served":
        page.goto(request.getfixturevalue("serve")(seen, contents={"titles": titles}).address)
    else:
        page.goto(request.getfixturevalue("saved")(seen, titles=titles))
    expect(page.locator("#model")).to_have_text(seen[0].model)
    visit_every_view(page)
    nothing_was_taken(page)


def test_a_hostile_address_is_only_an_address(page, serve):
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


@pytest.fixture
def requests():
    """The paths that were asked for `elsewhere`, with their headers."""
    return []


@pytest.fixture
def elsewhere(requests):
    """A page of somebody else's, which anybody may read."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(f"{self.path} {self.headers}")
            self.send_response(200)
            self.send_header("access-control-allow-origin", "*")
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_page_cannot_read_post_or_frame(page, serve, elsewhere):
    read = []

    def reader(text, tell):
        read.append(text)
        return captured(4)

    running = serve(read=reader)
    page.goto(running.address)  # the browser has the key
    expect(page.locator("#model")).to_have_text("random")
    page.goto(elsewhere)
    attempt = """async ([url, options]) => {
      try { const r = await fetch(url, options); return `${r.type} ${(await r.text()).length}`; }
      catch (error) { return "failed"; }
    }"""
    own = running.bound_address.origin
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
    page.problems.clear()  # the console reports what was refused


def test_another_port_of_this_machine_sees_a_cookie_that_opens_no_data(page, serve, elsewhere, requests):
    """Cookies do not keep ports apart: what another user's server gets must be worth nothing to it."""
    running = serve()
    page.goto(running.address)
    expect(page.locator("#model")).to_have_text("random")
    page.goto(elsewhere)
    assert page.evaluate("localStorage.getItem('regard-token')") is None
    assert [sent for sent in requests if running.bound_address.secrets.token in sent] == []
    cookie = {"cookie": f"{running.bound_address.secrets.cookie_name}={running.bound_address.secrets.cookie}"}
    assert cookie["cookie"] in " ".join(requests)  # the browser has sent it there
    stolen = urllib.request.Request(f"{running.bound_address.origin}api/meta", headers=cookie)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(stolen, timeout=HANGING)


# Each way to run other code, or to reach anybody. It waits for a task of its own: what the test runs at once
# may do more than the page's scripts.
ATTEMPTS = """(elsewhere) => new Promise((resolve) => setTimeout(async () => {
  const blob = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  const opened = (made) => new Promise((done, failed) => Object.assign(made, {
    onopen: done, onload: done, onerror: failed, onmessage: ({ data }) => data === "done" ? done() : failed(),
  }));
  const request = new XMLHttpRequest();
  request.open("GET", `${elsewhere}xhr`);
  const report = `fetch("${elsewhere}nested").then(() => postMessage("done"), () => postMessage("failed"))`;
  const attempts = {
    eval: () => (0, eval)("1"),
    function: () => new Function("return 1")(),
    wasm: () => WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])),
    fetch: () => fetch(`${elsewhere}fetch`),
    fetchWithoutCors: () => fetch(`${elsewhere}opaque`, { mode: "no-cors" }),
    xhr: () => (request.send(), opened(request)),
    socket: () => opened(new WebSocket(`${elsewhere.replace("http", "ws")}socket`)),
    events: () => opened(new EventSource(`${elsewhere}events`)),
    module: () => import(`${elsewhere}module`),
    moduleOfBlob: () => import(blob("self.taken = true")),
    remoteWorker: () => opened(new Worker(`${elsewhere}worker`)),
    nestedWorker: () => opened(new Worker(blob(report))),
  };
  if (self.importScripts) {
    attempts.script = () => importScripts(`${elsewhere}script`);
    attempts.scriptOfBlob = () => importScripts(blob("self.taken = true"));
  }
  const worked = [];
  for (const [name, attempt] of Object.entries(attempts)) {
    try { await attempt(); worked.push(name); } catch {}
  }
  resolve({ worked, tried: Object.keys(attempts).length, taken: self.taken ?? false });
}))"""


@pytest.mark.parametrize("where", ["page", "worker"])
def test_a_saved_page_and_its_worker_run_no_other_code_and_reach_nobody(
    page, tmp_path, elsewhere, requests, where
):
    page.goto(write(captured(), tmp_path / "page.html").as_uri())
    expect(page.locator(".map-stage canvas")).to_be_visible()
    if not page.workers:
        page.wait_for_event("worker")
    found = (page if where == "page" else page.workers[0]).evaluate(ATTEMPTS, elsewhere)
    assert found == {"worked": [], "tried": 12 if where == "page" else 14, "taken": False}
    assert requests == []
    page.problems.clear()  # the console reports what was refused
