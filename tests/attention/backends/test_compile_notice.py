"""The line while kernels are compiled: in a terminal, once, and not for kernels that are on disk."""

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
from regard.attention.backends.triton import compile_notice

OURS, THEIRS = (SimpleNamespace(module=name) for name in ("regard.attention.kernels", "torch.inductor"))


def _compile(notice: compile_notice.CompileNotice, fn: Any, seconds: float) -> None:
    notice.before(fn=fn, key="")
    time.sleep(seconds)
    notice.after(fn=fn, key="")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_notice, "SECONDS", 0.05)


def test_a_kernel_that_takes_long_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_notice, "_is_watched", lambda: True)
    calls: list[str] = []
    notice = compile_notice.CompileNotice(
        lambda **_: calls.append("before"), lambda **_: calls.append("after")
    )
    _compile(notice, OURS, 0.0)
    _compile(notice, THEIRS, 0.3)
    assert capsys.readouterr().err == ""
    _compile(notice, OURS, 0.3)
    _compile(notice, OURS, 0.3)
    assert capsys.readouterr().err == compile_notice.LINE + "\n"
    assert calls == ["before", "after"] * 4  # the hooks of others


def test_a_log_file_gets_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    _compile(compile_notice.CompileNotice(), OURS, 0.3)
    assert capsys.readouterr().err == ""


def test_triton_calls_the_hooks_once_kernels_are_loaded() -> None:
    program = (
        "import regard.attention.backends.triton.pool_kernel, triton\n"
        "hook = triton.knobs.runtime.jit_cache_hook\n"
        "print(type(hook.__self__).__name__, hook.__name__)\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "CompileNotice before\n"
