"""The gallery and the survey: every head with its scores, of linear layers as well, by mouse and by key."""

import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from regard.heads import describe
from regard.recorder import Capture, Layer
from tests.browser.eventually import eventually, expect_weight
from tests.captures import captured, hybrid, surveyed
from tests.sampling import share


def gallery(seen, score="induction"):
    """The rows in the order of the gallery: labelled heads first, each part sorted by a score."""
    return sorted(describe(seen.maps, seen.ids).sorted(score), key=lambda row: not row.labels)


def titles(page):
    return page.locator("#view-heads .card h3").all_text_contents()


def test_every_head_with_its_scores(page, opened):
    seen = captured(60)
    page.goto(opened(seen) + "#view=heads")
    expect(page.locator("#view-heads .card")).to_have_count(8)
    for card, row in zip(page.locator("#view-heads .card").all(), gallery(seen), strict=True):
        assert card.locator("h3").text_content() == f"Layer {row.layer}, head {row.head}"
        spoken = card.locator(".gallery-picture").get_attribute("aria-label") or ""
        assert spoken.startswith(f"Layer {row.layer}, head {row.head}: ")
        assert len(spoken) < 80
        assert row.sentence.split(";")[0][:24] in (card.locator(".card-sentence").text_content() or "")
        for name in ("induction", "local", "sink"):
            line = card.locator(f'.score-line[data-name="{name}"]')
            number = float((line.locator(".score-value").text_content() or "").rstrip("%"))
            assert number == pytest.approx(100 * row.scores[name].value, abs=0.5)
            assert "uniform baseline" in (line.get_attribute("title") or "")
        for label in row.labels:
            assert label.replace("_", " ") in (card.locator(".tags").text_content() or "")


def test_sorted_and_filtered(page, serve):
    seen = captured(60)
    page.goto(serve(seen).address + "#view=heads")
    expect(page.locator("#view-heads .card")).to_have_count(8)
    page.get_by_label("Score", exact=True).select_option("duplicate")
    wanted = [f"Layer {row.layer}, head {row.head}" for row in gallery(seen, "duplicate")]
    eventually(page, lambda: titles(page), lambda shown: shown == wanted)
    page.locator("#view-heads").get_by_label("Layer", exact=True).select_option("1")
    of_layer = [title for title in wanted if title.startswith("Layer 1")]
    eventually(page, lambda: titles(page), lambda shown: shown == of_layer)
    expect(page).to_have_url(
        re.compile("headScore=duplicate.*layerFilter=1|layerFilter=1.*headScore=duplicate")
    )


def test_what_a_head_is_called_and_who_is_called_so(page, serve):
    T = 40
    places = torch.eye(T)
    q = torch.stack([30 * places.roll(1, 0), 0 * places])[None]  # at the token before; at all alike
    q[0, 0, 0] = 0
    m = regard.attention_map(q, places.expand(1, 2, T, T), mask=regard.causal, scale=1.0)
    layer = captured(T).layers[0]
    seen = Capture(
        [Layer(0, "h.0", "", m, layer.evidence, (0, 1))], "two", torch.randperm(T)[None], [["t"] * T]
    )
    assert [row.label for row in describe(seen.maps, seen.ids)] == ["previous_token", None]
    page.goto(serve(seen).address + "#view=heads")
    expect(page.locator("#view-heads .card").first.locator(".tag").first).to_have_text("previous token")
    page.get_by_label("Label", exact=True).select_option("previous_token")
    expect(page.locator("#view-heads .card h3")).to_have_text(["Layer 0, head 0"])
    page.get_by_label("Label", exact=True).select_option("none")
    expect(page.locator("#view-heads .card h3")).to_have_text(["Layer 0, head 1"])


def test_by_key_alone(page, serve):
    seen = captured(40)
    second, last = gallery(seen)[1], gallery(seen)[-1]
    page.goto(serve(seen).address + "#view=heads")
    expect(page.locator("#view-heads .card")).to_have_count(8)
    page.locator("#view-heads .gallery-picture").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("c")
    expect(page.locator(".compare-title h3").nth(1)).to_contain_text(
        f"ayer {second.layer}, head {second.head}"
    )
    page.get_by_role("tab", name="Heads").click()
    page.locator("#view-heads .gallery-picture").nth(1).focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"layer={last.layer}&head={last.head}"))
    expect(page.locator("#tab-map")).to_have_attribute("aria-selected", "true")


def test_the_matrix_comes_first_and_opens_heads(page, opened):
    seen = captured(60)
    page.goto(opened(seen) + "#view=heads")
    cells = page.locator(".score-table .heat-cell")
    expect(cells).to_have_count(8)
    table = describe(seen.maps, seen.ids)
    best = table.best("induction", 1)[0]
    title = page.locator(".score-matrix h2")
    expect(title).to_contain_text(f"Layer {best.layer}, head {best.head} scores highest on induction")
    expect(page.locator(".portrait .head-sentence")).to_contain_text(best.sentence[:20])
    page.locator(".score-matrix").get_by_label("Score", exact=True).select_option("sink")
    best = table.best("sink", 1)[0]
    expect(title).to_contain_text(f"Layer {best.layer}, head {best.head} scores highest on sink")
    outlined = page.locator('.score-table .heat-cell[aria-selected="true"]')
    expect(outlined).to_have_attribute("data-head", f"{best.layer}/{best.head}")
    expect(page.locator(".portrait h3")).to_have_text(f"Layer {best.layer}, head {best.head}")
    written = [round(100 * row.scores["sink"].value) for row in table]
    expect(cells).to_have_text([str(number) for number in written])
    cells.nth(1).hover()
    expect(page.locator(".portrait h3")).to_have_text("Layer 0, head 1")
    page.locator('.score-table .heat-cell[tabindex="0"]').focus()  # layer 0, head 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".portrait h3")).to_have_text("Layer 1, head 1")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("layer=1&head=1"))
    expect(page.locator("#map-title")).to_have_text("Layer 1, head 1")
    expect(page.locator(".map-caption .head-sentence")).to_contain_text(table[1, 1].sentence[:20])


