"""Long lists of cases that are much alike: a run takes a share of them, the same in every run.

The share is the number in `REGARD_SHARE`, 0 unless it is given; `REGARD_ALL=1` takes every case.
"""

import inspect
import os

import torch


def choose_share():
    """Set the share of this run, unless it was given."""
    os.environ.setdefault("REGARD_SHARE", "0")


def share(cases, parts, turn=0):
    """Return one part of many cases, spread over all of them; with another `turn`, another part."""
    if os.environ.get("REGARD_ALL"):
        return list(cases)
    return list(cases)[(int(os.environ["REGARD_SHARE"]) + turn) % parts :: parts]


def combine(cases, ways):
    """Return every case in one of several ways, which differs from case to case."""
    return [(case, way) for turn, case in enumerate(cases) for way in share(ways, len(ways), turn)]


def together(names, cases):
    """Try every case in one test, where a case takes less than the ten milliseconds of a test of its own.

    Like `pytest.mark.parametrize`, whose place it takes; a failure bears a note that says which case it was.
    """
    single = isinstance(names, str)
    tried = list(cases)

    def decorate(test):
        def run(**others):
            for case in tried:
                torch.default_generator.manual_seed(0)  # as before a test of its own
                try:
                    test(**({names: case} if single else dict(zip(names, case, strict=True))), **others)
                except BaseException as error:
                    error.add_note(f"The case: {case!r}")
                    raise

        signature = inspect.signature(test)
        left = [x for name, x in signature.parameters.items() if name not in ([names] if single else names)]
        run.__signature__ = signature.replace(parameters=left)  # for fixtures
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.pytestmark = getattr(test, "pytestmark", [])
        return run

    return decorate


def examples(most):
    """Return how many examples Hypothesis draws: a twelfth of the most."""
    return most if os.environ.get("REGARD_ALL") else -(-most // 12)


def describe():
    """Return what was taken, for the head of a test run."""
    if os.environ.get("REGARD_ALL"):
        return "regard: every case of what is else sampled"
    return f"regard: share {os.environ['REGARD_SHARE']} of what is sampled (REGARD_ALL=1 takes all)"
