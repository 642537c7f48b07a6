"""The text view: point at a token by mouse or key, and read what it looks at, as the library has it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from playwright.sync_api import Page, expect

import regard
from regard.recorder import Capture, Layer
from regard.show.server.background import BackgroundServer
from tests.captures import HOSTILE, captured


def ranked(page: Page) -> list[tuple[int, float]]:
    rows = page.locator("#view-text .ranked button")
    return [
        (int(row.locator(".place").inner_text()), float(row.locator(".weight").inner_text()))
        for row in rows.all()
    ]


def exact(weight: float) -> str:
    """As the page writes it: four digits that count."""
    return f"{float(f'{weight:.4g}'):g}"


def test_pointing_shows_what_a_token_looks_at(page: Page, opened: Callable[..., str]) -> None:
    seen = captured(60)
    page.goto(opened(seen) + "#view=text&layer=1&head=2")
    page.hover("#tok-41")
    expect(page.locator("#view-text .text-notes h3").first).to_have_text("Token 41")
    weights = seen[1, 2].to_dense()[0, 41]
    found = ranked(page)
    assert [key for key, _ in found] == weights.argsort(descending=True)[:12].tolist()
    assert [w for _, w in found] == pytest.approx(
        weights.sort(descending=True).values[:12].tolist(), rel=0.01
    )
    darkest = page.locator(f"#tok-{found[0][0]}").evaluate("e => getComputedStyle(e).backgroundColor")
    assert darkest != page.locator("#tok-50").evaluate("e => getComputedStyle(e).backgroundColor")


def test_who_looks_at_it_and_the_mean_of_a_layer_and_of_all(page: Page, opened: Callable[..., str]) -> None:
    seen = captured(60)
    page.goto(opened(seen) + "#view=text&layer=0&head=1")
    page.get_by_label("what attends to it").check()
    page.click("#tok-3")
    column = seen[0, 1].to_dense()[0, :, 3]
    expect(page.locator("#view-text .ranked button .place").first).to_have_text(str(int(column.argmax())))
    assert ranked(page)[0][1] == pytest.approx(float(column.max()), rel=0.01)
    page.get_by_label("what it attends to").check()
    page.click("#tok-30")
    for option, mean in (
        ("the layer", seen[0].to_dense()[0, :, 30].mean(0)),
        ("all layers", sum(m.to_dense()[0, :, 30].mean(0) for m in seen) / 2),
    ):
        page.get_by_label(option).check()
        expect(page.locator("#view-text .text-notes p.quiet").first).to_contain_text("The mean over")
        expect(page.locator("#view-text .ranked .weight").first).to_have_text(exact(float(mean.max())))


def test_keys_walk_pin_and_let_go(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    page.goto(serve(captured(40)).address + "#view=text")
    page.locator("#view-text .text-body").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    chosen = page.locator("#view-text .text-notes h3").first
    expect(chosen).to_have_text("Token 2")
    page.keyboard.press("Enter")
    expect(chosen).to_have_text("Token 2, pinned")
    expect(page).to_have_url(re.compile("row=2"))
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".text-said")).to_contain_text("attends to “·t1”")
    page.keyboard.press("Escape")
    expect(chosen).to_have_text(re.compile(r"^Token \d+$"))
    page.keyboard.press("End")
    expect(chosen).to_have_text("Token 39")
    page.keyboard.press("ArrowUp")
    expect(chosen).not_to_have_text("Token 39")
    page.reload()
    expect(page.locator("#view-text .text-body")).to_be_visible()


def test_the_sink_is_left_out_and_said(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    seen = captured(40)
    page.goto(serve(seen).address + "#view=text&row=30")
    expect(page.locator("#view-text .ranked li")).to_have_count(12)
    page.locator("#view-text").get_by_label("left out").check()
    expect(page.locator(".text-note")).to_contain_text("Left out of the shading")
    found = re.search(r"token (\d+), with ([\d.]+)\.", page.locator(".text-note").inner_text())
    assert found is not None
    key, hidden = int(found[1]), float(found[2])
    row = seen[0, 0].to_dense()[0, 30]
    assert key == seen.heads()[0, 0].sink_key
    assert hidden == pytest.approx(float(row[key]), rel=1e-3)
    assert key not in [place for place, _ in ranked(page)]
    expect(page.locator(f"#tok-{key}")).to_have_class(re.compile("left-out"))


def test_another_text_is_read_and_shown(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    def read(text: str, tell: Callable[[str, int, int], None]) -> Capture:
        if "no" in text.split():
            raise ValueError("text: expected another one")
        tell("reading", 1, 2)
        return captured(5, tokens=text.split(" "))

    page.goto(serve(captured(20), read=read).address + "#view=text")
    page.get_by_text("Read another text").click()
    area = page.get_by_label("A text to read")
    area.fill("no")
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#view-text .reading [role=status]")).to_have_text("text: expected another one")
    area.fill("a <b>text</b> of five words")
    area.press("Control+Enter")
    expect(page.locator("#view-text .tok")).to_have_text(["a", "<b>text</b>", "of", "five", "words"])
    expect(page.locator("#text option")).to_have_count(2)
    expect(page).to_have_url(re.compile("text=1"))


def test_hostile_tokens_stay_text(page: Page, opened: Callable[..., str]) -> None:
    page.goto(opened(captured(40, tokens=(HOSTILE * 5)[:40])) + "#view=text")
    page.hover("#tok-8")
    expect(page.locator("#tok-8")).to_have_text(HOSTILE[0])
    assert page.locator("#view-text img").count() == 0


def test_thousands_of_tokens_follow_the_pointer(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    page.goto(serve(captured(4096, layers=1, heads=1, kv_heads=1)).address + "#view=text&row=4000")
    expect(page.locator("#view-text .ranked li")).to_have_count(12)
    spent = page.evaluate(
        """async () => {
          const frame = () => new Promise(requestAnimationFrame);
          const times = [];
          for (let token = 3000; token < 3030; token++) {
            const began = performance.now();
            document.getElementById(`tok-${token}`).click();
            document.body.offsetHeight;
            times.push(performance.now() - began);
            await frame();
          }
          return times.sort((a, b) => a - b)[15];
        }"""
    )
    assert spent < 100  # the median; about 10 ms on an idle machine


def test_all_layers_are_those_that_read_alike(page: Page, opened: Callable[..., str]) -> None:
    torch.manual_seed(0)
    evidence = captured(5).layers[0].evidence
    maps = [regard.attention_map(torch.randn(1, 2, T, 8), torch.randn(1, 2, 5, 8)) for T in (5, 6, 6)]
    stacks = ("encoder", "cross", "cross")
    layers = [
        Layer(n // 2, f"{stack}.{n}", stack, m, evidence, (0, 1))
        for n, (stack, m) in enumerate(zip(stacks, maps, strict=True))
    ]
    seen = Capture(layers, "crossed", None, [[f"k{n}" for n in range(5)]])
    seen.target_tokens = [[f"q{n}" for n in range(6)]]
    page.goto(opened(seen) + "#view=text&scope=all&layer=cross.1&row=3")
    mean = torch.cat([m[0, :, 3].to_dense() for m in maps[1:]]).mean(0)
    expect(page.locator("#view-text .ranked .weight").first).to_have_text(exact(float(mean.max())))
    expect(page.locator("#view-text .notes-block").first).to_contain_text("all heads of all cross layers")
    page.get_by_label("Layer", exact=True).select_option("encoder.0")
    mean = maps[0][0, :, 3].to_dense().mean(0)
    expect(page.locator("#view-text .ranked .weight").first).to_have_text(exact(float(mean.max())))
