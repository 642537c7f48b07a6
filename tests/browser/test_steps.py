"""The steps view: every number of a row as the library has it, of a model and of the small example."""

import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from regard.attention.steps import trace
from regard.recorder import Capture, Layer
from regard.recorder.certificates.output_comparison import examine
from regard.stages.example import X, multi_head, project
from tests.browser.eventually import eventually, open_settings
from tests.captures import captured


def step(page, title):
    """The figures of a step by key."""
    body = page.locator("#view-steps .step").filter(has=page.get_by_role("heading", name=title, exact=True))
    rows = body.locator(".row[data-key]").evaluate_all(
        "rows => rows.map(row => [row.dataset.key, row.querySelector('.figure').dataset.value])"
    )
    return {int(key): float(value.replace("Infinity", "inf")) for key, value in rows}


def numbers(page, title, name):
    """A line of what is folded under “All numbers”."""
    body = page.locator("#view-steps .step").filter(has=page.get_by_role("heading", name=title, exact=True))
    for line in (body.locator("pre").text_content() or "").splitlines():
        if line.startswith(name):
            return [float(x.replace("−", "-")) for x in line.removeprefix(name).split()]
    raise AssertionError(f"no line {name}")


def test_every_step_is_the_library_s(page, opened):
    seen = captured(30)
    page.goto(opened(seen) + "#view=steps&layer=1&head=3&row=20")
    expect(page.locator("#view-steps .lead")).to_contain_text(
        re.compile("How layer 1, head 3 computes .* token 20, attends to")
    )
    m, v = seen[1].q[0, 3, 20], seen.layer(1).values[0, 1]
    scores = seen[1].k[0, 1] @ m
    weights = seen[1, 3].to_dense()[0, 20]
    found = step(page, "Softmax")
    assert {0, 20} <= found.keys()
    assert len(found) >= 5
    keys = list(found)
    assert list(found.values()) == pytest.approx(weights[keys].tolist(), rel=0.01, abs=1e-6)
    assert list(step(page, "Scores").values()) == pytest.approx(scores[keys].tolist(), abs=2e-3)
    assert list(step(page, "Divided by √d").values()) == pytest.approx(
        (scores[keys] / 8**0.5).tolist(), abs=2e-3
    )
    assert numbers(page, "Output", "output") == pytest.approx((weights @ v).tolist(), abs=2e-3)
    assert numbers(page, "Query and keys", "q") == pytest.approx(m.tolist(), abs=2e-3)
    expect(page.locator("#view-steps .checks .bad")).to_have_count(0)
    expect(page.locator("#view-steps .checks")).to_contain_text(
        ["weights, added up on this page, sum to", "of what the model itself"]
    )


def test_what_the_mask_hides_and_where_it_stops_without_values(page, saved):
    seen = captured(30, mask=regard.causal & regard.window(4))
    page.goto(saved(seen, values=False) + "#view=steps&row=20")
    expect(page.locator("#view-steps .step").first).to_be_visible()
    masked = step(page, "Masked")
    assert masked[0] == float("-inf")
    assert masked[20] > float("-inf")
    assert step(page, "Softmax")[0] == 0
    expect(page.locator("#view-steps")).to_contain_text("4 of 30 keys are visible")
    expect(page.locator("#view-steps")).to_contain_text("left out to keep this file small")
    expect(page.locator("#view-steps")).to_contain_text("values=True")


def test_a_soft_cap_and_a_learned_sink(page, opened):
    torch.manual_seed(0)
    q, k, v = (3 * torch.randn(1, 2, 12, 8) for _ in range(3))
    sinks = torch.tensor([0.5, -1.0])
    m = regard.attention_map(q, k, mask=regard.causal, softcap=2.0, sinks=sinks)
    layer = Layer(0, "h.0", "", m, examine(m, v, m @ v), (0, 1), v)
    seen = Capture([layer], "capped", torch.arange(12)[None], [[f" t{i}" for i in range(12)]])
    page.goto(opened(seen) + "#view=steps&head=1&row=11")
    expect(page.get_by_role("heading", name="Capped")).to_be_visible()
    steps = trace(q, k, v, regard.causal, softcap=2.0, sinks=sinks)
    capped, weights = step(page, "Capped"), step(page, "Softmax")
    assert list(capped.values()) == pytest.approx(steps.scaled[0, 1, 11, list(capped)].tolist(), abs=2e-3)
    assert list(weights.values()) == pytest.approx(steps.weights[0, 1, 11, list(weights)].tolist(), rel=0.01)
    assert numbers(page, "Output", "output") == pytest.approx(steps.output[0, 1, 11].tolist(), abs=5e-3)
    expect(page.locator("#view-steps .checks").first).to_contain_text("the sink logit takes the rest")
    expect(page.locator("#view-steps .checks .bad")).to_have_count(0)


