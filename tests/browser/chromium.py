"""The Chromium that the page is tested in: finds it, and as a program installs it where there is none.

`python tests/browser/chromium.py` takes the distribution's package if it may, and Playwright's own otherwise.
Where one is there already nothing is fetched, so that it works offline.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def arguments():
    """What every test starts it with."""
    found = ["--disable-gpu", "--disable-dev-shm-usage"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        found.append("--no-sandbox")  # Chromium's own sandbox does not work for root
    return found


def find():
    """The path of a Chromium that starts, or None."""
    return next((path for path in _candidates() if _starts(path)), None)


def _candidates():
    if named := os.environ.get("CHROMIUM"):
        yield named
    for name in NAMES:
        if path := shutil.which(name):
            yield path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    if Path(path).exists():
        yield path


def _starts(path):
    """Some distributions have a stub of this name that only says where to get the real one."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0 and "Chrom" in said.stdout


def install():
    """Get one; whatever fails is said on the way, and what counts is whether one is there in the end."""
    ways = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "-qq"]
        ways = [[*apt, "update"], [*apt, "install", "-y", "chromium", "fonts-liberation"], *ways]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for way in ways:
        print("installing Chromium, for the tests of the page:", " ".join(way), flush=True)
        subprocess.run(way, env=quiet, check=False)
        if find():
            return


def main():
    if not find():
        install()
    if not find():
        sys.exit(
            "The tests of the page need a Chromium, and none could be installed. "
            "Install one, or name yours: CHROMIUM=/path/to/chromium make test"
        )


if __name__ == "__main__":
    main()
