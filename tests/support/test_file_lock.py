"""Locks: one owner at a time, who is named to the second, and who cannot leave a lock behind."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from regard.support.file_lock import FileLock, InUseError

OWNER = """
import os, sys, time
from pathlib import Path
from regard.support.file_lock import FileLock
folder = Path(sys.argv[1])
lock = FileLock(folder / ".lock", "out", folder)
{then}
print("locked", flush=True)
time.sleep(60)
"""


def owner(folder, then=""):
    """A process that has locked a folder, and has then done something."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    return process


def take(folder):
    return FileLock(folder / ".lock", "out", folder)


def test_the_second_is_told_who_is_first_and_what_to_do(tmp_path):
    process = owner(tmp_path)
    message = (
        rf"out: .*{tmp_path.name} is in use by process {process.pid} on .*: "
        "wait until it ends, or choose another place"
    )
    try:
        with pytest.raises(InUseError, match=message):
            take(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.communicate()
    # A killed owner has left its file, which locks nothing and is not in the way.
    assert (tmp_path / ".lock").exists()
    with take(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    assert list(tmp_path.iterdir()) == []


def test_the_children_of_a_killed_owner_do_not_hold_its_lock(tmp_path):
    process = owner(tmp_path, "os.setsid()\nif os.fork() == 0: time.sleep(60)")
    try:
        with pytest.raises(InUseError):
            take(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        take(tmp_path).release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_child_that_ends_leaves_the_lock_to_its_parent(tmp_path):
    """Even one that runs the exit handlers which it inherits."""
    process = owner(tmp_path, "if os.fork() == 0: lock.release(); sys.exit()\nos.wait()")
    try:
        with pytest.raises(InUseError, match=f"process {process.pid} "):
            take(tmp_path)
    finally:
        process.kill()
        process.communicate()


def test_the_owner_in_a_file_cannot_write_to_a_terminal(tmp_path):
    with take(tmp_path):
        (tmp_path / ".lock").write_text("\x1b[2Jprocess 7")
        with pytest.raises(InUseError, match=r"is in use by \[2Jprocess 7: wait"):
            take(tmp_path)
        (tmp_path / ".lock").write_text("")
        with pytest.raises(InUseError, match="is in use by another process: wait until it ends"):
            take(tmp_path)


def test_a_file_system_without_flock_is_said_to_be_one(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=r"no flock here .*: a second run in the same place"):
        take(tmp_path).release()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "valuable").write_text("content")
    (tmp_path / ".lock").symlink_to(tmp_path / "valuable")
    with pytest.raises(OSError, match="out: expected a place that can be written to"):
        take(tmp_path)
    assert (tmp_path / "valuable").read_text() == "content"


READ_ONLY = """
import os, sys
from pathlib import Path
from regard.gpt.training.run_folder import check_folder
from regard.heads.corpus_survey.survey import check_out
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere: another user tries
folder = Path(sys.argv[1])
for check, place in ((check_folder, folder), (check_folder, folder / "run"), (check_out, folder / "out.csv")):
    try:
        check(place)
    except OSError as error:
        print(error)
"""


@pytest.mark.at_length("test_a_link_in_place_of_the_lock_is_not_followed")
def test_a_read_only_folder_is_reported_as_such():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, name], capture_output=True, text=True, check=True
        )
        os.chmod(name, 0o755)
        message = (
            f"out: expected a place that can be written to, got {name}, which is read-only for this user\n"
        )
        assert done.stdout == 3 * message
        assert os.listdir(name) == []
