"""Lesson 11: a previous-token head and an induction head on words said twice, and a head on a sentence."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.learn.judges.trained_heads import encode, load_model
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import panel

TWICE = " light party hand heart light party hand heart"
LEAST = 0.05  # smaller weights are drawn without their number
SENTENCE = " He told the man that the king had left the city"
OBJECTS = {"man": "told", "king": "that", "city": "left"}  # what each noun reads in the sentence


def draw() -> dict[str, Figure]:
    """Draw the maps; what the name of each head promises is framed. The titles do not say which heads."""
    count = len(encode(TWICE)[0])
    half = count // 2
    previous = [(q, q - 1) for q in range(1, count)]
    induction = [(q, q - half + 1) for q in range(half + 1, count)]
    words = encode(SENTENCE)[1]
    partners = [(words.index(noun), words.index(word)) for noun, word in OBJECTS.items()]
    return {
        "picture": _draw_map(TWICE, (3, 3), "a head that reads the token before", previous),
        "induction": _draw_map(TWICE, (4, 0), "a head that reads what followed the copy", induction),
        "sentence": _draw_map(SENTENCE, (4, 1), "head 1 of layer 4 on a sentence", partners),
    }


def _draw_map(text: str, place: tuple[int, int], title: str, framed: list[tuple[int, int]]) -> Figure:
    """Draw the map of the head at (layer, head) of the included model, and frames around some cells."""
    ids, words = encode(text)
    layer, head = place
    weights = load_model().maps(torch.tensor([ids]))[layer].to_dense()[0, head]
    figure, ax = panel(4.3)
    hidden = ~torch.ones_like(weights, dtype=torch.bool).tril()
    draw_heatmap(ax, weights, words, words, hidden=hidden, title=title)
    for number in list(ax.texts):
        if float(number.get_text()) < LEAST:
            number.remove()
    for q, k in framed:
        ax.add_patch(Rectangle((k - 0.5, q - 0.5), 1, 1, fill=False, edgecolor="#d1495b", lw=2, zorder=5))
    return figure
