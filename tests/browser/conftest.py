"""A real Chromium and the page in it, served or from a file. What its console complains of fails a test."""

import json

import pytest
from playwright.sync_api import expect, sync_playwright

from browser import chromium
from regard.gpt.training.history import HEADS_FILE, METRICS_FILE, read_run
from regard.show.data.contents import Contents
from regard.show.saved.bundle import write
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from tests.browser.page_pool import PagePool
from tests.captures import HOSTILE, captured
from tests.patience import HANGING
from tests.sampling import share

expect.set_options(timeout=1000 * HANGING)


@pytest.fixture(scope="session")
def browser():
    path = chromium.find()
    if path is None:
        pytest.fail("there is no Chromium: `make chromium` installs one", pytrace=False)
    # A page stays in its process, which takes half a second to start, wherever it goes.
    alone = ["--process-per-site", "--renderer-process-limit=1", "--disable-site-isolation-trials"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=chromium.arguments() + alone)
        yield running
        running.close()


@pytest.fixture
def context_options():
    """What a test may override to have another window, theme or touch screen."""
    return {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"}


@pytest.fixture(scope="session")
def page_pool(browser):
    return PagePool(browser)


@pytest.fixture
def pooled_page(page_pool, context_options, request):
    failed = request.session.testsfailed
    pooled = page_pool.take(context_options)
    yield pooled
    if request.session.testsfailed > failed:  # nobody knows what is on it
        pooled.close()
    else:
        page_pool.give_back(pooled)


@pytest.fixture
def context(pooled_page):
    return pooled_page.context


@pytest.fixture
def page(pooled_page):
    """A page that may not complain: errors in the console, exceptions and dialogs fail the test.

    So does what it says in its status line, even in passing: that is where it puts promises that failed.
    """
    pooled_page.page.problems = pooled_page.problems  # a test that expects one clears it
    yield pooled_page.page
    assert pooled_page.problems == []


@pytest.fixture
def serve():
    """Serves captures on a free port of loopback; gives what has the `address`."""
    open_ = []

    def start(seen=None, *, contents=None, **site):
        shown = Contents(captured() if seen is None else seen, **({"start": None} | (contents or {})))
        open_.append(BackgroundServer(Site(shown, **site)).start())
        return open_[-1]

    yield start
    for running in open_:
        running.close()


@pytest.fixture
def saved(tmp_path, pooled_page):
    """Saves captures as one file, with the network off; gives its address. Asking for anything else fails."""

    def save(seen=None, **options):
        pooled_page.context.set_offline(True)
        path = tmp_path / "page.html"
        return write(captured() if seen is None else seen, path, **({"start": None} | options)).as_uri()

    yield save
    own = (tmp_path / "page.html").as_uri()
    assert [
        url
        for url in pooled_page.requested
        if url.partition("#")[0] != own and not url.startswith(("data:", "blob:"))
    ] == []


def pytest_generate_tests(metafunc):
    """A test of `opened` runs with a server or with a file: half of the tests with either."""
    if "opened" in metafunc.fixturenames:
        ways = share(["served", "saved"], 2, turn=len(metafunc.function.__name__))
        metafunc.parametrize("opened", ways, indirect=True)


@pytest.fixture
def opened(request):
    """The address of a page that shows captures, from a server or from a file."""
    if request.param == "saved":
        save = request.getfixturevalue("saved")
        return save
    serve = request.getfixturevalue("serve")
    return lambda seen: serve(seen).address


@pytest.fixture
def export(page, tmp_path):
    """Saves what a view shows as a file of a kind."""

    def save(view, kind):
        root = page.locator(f"#view-{view}")
        root.get_by_text("Export", exact=True).click()
        with page.expect_download() as waiting:
            root.locator("[role=menuitem]", has_text=kind).click()
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path

    return save


@pytest.fixture
def training_run(tmp_path):
    """Scores and losses at three steps of a run of two layers with three heads."""
    steps = (0, 100, 200)

    def table(step, on):
        heads = [
            [round((step / 200) * (layer * 3 + head + on) / 10, 3) for head in range(3)] for layer in range(2)
        ]
        return {
            "induction": {"heads": heads, "null": 0.05},
            "distance": {"heads": [[10.0 * x for x in row] for row in heads], "null": 7},
        }

    lines = [{"step": step, "text": table(step, 0), "repeats": table(step, 4)} for step in steps]
    (tmp_path / HEADS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = [
        {"step": step, "validation": 4 - step / 100, "sample": f"{HOSTILE[0]} {step}"} for step in steps
    ]
    losses = [{"step": step, "loss": 5 - step / 100} for step in range(1, 200)]
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in metrics + losses))
    return read_run(tmp_path)