def test_cards_of_many_heads_are_built_when_they_come_near(page, serve):
    seen = captured(12, layers=8, heads=16, kv_heads=16)
    names = [f"Layer {row.layer}, head {row.head}" for row in gallery(seen, "previous_token")]
    page.goto(serve(seen).address + "#view=heads")
    slots = page.locator("#view-heads .card")
    expect(slots).to_have_count(128)
    expect(slots.first.locator("h3")).to_have_text(names[0])
    assert page.locator("#view-heads .card h3").count() < 100
    page.locator("#view-heads .gallery-picture").first.focus()
    page.keyboard.press("End")  # builds what it goes to
    expect(slots.last.locator("h3")).to_have_text(names[-1])
    expect(slots.last.locator(".gallery-picture")).to_be_focused()


def test_modules_that_are_missing_are_named(page, opened):
    sentence = "3 modules that mix tokens could not be captured and are not shown: 2 × GatedDeltaNet, <b>GRU."
    seen = captured()
    seen.missing = {"layers.0.mixer": "GatedDeltaNet", "layers.1.mixer": "GatedDeltaNet", "gru": "<b>GRU"}
    page.goto(opened(seen))
    expect(page.get_by_text(sentence)).to_be_visible()
    expect(page.locator(".grid-head .badge")).to_have_text("Incomplete")
    page.get_by_role("tab", name="Heads").click()
    expect(page.locator(".heads-warning", has_text=sentence).last).to_be_visible()


@pytest.fixture(params=share(["served", "saved"], 2))
def address(request):
    seen = captured()
    if request.param == "saved":
        save = request.getfixturevalue("saved")
        return save(seen, survey=surveyed(seen))
    serve = request.getfixturevalue("serve")
    return serve(seen, contents={"survey": surveyed(seen)}).address


def test_a_head_is_chosen_and_described(page, address):
    page.goto(address)  # it opens on the survey
    expect(page.locator("#tab-survey")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#view-survey .chart-dot")).to_have_count(8)
    expect(page.locator(".survey-examples li")).to_have_count(1)
    page.locator("#view-survey").get_by_label("Head", exact=True).select_option("1/2")
    expect(page.locator(".survey-head h2")).to_have_text("Layer 1, head 2")
    expect(page.locator(".survey-head .head-sentence")).not_to_be_empty()
    expect(page.locator(".survey-token.asking")).to_have_count(1)
    expect(page.locator(".survey-token.attended").first).to_have_attribute(
        "title", re.compile("% of the query’s attention")
    )
    expect(page.locator(".survey-bars")).to_have_count(3)
    expect(page).to_have_url(re.compile("surveyHead=1%2F2"))
    # By mouse: another head's dot.
    page.get_by_label("Horizontal score").select_option("sink")
    dot = page.locator("#view-survey .chart-dot:not(.own)").first
    dot.hover()
    expect(page.locator("#view-survey .chart-tip")).to_contain_text("Layer")
    dot.click(force=True)  # the chart listens, not its dots
    expect(page.locator(".survey-head h2")).not_to_have_text("Layer 1, head 2")
    chosen = page.locator("#view-survey").get_by_label("Head", exact=True).input_value()
    page.get_by_role("button", name="Open in Map").click()
    expect(page.locator("#tab-map")).to_have_attribute("aria-selected", "true")
    layer, head = chosen.split("/")
    expect(page).to_have_url(re.compile(f"layer={layer}&head={head}"))


@pytest.mark.parametrize("layer", share([0, 1, 2], 3))
def test_the_weights_of_linear_layers_have_signs(page, opened, layer):
    seen = hybrid()
    page.goto(f"{opened(seen)}#layer={layer}&head=3&row=20&col=17")
    m = seen.layers[layer].map
    expect_weight(page, float(m[0, 3, 20, 17]))
    expect(page.locator(".map-foot")).to_contain_text("−")  # colours of both signs
    expect(page.locator(".map-notes")).to_contain_text(m.kind)


def test_steps_name_the_layers_that_have_some(page, opened):
    page.goto(f"{opened(hybrid())}#view=steps&layer=0")
    expect(page.locator("#view-steps .empty")).to_have_text(
        "Layer 0 has no softmax: its weights come from a recurrence (gated delta rule). "
        "Choose a layer of softmax attention to see its steps: 3."
    )


def test_heads_of_linear_layers_have_the_scores_that_mean_something(page, opened):
    page.goto(f"{opened(hybrid())}#view=heads")
    card = page.locator("#view-heads .card").first
    expect(card).to_contain_text("effective length")
    expect(card).not_to_contain_text("induction")
