"""Servers of a page, which are closed at the end of a test."""

from contextlib import ExitStack

import pytest

from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from regard.show.server.limits import Limits
from tests.captures import captured

SMALL = Limits(body=4096, characters=200, tokens=64, texts=3, generated=8)


def reader(text, report):
    report("reading", 1, 2)
    if "trouble" in text:
        raise RuntimeError("the model broke down")
    if "wrong" in text:
        raise ValueError("config.json: expected JSON")
    report("reading", 2, 2)
    return captured(len(text.split()), seed=1)


def writer(text, *, tokens, temperature=0):
    yield {"start": {"temperature": temperature}}
    for number in range(tokens):
        yield {"step": {"token": f"<{number}>"}}


def site_of(seen=None, **options):
    options = {"read": reader, "generate": writer, "limits": SMALL, **options}
    return Site(Contents(seen or captured(), start=None), **options)


@pytest.fixture
def serve():
    """Starts a server of a capture; the options are those of `Site`."""
    with ExitStack() as stack:

        def start(seen=None, *, host="127.0.0.1", **options):
            return stack.enter_context(BackgroundServer(site_of(seen, **options), host=host))

        yield start
