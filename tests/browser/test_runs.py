"""Edited runs: a head or edges are cut, and the page never takes that for the model's own run."""

import re
import threading

import pytest
from playwright.sync_api import expect

import regard
from regard.show.data.cuts import EdgeCut, HeadCut
from tests.browser.eventually import link, open_settings
from tests.captures import captured, predicted

BANNER = ".run-banner"


class Model:
    """Stands in for a model: it keeps what was asked of it, and gives other random numbers for other cuts."""

    def __init__(self, wait=None):
        self.asked = []
        self.wait = wait

    def run_cut(self, seen, cuts, report):
        self.asked.append(list(cuts))
        report("reading", 1, 2)
        while self.wait is not None and not self.wait.wait(0.01):
            report("reading", 1, 2)
        if HeadCut("0", 3) in cuts:
            raise ValueError("edits: expected an edit that acts, got one that never did")
        return predicted(captured(30, seed=len(self.asked)), seed=len(self.asked) + 1)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def address(serve, model):
    return serve(predicted(captured(30)), contents={"titles": ["The cat"]}, run_cut=model.run_cut).address


def test_a_head_is_cut_and_restored(page, address, model, export):
    page.goto(address + "#view=map&layer=1&head=2&row=20&col=3")
    expect(page.locator(BANNER)).to_be_hidden()
    switch = page.get_by_role("switch", name="Cut head 1.2")
    switch.click()
    banner = page.locator(f"{BANNER}.edited")
    expect(banner.locator(".cut-chip")).to_have_text("head 1.2 cut")
    expect(banner.locator(".run-loss")).to_have_text(
        re.compile(r"^loss \d\.\d{3} → \d\.\d{3} \([+−]\d\.\d{3,4}\)$")
    )
    expect(page.locator(".map-foot")).to_contain_text("This head is cut in this run")
    expect(page).to_have_title("Edited run · random · Regard")
    for part in ("text=1", "layer=1", "head=2", "row=20", "col=3"):  # the same cell, in the edited run
        expect(page).to_have_url(re.compile(part))
    expect(switch).to_have_attribute("aria-checked", "true")
    expect(page.locator("#text option")).to_have_text(["The cat", "↳ Edited run: head 1.2 cut"])
    assert model.asked[::2] == [[HeadCut("1", 2)]]
    (other,) = model.asked[1]  # a random head, for comparison
    assert isinstance(other, HeadCut)
    assert other != HeadCut("1", 2)
    expect(banner.locator(".run-random")).to_have_text(re.compile(r"^a random head: [+−]\d\.\d{3,4}$"))
    expect(page.locator(".thumb.cut")).to_have_attribute("aria-label", "Layer 1, head 2, cut in this run")
    figure = export("map", "SVG")
    assert figure.name == "layer-1-head-2-edited.svg"
    assert "Edited run: head 1.2 cut" in figure.read_text("utf-8")
    page.get_by_role("button", name="Undo").press("Enter")
    expect(page.locator(BANNER)).to_be_hidden()
    expect(page.locator("#main")).to_be_focused()  # what had the focus is gone
    switch.click()
    expect(banner).to_be_visible()
    for view in ("Text", "Heads", "Steps", "Cache"):
        page.get_by_role("tab", name=view).click()
        expect(banner).to_be_visible()
    page.get_by_role("tab", name="Map").click()
    switch.click()
    expect(page.locator(BANNER)).to_be_hidden()
    expect(page).to_have_title("random · Regard")
    expect(page.locator("#text option")).to_have_text(["The cat"])
    expect(switch).to_have_attribute("aria-checked", "false")


def test_what_changed_leads_to_the_token_and_both_runs_stand_side_by_side(page, address):
    page.goto(address + "#view=heads")
    page.get_by_role("switch", name="Cut head 0.1").click()
    unfold = page.get_by_role("button", name="What changed")
    unfold.click()
    expect(unfold).to_have_attribute("aria-expanded", "true")
    expect(page.locator(f"{BANNER} .changed li")).to_have_count(10)
    expect(page.locator(f"{BANNER} .likely h4")).to_have_text(["The model’s own run", "Edited run"])
    for n in (0, 1):
        expect(page.locator(f"{BANNER} .likeliest").nth(n).locator("li")).to_have_count(10)
    first = page.locator(f"{BANNER} .changed button").first
    position = int(first.locator(".place").inner_text())
    first.click()
    expect(page).to_have_url(re.compile(rf"view=text.*row={position - 1}"))
    panel = page.locator("#view-text .text-predictions")
    expect(panel.locator(".likely h4")).to_have_text(["The model’s own run", "Edited run"])
    expect(page.locator(f"{BANNER} .likely")).to_have_count(0)  # they stand under the text
    expect(page.locator("#view-text .cut-note")).to_have_count(0)
    page.locator("#view-text").get_by_label("Head", exact=True).select_option("1")
    expect(page.locator("#view-text .cut-note")).to_contain_text("Head 0.1 is cut in this run")
    expect(panel).to_contain_text(re.compile(r"In the text follows .* \(rank \d+\) → .* \(rank \d+\)\."))
    page.get_by_role("button", name="Show own run").click()
    expect(panel.locator(".likely")).to_have_count(0)
    expect(page.locator(f"{BANNER} .run-name")).to_have_text("The model’s own run")
    page.get_by_role("button", name="Show edited run").click()
    expect(panel.locator(".likely")).to_have_count(2)
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.locator(BANNER)).to_be_hidden()
    expect(panel.locator(".likely")).to_have_count(0)


