"""A saved page computes in a worker, so that the page never waits; without one it computes by itself."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.eventually import expect_weight
from tests.captures import captured
from tests.sampling import share

ARITHMETIC = {"dotProducts", "weigh", "rowSteps", "prepare"}
WORKER = "worker-src blob:"
PLACE = "#layer=1&head=2&row=400&col=390"
# Lists questions to the worker, their answers and frames, in order; the root element says what was answered.
WATCH = """
self.happened = [];
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message.kind === "ask") {
    happened.push(`${message.name} asked`);
    this.addEventListener("message", ({ data }) => {
      if (data.id !== message.id || data.kind !== "answer") return;
      happened.push(`${message.name} answered`);
      document.documentElement.setAttribute(`data-${message.name}`, "answered");
    });
  }
  return post.call(this, message, ...rest);
};
const frame = () => (happened.push("frame"), requestAnimationFrame(frame));
requestAnimationFrame(frame);
"""


@pytest.fixture(scope="module")
def seen():
    return captured(700, width=16)


@pytest.fixture
def functions(context, page):
    """The names of the functions that ran on the page's own thread so far. The browser counts every call."""
    session = context.new_cdp_session(page)
    session.send("Profiler.enable")
    session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    counts = {}

    def ran():
        taken = session.send("Profiler.takePreciseCoverage")
        for script in taken["result"]:
            for function in script["functions"]:
                count = function["ranges"][0]["count"]
                counts[function["functionName"]] = counts.get(function["functionName"], 0) + count
        return {name for name, count in counts.items() if count}

    return ran


def test_no_arithmetic_runs_on_the_thread_of_the_page(page, saved, seen, functions):
    page.add_init_script(WATCH)
    page.goto(saved(seen) + PLACE)
    expect_weight(page, float(seen[1, 2][0, 400, 390]), 1e-2)
    assert len(page.workers) == 1
    for view, question in (("map", "tile"), ("text", "row"), ("steps", "steps")):
        page.locator(f"#tab-{view}").click()
        expect(page.locator(f"html[data-{question}]")).to_have_count(1)
    ran = functions()
    assert {"openSaved", "startWorker", "painted"} <= ran  # the page is what was counted
    assert ran & ARITHMETIC == set()


@pytest.mark.parametrize("why", share(["forbidden by a policy", "no such thing"], 2))
def test_without_a_worker_the_page_computes_by_itself(page, saved, tmp_path, seen, functions, why):
    address = saved(seen)
    path = tmp_path / "page.html"
    if why == "no such thing":
        page.add_init_script("delete self.Worker")
    else:
        text = path.read_text("utf-8")
        assert text.count(WORKER) == 1
        path.write_text(text.replace(WORKER, "worker-src 'none'"), encoding="utf-8")
    page.goto(address + PLACE)
    expect_weight(page, float(seen[1, 2][0, 400, 390]), 1e-2)
    page.locator("#tab-steps").click()
    expect(page.locator("#view-steps")).to_contain_text("700")
    assert page.workers == []
    assert {"dotProducts", "weigh", "rowSteps"} <= functions()
    if why != "no such thing":
        (problem,) = page.problems  # the console reports the refusal
        assert "Creating a worker" in problem
        page.problems.clear()


def test_what_goes_wrong_in_the_worker_is_said_on_the_page(page, saved, tmp_path):
    address = saved()
    path = tmp_path / "page.html"
    text = re.sub(r'<script [^>]*id="mask-0">[^<]*</script>', "", path.read_text("utf-8"))
    path.write_text(text, encoding="utf-8")
    page.goto(address)
    expect(page.locator("#status")).to_contain_text('The file holds no block "mask-0"')
    page.problems.clear()  # the status says so
