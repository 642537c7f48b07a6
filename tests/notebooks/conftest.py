"""Real notebooks in a real Chromium: `make test-notebook` installs them and runs these files.

They are not part of `make test`, which tests the widget's messages and its module without them.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser import chromium

ROOT = Path(__file__).parents[2]
FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "HOME")
expect.set_options(timeout=60_000)  # a notebook takes its time


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.arguments())
        yield running
        running.close()


@pytest.fixture
def start(tmp_path):
    """Starts a notebook's server as a module of Python; gives its origin. It ends with the test."""
    running = []

    def run(*command):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        folders = {name: str(tmp_path / name) for name in FOLDERS}
        (tmp_path / "HOME").mkdir()
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # the kernel imports the tests' captures
        environment = {**os.environ, **folders, "PYTHONPATH": paths}
        arguments = [sys.executable, "-m", *command, f"--port={port}"]
        with (tmp_path / "log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    arguments,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    cwd=tmp_path,
                    start_new_session=True,  # a group of its own, with its kernels
                )
            )
        origin = f"http://127.0.0.1:{port}"
        for _ in range(120):
            with suppress(OSError):
                urllib.request.urlopen(origin, timeout=5).close()
                return origin
            time.sleep(0.5)
        pytest.fail((tmp_path / "log").read_text()[-2000:])

    yield run
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)  # asked to end while its kernel restarts, it hangs
        process.wait()


@pytest.fixture
def open_page(browser):
    """Opens an address of a notebook. Requests to any other server, on this machine too, are refused."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(60_000)

    def visit(origin, path):
        context.route("**/*", lambda route: _pass_on(route, origin))
        page = context.new_page()
        page.goto(origin + path)
        return page

    yield visit
    context.close()


def _pass_on(route, origin):
    address = route.request.url
    is_own = address.startswith((f"{origin}/", "data:", "blob:"))
    route.continue_() if is_own else route.abort()