def test_edges_are_cut_from_a_cell_to_a_token_and_in_view(page, address, model):
    page.goto(address + "#view=map&layer=1&head=0&row=20&col=3")
    page.get_by_role("button", name="Stop attention from “·t7” to “·t3”").click()
    expect(page.locator(".cut-chip")).to_have_text("head 1.0: “·t7” (20) cannot attend to “·t3” (3)")
    expect(page.get_by_role("button", name="Allow attention from “·t7” to “·t3”")).to_be_visible()
    page.locator(".edge-cuts").get_by_label("all heads").check()
    page.get_by_role("button", name="Stop attention from every token to “·t3” (3)").click()
    expect(page.locator(".cut-chip")).to_have_count(2)
    page.get_by_role("button", name="Undo: head 1.0: “·t7” (20) cannot attend to “·t3” (3)").click()
    expect(page.locator(".cut-chip")).to_have_text(["layer 1: no token can attend to “·t3” (3)"])
    expect(page.get_by_role("button", name="Undo", exact=True)).to_be_focused()  # the chip's own is gone
    edge, key = EdgeCut("1", 0, (20, 21), (3, 4)), EdgeCut("1", None, (0, 30), (3, 4))
    assert [model.asked[0], *model.asked[2:]] == [
        [edge],
        [edge, key],
        [key],
    ]  # the second is of a random head
    expect(page.get_by_role("button", name="Stop attention in view")).to_be_hidden()
    open_settings(page)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Stop attention in view").click()
    expect(page.locator(".cut-chip")).to_have_count(2)
    view = model.asked[-1][-1]
    assert 0 <= view.queries[0] < view.queries[1] <= 30
    assert (view.queries[1] - view.queries[0]) * (view.keys[1] - view.keys[0]) < 900


