"""Contrast as the style sheets have it, in both themes: 4.5:1 for text, 3:1 for controls (WCAG 2.2, AA)."""

import re
from typing import NamedTuple

import pytest

from regard.show.saved import bundle

TEXT, CONTROL = 4.5, 3.0
GROUNDS = ("--paper", "--raised", "--sunken")
SHEETS = sorted(bundle.FOLDER.rglob("*.css"))
# Controls that are not buttons of their own look: their border is what shows where they are.
FIELDS = {".choice .options", ".place-input", ".prompt", ".switch-track"}
# Buttons that are pictures: their content shows where they are, the border only trims it.
PICTURES = {".thumb", ".gallery-picture"}
GRAPHICS = ("--accent", "--below", "--edited", "--first", "--second", "--other", "--good", "--bad", "--soft")


class Rule(NamedTuple):
    selector: str
    declarations: dict[str, str]
    sheet: str


def rules():
    """Every rule of every style sheet, those inside @media as well; forced colours are the system's."""
    for path in SHEETS:
        text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
        text = re.sub(r"@media \(forced-colors.*?\n\}", "", text, flags=re.DOTALL)
        for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
            pairs = (line.partition(":") for line in body.split(";") if ":" in line)
            declarations = {name.strip(): value.strip() for name, _, value in pairs}
            yield Rule(" ".join(selector.split()), declarations, path.name)


TOKENS = {
    name: value for rule in rules() if rule.selector == ":root" for name, value in rule.declarations.items()
}


def colour(value, theme):
    """The hexadecimal colour of a value in a theme, or None if it has none of its own."""
    if token := re.search(r"var\((--[a-z-]+)\)", value):
        return colour(TOKENS[token[1]], theme) if token[1] in TOKENS else None
    if pair := re.search(r"light-dark\((#\w+), (#\w+)\)", value):
        return pair[1] if theme == "light" else pair[2]
    literal = re.search(r"#[0-9a-f]{6,8}\b", value)
    return literal[0] if literal else None


def channels(colour):
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))


def over(colour, ground):
    """The channels of a colour, which may be translucent, on a ground."""
    alpha = int(colour[7:9], 16) / 255 if len(colour) > 7 else 1.0
    pairs = zip(channels(colour), channels(ground), strict=True)
    return tuple(alpha * above + (1 - alpha) * below for above, below in pairs)


def luminance(channels):
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def least_contrast(value, rule, theme):
    """The least contrast of a colour with the ground that its rule sets, or with all grounds of the page."""
    own = colour(value, theme)
    assert own, f"{rule.sheet}, {rule.selector}: {value} is no colour that this test can read"
    pages = [colour(ground, theme) or "" for ground in (f"var({name})" for name in GROUNDS)]
    set_by_rule = rule.declarations.get("background") or rule.declarations.get("background-color") or ""
    ground = colour(set_by_rule, theme)
    grounds = [over(ground, page) for page in pages] if ground else [channels(page) for page in pages]
    return min(contrast(channels(own), below) for below in grounds)


def border(rule):
    """What a rule says about a border's colour, if it says something."""
    value = rule.declarations.get("border-color") or rule.declarations.get("border", "")
    return value if colour(value, "light") else None


def is_control(rule):
    parts = {part.strip() for part in rule.selector.split(",")}
    if parts & FIELDS or ":hover" in rule.selector:
        return True
    return rule.declarations.get("appearance") == "none" and not parts & PICTURES


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme):
    faint = {}
    texts = [(rule, name) for rule in rules() for name in ("color", "fill") if name in rule.declarations]
    for rule, name in texts:
        # What has an outline is seen by it.
        value = rule.declarations["stroke" if name == "fill" and "stroke" in rule.declarations else name]
        if value in ("inherit", "currentColor", "transparent", "none"):
            continue
        ratio = least_contrast(value, rule, theme)
        if ratio < TEXT:
            faint[f"{rule.sheet} {rule.selector}"] = round(ratio, 2)
    assert len(texts) > 80
    assert faint == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_controls_can_be_seen(theme):
    bordered = [(rule, value) for rule in rules() if is_control(rule) and (value := border(rule))]
    assert {part.strip() for rule, _ in bordered for part in rule.selector.split(",")} >= FIELDS | {".button"}
    ratios = {f"{rule.sheet} {rule.selector}": least_contrast(value, rule, theme) for rule, value in bordered}
    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < CONTROL} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("token", GRAPHICS)
def test_bars_lines_and_focus_rings_can_be_seen(token, theme):
    assert least_contrast(f"var({token})", Rule("", {}, "theme.css"), theme) >= CONTROL


def test_the_definition_of_contrast():
    white, black, grey = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), channels("#767676")
    assert contrast(white, black) == pytest.approx(21)
    assert contrast(grey, white) == pytest.approx(4.54, abs=0.005)  # the known least grey on white
