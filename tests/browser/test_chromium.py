"""How a Chromium is found and installed; nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from browser import chromium


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run, each without success."""
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda way, **_: ran.append(way))
    monkeypatch.setattr(chromium, "find", lambda: None)
    return ran


def test_root_takes_the_distributions_package_and_others_playwrights(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    chromium.install()
    update, install, own = commands
    assert update[0] == install[0] == "apt-get"
    assert "chromium" in install
    assert own[1:] == ["-m", "playwright", "install", "chromium"]
    commands.clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    chromium.install()
    assert commands == [own]


def test_it_stops_at_the_first_way_that_works(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(chromium, "find", lambda: "/usr/bin/chromium" if len(commands) == 2 else None)
    chromium.install()
    assert len(commands) == 2


def test_without_one_it_says_what_to_do(commands: list[list[str]]) -> None:
    with pytest.raises(SystemExit, match="name yours: CHROMIUM="):
        chromium.main()


def test_with_one_nothing_is_run(commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "find", lambda: "/usr/bin/chromium")
    chromium.main()
    assert commands == []


def test_a_stub_that_only_says_where_to_get_it_does_not_count(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("#!/bin/sh\necho 'install the snap' >&2\nexit 1\n", encoding="utf-8")
    real.write_text("#!/bin/sh\necho 'Chromium 150.0'\n", encoding="utf-8")
    for path in (stub, real):
        path.chmod(0o755)
    assert not chromium._starts(str(stub))
    assert chromium._starts(str(real))
    assert not chromium._starts(str(tmp_path / "none"))