def test_a_cut_edge_is_said_to_be_cut_and_a_hidden_one_is_not_offered(page, serve):
    def run_cut(seen, cuts, report):
        return captured(30, mask=regard.causal & ~regard.rule(lambda b, h, q, k: (q == 20) & (k == 3)))

    site = serve(captured(30), run_cut=run_cut)
    page.goto(site.address + "#view=map&layer=1&head=0&row=20&col=3")
    page.get_by_role("button", name="Stop attention from “·t7” to “·t3”").click()
    expect(page.locator("#weight")).to_have_text("cut")
    expect(page.locator("#view-map .map-notes")).to_contain_text(
        "In this edited run, this query cannot attend to this key."
    )
    expect(page.get_by_role("button", name="Allow attention from “·t7” to “·t3”")).to_be_visible()
    page.goto(link(page).replace("row=20", "row=2"))
    expect(page.locator("#weight")).to_have_text("hidden")
    expect(page.locator("#view-map .map-notes")).to_contain_text("hides this key from this query")
    expect(page.get_by_role("button", name="Stop attention from “·t2” to “·t3”")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop attention from every token to “·t3”")).to_be_visible()


def test_a_cut_between_words_is_said_to_be_cut(page, serve):
    tokens = ["a", "b", " c", "d", " e"] * 6  # words of two, two and one
    cut = regard.rule(lambda b, h, q, k: (q >= 22) & (q < 24) & (k >= 7) & (k < 9))

    def run_cut(seen, cuts, report):
        assert cuts == [EdgeCut("1", 0, (22, 24), (7, 9))]
        return captured(30, tokens=tokens, mask=regard.causal & ~cut)

    site = serve(captured(30, tokens=tokens), run_cut=run_cut)
    page.goto(site.address + "#view=map&layer=1&head=0&row=22&col=7&units=words")
    expect(page.locator("#weight")).to_have_attribute("data-weight", re.compile(r"\d"))
    place = page.locator(".map-notes .facts dd").nth(1).inner_text().split()[0]
    expect(
        page.get_by_role("button", name=f"Stop attention from every token to “cd” ({place})")
    ).to_be_visible()
    expect(
        page.get_by_role("button", name="Stop attention in view")
    ).to_be_hidden()  # the whole map is in view
    page.get_by_role("button", name="Stop attention from “cd” to “cd”").click()
    expect(page.locator("#weight")).to_have_text("cut")
    expect(page.locator("#view-map .map-notes")).to_contain_text(
        "In this edited run, this query cannot attend to this key."
    )


def test_a_generation_is_said_to_be_without_the_cuts(page, serve, model):
    site = serve(predicted(captured(30)), generate=lambda *_: iter(()), run_cut=model.run_cut)
    page.goto(site.address + "#view=write")
    lead = page.locator("#view-write p").first
    expect(lead).to_contain_text("Let the model continue a text")
    expect(lead).not_to_contain_text("without the cuts")
    page.get_by_role("tab", name="Heads").click()
    page.get_by_role("switch", name="Cut head 0.1").click()
    expect(page.locator(f"{BANNER}.edited")).to_be_visible()
    page.get_by_role("tab", name="Write").click()
    expect(lead).to_contain_text("It continues without the cuts of the edited run.")


def test_keys_cut_a_head_in_the_gallery(page, address, model):
    page.goto(address + "#view=heads")
    expect(page.locator("#view-heads .gallery-picture")).to_have_count(8)  # layer by layer
    page.locator("#view-heads [data-name='0/1'] .gallery-picture").focus()
    page.keyboard.press("x")
    expect(page.locator(".cut-chip")).to_have_text("head 0.1 cut")
    expect(page.get_by_role("switch", name="Cut head 0.1")).to_have_attribute("aria-checked", "true")
    page.get_by_role("switch", name="Cut head 1.1").click()
    expect(page.locator(".cut-chip")).to_have_text(["head 0.1 cut×", "head 1.1 cut×"])
    assert model.asked[::2] == [[HeadCut("0", 1)], [HeadCut("0", 1), HeadCut("1", 1)]]
    expect(page.get_by_role("switch", name="Cut head 1.1")).to_be_focused()  # though its card is a new one
    page.locator("#text").select_option(label="The cat")
    expect(page.get_by_role("switch", name="Cut head 1.1")).to_have_attribute("aria-checked", "false")


def test_a_run_can_be_cancelled_and_a_problem_is_said(page, serve):
    go = threading.Event()
    model = Model(go)
    page.goto(serve(predicted(captured(30)), run_cut=model.run_cut).address + "#view=map&layer=0&head=1")
    page.get_by_role("switch", name="Cut head 0.1").click()
    expect(page.locator(".run-said")).to_contain_text("Running the model with the cut: layer 1 of 2")
    expect(page.get_by_role("switch", name="Cut head 0.1")).to_have_attribute("aria-disabled", "true")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(BANNER)).to_be_hidden()
    go.set()
    page.goto(link(page).replace("head=1", "head=3"))
    page.get_by_role("switch", name="Cut head 0.3").click()
    expect(page.locator(".run-said")).to_contain_text("expected an edit that acts, got one that never did")
    expect(page.locator("#text option")).to_have_count(1)


def test_a_saved_page_and_a_page_without_a_model_have_no_switches(page, opened):
    page.goto(opened(predicted(captured(30))) + "#view=map&layer=1&head=2&row=20&col=3")
    expect(page.locator("#view-map .big-number")).to_have_attribute("data-weight", re.compile("."))
    expect(page.locator("#view-map .switch")).to_be_hidden()
    expect(page.locator(".edge-cuts")).to_be_hidden()
    page.get_by_role("tab", name="Heads").click()
    expect(page.locator("#view-heads .card")).to_have_count(8)
    expect(page.locator("#view-heads .switch").first).to_be_hidden()
    page.locator("#view-heads .gallery-picture").first.focus()
    page.keyboard.press("x")
    expect(page.locator(BANNER)).to_be_hidden()
    expect(page.locator("#view-heads .note").last).not_to_contain_text("X cuts it")


def test_a_capture_that_was_edited_elsewhere_is_marked(page, opened):
    seen = predicted(captured(30))
    seen.edits = ("head 1.2 set to zero",)
    page.goto(opened(seen) + "#view=text&row=4")
    expect(page.locator(f"{BANNER}.edited .cut-chip")).to_have_text("head 1.2 set to zero")
    expect(page).to_have_title("Edited run · random · Regard")
    expect(page.locator("#view-text .likeliest")).to_have_count(1)
    for name in ("Undo", "Show own run", "What changed"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
