"""Triton's kernels, interpreted on the CPU, what they refuse, their block lists, the line once compiled.

Whether Triton interprets is settled once for a process, when it is imported, and it must not be settled for
the other tests: so `interpreted_triton.py` runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import regard
from regard.attention.backends.problem import prepare
from regard.attention.backends.triton import compile_notice, launch
from regard.attention.masks.block_lists import cut_into_blocks, find_visible_blocks
from regard.attention.masks.grid import Band
from regard.attention.masks.views import Keys, Rows

pytest.importorskip("triton")
HERE = Path(__file__).parent
QUIETLY = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]


def test_interpreted():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", HERE / "interpreted_triton.py", *QUIETLY],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_refuses_in_a_phrase(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(1, 2, 8, 16)
    assert launch.unsupported_reason(prepare(x, x, x)) == "needs a CUDA device, not cpu"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert launch.unsupported_reason(prepare(x, x, x)) is None
    assert launch.unsupported_reason(prepare(x, x, x, dropout=0.1)) == "does not do dropout"
    assert "float64" in launch.unsupported_reason(prepare(x.double(), x.double(), x.double()))
    assert "not 300" in launch.unsupported_reason(prepare(x, x, torch.randn(1, 2, 8, 300)))
    assert "tensor_mask(8×8)" in launch.unsupported_reason(prepare(x, x, x, mask=torch.randn(8, 8)))
    assert launch.unsupported_reason(prepare(x, x, x, mask=regard.causal & regard.alibi(2))) is None


@pytest.mark.parametrize(
    ("mask", "band"),
    [
        (regard.full, Band()),
        (regard.causal, Band(ahead=0)),
        (regard.causal.top_left, Band(ahead=-4)),
        (regard.causal & regard.window(3), Band(2, 0)),
        (regard.window(3, ahead=5) & regard.window(7), Band(2, 5)),
        (Rows(regard.causal & regard.window(3), 5, 20), Band(2 + 9, -9)),
        (Keys(regard.causal, 7, 30), Band(ahead=13)),
        (Keys(Rows(regard.causal.top_left, 5, 20), 7, 30), Band(ahead=5 - 7 - 4)),
        (regard.causal & regard.prefix(2), None),
        (Rows(regard.prefix(2), 0, 6), None),
        (regard.causal | regard.window(3), None),
    ],
)
def test_band(mask, band):
    assert mask.band(6, 10) == band
    if band is not None:
        steps = torch.arange(10) - torch.arange(4, 10)[:, None]  # from a query to a key
        allowed = (steps <= (10 if band.ahead is None else band.ahead)) & (
            steps >= (-10 if band.behind is None else -band.behind)
        )
        assert torch.equal(mask.tile(range(6), range(10), (6, 10)), allowed)


@pytest.mark.parametrize(
    "mask",
    [
        regard.causal | regard.prefix(11),
        regard.chunks(5) & ~regard.window(2),
        regard.padding([0, 21]),
        regard.rule(lambda b, h, q, k: (q + k + h) % 5 < 2),
    ],
    ids=str,
)
def test_block_lists_hold_the_mask(mask):
    shape = (2, 3, 20, 37)
    rows, cols = cut_into_blocks(20, 8, torch.device("cpu")), cut_into_blocks(37, 16, torch.device("cpu"))
    found = find_visible_blocks(mask, shape, rows[0], *cols)
    for lists, turned in ((found.by_row, False), (found.by_col, True)):
        rebuilt = torch.zeros(2, 3, 24, 48, dtype=torch.bool)
        for b in range(2):
            for h in range(3):
                for own in range(3):
                    n = b * lists.batch_step + h * lists.head_step + own
                    for i in range(lists.first[n], lists.first[n + 1]):
                        r, c = (lists.block[i], own) if turned else (own, lists.block[i])
                        tile = unpack(lists.tiles[lists.tile[i]]) if i >= lists.split[n] else True
                        rebuilt[b, h, 8 * r : 8 * r + 8, 16 * c : 16 * c + 16] = tile
        expected = mask.tile(range(20), range(37), shape).expand(shape)
        assert torch.equal(rebuilt[:, :, :20, :37], expected)
        assert not rebuilt[..., 37:].any()


def unpack(tile):
    """A stored tile as booleans: the first visible key of each row and the one after the last, or bits."""
    if tile.dtype == torch.int32:
        return (torch.arange(16) >= tile[:, :1]) & (torch.arange(16) < tile[:, 1:])
    return (tile[..., None] >> torch.arange(8) & 1).flatten(-2).bool()


@pytest.mark.parametrize(
    ("mask", "side_by_side"),
    [
        (regard.causal | regard.prefix(3), True),
        (regard.causal & regard.documents(torch.arange(37)[None] // 11), True),
        (regard.rule(lambda b, h, q, k: (q + k) % 2 == 0), False),
    ],
    ids=str,
)
def test_tiles_are_spans_where_visible_keys_lie_side_by_side(mask, side_by_side):
    rows, cols = (cut_into_blocks(n, 16, torch.device("cpu")) for n in (37, 37))
    lists = find_visible_blocks(mask, (1, 1, 37, 37), rows[0], *cols).by_row
    assert len(lists.tiles)
    assert (lists.tiles.dtype == torch.int32) == side_by_side


def test_block_lists_of_a_sparse_rule_stay_small():
    # 131,072² bits would be 2 GiB; the blocks along the diagonal repeat one tile.
    n = 131_072
    index = cut_into_blocks(n, 128, torch.device("cpu"))
    found = find_visible_blocks(regard.chunks(192), (1, 1, n, n), index[0], *index)
    assert len(found.tile) < 4 * n // 128
    assert len(found.tiles) <= 9


@pytest.mark.parametrize(
    ("mask", "T", "S"),
    [
        (regard.causal, 40, 40),
        (regard.causal & regard.window(5), 20, 40),
        (regard.window(3, ahead=2), 40, 40),
        (regard.causal.top_left, 20, 40),
        (regard.causal & ~regard.window(2), 40, 40),
        (regard.causal & regard.documents(torch.arange(40)[None] // 13), 40, 40),
        (regard.documents(torch.arange(40)[None] // 13), 10, 40),
        (regard.padding([0, 7]), 40, 40),
        (regard.rule(lambda b, h, q, k: (q + k + h) % 2 == 0), 1, 40),
        (regard.rule(lambda b, h, q, k: (q + k + h) % 2 == 0), 2, 40),
    ],
)
def test_whether_a_mask_hides_keys_from_everybody(mask, T, S):
    shape, device = (2, 2, T, S), torch.device("cpu")
    truth = not bool(mask.tile(slice(0, T), slice(0, S), shape).expand(shape).any(2).all())
    rows, cols = cut_into_blocks(T, 16, device), cut_into_blocks(S, 16, device)
    assert find_visible_blocks(mask, shape, rows[0], *cols).hides_keys == truth
    if (band := mask.band(T, S)) is not None:
        assert band.hides_keys(T, S) == truth


OURS, THEIRS = (
    SimpleNamespace(fn=SimpleNamespace(module=name))
    for name in ("regard.attention.kernels", "torch.inductor")
)


def test_the_first_kernel_that_is_compiled_is_announced_once(monkeypatch, capsys):
    monkeypatch.setattr(compile_notice, "_is_watched", lambda: True)
    heard = []
    notice = compile_notice.CompileNotice(lambda **event: heard.append(event))
    notice(src=OURS, cache_hit=True, times=None)
    notice(src=THEIRS, cache_hit=False, times=None)
    notice(src=SimpleNamespace(path="a.ttir"), cache_hit=False, times=None)  # of a file: has no function
    assert capsys.readouterr().err == ""
    notice(src=OURS, cache_hit=False, times=None)
    notice(src=OURS, cache_hit=False, times=None)
    assert capsys.readouterr().err == compile_notice.LINE + "\n"
    assert [event["cache_hit"] for event in heard] == [True] + [False] * 4  # by the other listener


def test_a_log_file_gets_no_line(capsys):
    compile_notice.CompileNotice()(src=OURS, cache_hit=False, times=None)
    assert capsys.readouterr().err == ""


@pytest.mark.at_length("test_the_first_kernel_that_is_compiled_is_announced_once")
def test_triton_calls_the_listener_once_kernels_are_loaded():
    program = (
        "import regard.attention.backends.triton.pool_kernel, triton\n"
        "print(type(triton.knobs.compilation.listener).__name__)\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "CompileNotice\n"