def test_one_text_that_looks_at_another(page, opened):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    m = regard.attention_map(q, k)
    seen = Capture([Layer(0, "cross.0", "cross", m, examine(m, v, m @ v), (0, 1), v)], "crossed")
    seen.tokens, seen.target_tokens = [["k0", "k1", "k2", "k3", "k4"]], [["q0", "q1", "q2", "q3", "q4", "q5"]]
    page.goto(opened(seen) + "#view=steps&row=3")
    expect(page.locator("#view-steps .checks").first).to_contain_text(
        "All 5 weights, added up on this page, sum to 1.0"
    )
    expect(page.locator("#view-steps .lead")).to_contain_text("q3, token 3,")
    expect(page.locator("#view-steps .step").nth(1).locator(".token").first).to_have_text("k0")
    page.click("#tab-text")
    best = int(m[0, 0, 3].to_dense().argmax())
    expect(page.locator("#view-text .tok")).to_have_count(11)
    expect(page.locator("#view-text .ranked .token").first).to_have_text(f"k{best}")
    page.click("#tab-heads")
    expect(page.locator("#view-heads .card")).to_have_count(2)
    if page.url.startswith("file:"):  # a saved page has the view only if there was something to measure
        expect(page.locator("#tab-cache")).to_have_count(0)
    else:
        page.click("#tab-cache")
        expect(page.locator("#view-cache .lead")).to_contain_text("has no cache to measure")


def test_keys_go_from_token_to_token_and_the_number_of_keys_changes(page, serve):
    page.goto(serve(captured(40, width=16)).address + "#view=steps&row=10")
    before = page.get_by_label("Previous token")
    before.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#view-steps .lead")).to_contain_text("token 9")
    expect(page).to_have_url(re.compile("row=9"))
    page.locator("#view-steps").get_by_label("Token", exact=True).select_option(label="·t7 (33)")
    expect(page.locator("#view-steps .lead")).to_contain_text("token 33")
    # One key that the mask hides, and the products of one score, the largest first.
    masked = page.locator("#view-steps .step", has_text="Masked")
    expect(masked.locator(".hidden-key .figure")).to_have_text("−∞")
    products = page.locator("#view-steps .products")
    products.locator("summary").click()
    figures = products.locator(".figure").all_inner_texts()
    numbers = [float(text.replace("−", "-").replace("≈", "")) for text in figures]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.01)
    assert [abs(x) for x in numbers[:-2]] == sorted((abs(x) for x in numbers[:-2]), reverse=True)
    shown = page.locator("#view-steps .step").nth(1).locator(".row[data-key]")
    few = shown.count()
    open_settings(page)
    page.get_by_label("Strongest keys").focus()
    page.keyboard.press("End")
    eventually(page, shown.count, lambda count: count > few)


def test_the_small_example_is_that_of_the_stages(page, opened):
    page.goto(opened(captured(12)) + "#view=steps")
    page.get_by_label("the small example").check()
    view = page.locator("#view-steps")
    view.get_by_label("Token", exact=True).select_option(label="learns (2)")
    q, k, v = project(X)
    stages = {
        "1 Simplified": regard.scaled_dot_product_attention(X, X, X, scale=1.0)[1],
        "2 Trainable": regard.scaled_dot_product_attention(q, k, v, scale=1.0)[1],
        "3 Scaled": regard.scaled_dot_product_attention(q, k, v)[1],
        "4 Causal": regard.scaled_dot_product_attention(q, k, v, regard.causal)[1],
    }
    with torch.no_grad():
        both = multi_head(2).attention(X)[1]
    stages |= {"6 Two heads, head 1": both[0], "6 Two heads, head 2": both[1]}
    for name, weights in stages.items():
        view.get_by_label("Stage").select_option(name)
        expect(view.locator(".lead")).to_contain_text(name.split(",")[0])
        row = pytest.approx(weights[2].tolist(), abs=1e-6)
        eventually(page, lambda: list(step(page, "Softmax").values()), lambda shown, row=row: shown == row)
        expect(view.locator(".checks .bad")).to_have_count(0)
