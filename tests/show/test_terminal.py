"""A head in a terminal: shades without colour, two rows of cells a line with it."""

from __future__ import annotations

import io

import torch
from rich.console import Console

import regard
from regard.show.terminal import print_map


def drawn(m: regard.AttentionMap, **options: object) -> list[str]:
    file = io.StringIO()
    print_map(Console(file=file, width=80, **options), m)
    return file.getvalue().splitlines()


def first_and_previous(T: int) -> regard.AttentionMap:
    q = torch.zeros(T, T + 1)
    q[range(T), range(T)] = q[range(1, T), range(T - 1)] = 9.0
    return regard.attention_map(q, torch.eye(T, T + 1), mask=regard.causal, scale=1.0)


def test_shades_where_there_is_no_colour() -> None:
    lines = drawn(first_and_previous(8))
    assert len(lines) == 4
    assert all(len(line) <= 8 for line in lines)
    assert lines[0].startswith("█")
    assert lines[0][2:].strip() == ""  # nobody sees the future
    assert lines[3].rstrip().endswith("█")


def test_two_rows_a_line_in_colour_and_a_long_map_is_pooled() -> None:
    lines = drawn(first_and_previous(300), force_terminal=True, color_system="truecolor")
    assert len(lines) == 32
    assert all(line.count("▀") == 64 for line in lines)
    assert "\x1b[38;2;" in lines[0]
