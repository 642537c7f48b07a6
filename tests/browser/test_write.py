"""The Write view: a real model writes and is measured."""

import pytest
from playwright.sync_api import expect

from regard.cli.parts.model import Model
from regard.gpt import GPT
from tests.captures import HOSTILE, captured


@pytest.fixture(scope="module")
def model():
    return GPT.from_pretrained("default").eval()


def table(page):
    rows = page.locator(".measured tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def test_a_model_writes_and_is_measured(page, serve, model):
    reader = Model.of(model, "GPT")
    page.goto(serve(captured(80), generate=reader.generate, read=reader.read).address + "#view=write")
    prompt = "The history of the river begins"
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_label("Number of tokens to generate").fill("6")
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Generate").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#view-write [role=status]")).to_contain_text("6 tokens generated")
    tokenizer = model.tokenizer
    P = len(tokenizer.encode(prompt).ids)
    assert (
        "".join(page.locator(".tok.new").all_inner_texts())
        == model.generate(prompt, max_new_tokens=6)[len(prompt) :]
    )
    found = table(page)
    layers, per_layer = model.config.num_layers, model.config.num_kv_heads * model.config.num_layers
    assert found["Tokens × layers computed"][:2] == [
        f"{(P + 5) * layers:,}",
        f"{sum(P + i for i in range(6)) * layers:,}",
    ]
    triangle = lambda n: n * (n + 1) // 2  # noqa: E731
    assert found["Keys read, all layers and heads"][:2] == [
        f"{(triangle(P) + sum(P + i for i in range(1, 6))) * per_layer:,}",
        f"{sum(triangle(P + i) for i in range(6)) * per_layer:,}",
    ]
    held = (P + 5) * layers * model.config.num_kv_heads * model.config.head_dim * 2 * 4
    assert found["Cache size"][0] == f"{held / 1024:.0f} KiB"
    assert found["Time per token (median)"][0].endswith("ms")
    expect(page.locator(".write-figures .chart-line")).to_have_count(2)
    expect(page.locator(".write-figures .note")).to_contain_text(
        "the model chooses the same token in every step"
    )
    assert page.locator(".computed .run").count() == 12
    # The model reads what it wrote, and every view shows it.
    page.get_by_role("button", name="Open in Text").click()
    expect(page.locator("#view-text .tok")).to_have_count(P + 6)
    expect(page.locator("#view-text .first-written")).to_have_attribute("id", f"tok-{P}")


def test_a_saved_file_shows_what_was_recorded(page, saved, model):
    lines = list(Model.of(model, "GPT").generate("The river", tokens=3))
    page.goto(saved(captured(40), generation=lines) + "#view=write")
    expect(page.locator("#view-write .lead")).to_contain_text("less computation")
    expect(page.locator("#view-write [role=status]")).to_contain_text("recorded")
    expect(page.get_by_role("button", name="Generate")).to_be_hidden()
    expect(page.locator(".tok.new")).to_have_count(3)


def test_what_the_model_says_is_only_text_and_errors_are_said(page, serve):
    def generate(text, *, tokens, temperature=0):
        yield {
            "start": {
                "tokens": HOSTILE,
                "layers": 1,
                "heads": 1,
                "kv_heads": 1,
                "context": 9,
            }
        }
        raise ValueError(f"text: {HOSTILE[0]}")

    page.goto(serve(captured(40, tokens=(HOSTILE * 5)[:40]), generate=generate).address + "#view=write")
    page.get_by_label("Prompt").fill("something")
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#view-write [role=status]")).to_contain_text(HOSTILE[0])
    assert page.locator("#view-write img").count() == 0
