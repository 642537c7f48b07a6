"""Captures show themselves: a page in the background, in a notebook, in a file."""

from __future__ import annotations

import sys
import types
import urllib.request
from pathlib import Path

import pytest

from regard.recorder import Capture
from regard.show import viewer
from tests.captures import captured


def test_a_page_is_served_until_it_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    seen = captured(8)
    running = seen.show(open=False, block=False)
    assert running.address in capsys.readouterr().err
    assert running in viewer._servers  # also when nobody holds on to it
    with urllib.request.urlopen(running.address) as answer:
        assert answer.status == 200
    running.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(running.address)
    viewer._servers.remove(running)


def test_the_browser_is_opened_only_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    viewer.open_browser("http://127.0.0.1:1/")
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    viewer.open_browser("http://127.0.0.1:1/")
    assert opened == ["http://127.0.0.1:1/"]


@pytest.fixture
def in_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(kernel=object())
    # Matplotlib asks for the version when a process draws for the first time.
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", ipython)


@pytest.mark.usefixtures("in_notebook")
def test_in_a_notebook_show_is_the_page_and_a_large_one_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = captured(8, model="<b>bold</b>")
    small = seen.show()._repr_mimebundle_()["text/html"]
    outside, _, frame = small.partition("<iframe")
    assert 'sandbox="allow-scripts allow-downloads allow-modals"' in frame
    assert "allow-same-origin" not in frame
    assert "<script" not in small  # all of it stands inside the attribute
    assert "attention" in outside  # for readers whose notebook leaves the frame out
    assert "data:image/png" in outside
    monkeypatch.setattr(viewer, "MOST_INLINE", seen.nbytes - 1)
    large = seen.show()._repr_mimebundle_()["text/html"]
    assert "<iframe" not in large
    assert "&lt;b&gt;bold" in large
    assert "seen.to_html(" in large
    assert "nothing yet" in viewer.InlinePage(Capture())._repr_mimebundle_()["text/html"]


def test_save_writes_a_page(tmp_path: Path) -> None:
    captured(8).to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(FileNotFoundError, match="make it first"):
        captured(8).to_html(tmp_path / "no" / "page.html")
