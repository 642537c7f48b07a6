"""The line once kernels are compiled: in a terminal, once, and not for kernels that are on disk."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")
from regard.attention.backends.triton import compile_notice

OURS, THEIRS = (
    SimpleNamespace(fn=SimpleNamespace(module=name))
    for name in ("regard.attention.kernels", "torch.inductor")
)


def test_the_first_kernel_that_is_compiled_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_notice, "_is_watched", lambda: True)
    heard: list[dict[str, Any]] = []
    notice = compile_notice.CompileNotice(lambda **event: heard.append(event))
    notice(src=OURS, cache_hit=True, times=None)
    notice(src=THEIRS, cache_hit=False, times=None)
    notice(
        src=SimpleNamespace(path="a.ttir"), cache_hit=False, times=None
    )  # compiled from a file: has no function
    assert capsys.readouterr().err == ""
    notice(src=OURS, cache_hit=False, times=None)
    notice(src=OURS, cache_hit=False, times=None)
    assert capsys.readouterr().err == compile_notice.LINE + "\n"
    assert [event["cache_hit"] for event in heard] == [
        True,
        False,
        False,
        False,
        False,
    ]  # by the other listener


def test_a_log_file_gets_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    compile_notice.CompileNotice()(src=OURS, cache_hit=False, times=None)
    assert capsys.readouterr().err == ""


@pytest.mark.at_length("test_the_first_kernel_that_is_compiled_is_announced_once")
def test_triton_calls_the_listener_once_kernels_are_loaded() -> None:
    program = (
        "import regard.attention.backends.triton.pool_kernel, triton\n"
        "print(type(triton.knobs.compilation.listener).__name__)\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "CompileNotice\n"
