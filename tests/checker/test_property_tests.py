"""The tests on the pages of the mistakes: each passes on the right program and fails on the wrong one."""

import sys
import types

import pytest
import torch
import torch.distributed as dist

from regard.checker.catalogue import CATALOGUE
from regard.checker.examples import (
    DISTRIBUTED_TEMPLATES,
    MODULE,
    PROPERTY_TESTS,
    code_of_test,
    kinds_with_a_test,
    mended_program,
    plant_mistake,
)
from tests import forks
from tests.sampling import share

PAIRS = [(name, kind) for name, mistake in CATALOGUE.items() for kind in kinds_with_a_test(mistake)]
HERE = [pair for pair in PAIRS if pair[1] not in DISTRIBUTED_TEMPLATES]
ON_RANKS = [pair for pair in PAIRS if pair[1] in DISTRIBUTED_TEMPLATES]


def passes(code, source):
    """Whether the test in `code` passes with `source` as the reader's module."""
    module = types.ModuleType(MODULE)
    exec(source, module.__dict__)
    sys.modules[MODULE] = module
    try:
        names = {"__name__": "test_attention"}
        exec(code, names)
        (test,) = [value for name, value in names.items() if name.startswith("test_")]
        torch.manual_seed(0)
        test()
    except Exception:
        return False
    else:
        return True
    finally:
        del sys.modules[MODULE]


@pytest.mark.parametrize(("name", "kind"), share(HERE, 4))
def test_it_passes_on_the_right_program_and_fails_on_the_wrong_one(name, kind):
    mistake = CATALOGUE[name]
    code = code_of_test(mistake, kind)
    assert passes(code, mended_program(mistake, kind))
    assert not passes(code, plant_mistake(mistake, kind))


def test_every_mistake_has_a_test_and_every_test_finds_something():
    assert all(kinds_with_a_test(mistake) for mistake in CATALOGUE.values())
    assert {mistake.test for mistake in CATALOGUE.values()} == PROPERTY_TESTS.keys()
    for test in PROPERTY_TESTS.values():
        assert all(f"def test_{test.name.replace('-', '_')}():" in code for code in test.codes.values())


def run_on_rank(rank, programs, file, results):
    """Run several tests in one of two processes, and report which passed."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    results.put((rank, [passes(code, source) for code, source in programs]))
    dist.destroy_process_group()


def test_on_two_ranks_they_pass_on_the_right_programs_and_fail_on_the_wrong_ones(tmp_path):
    programs, right = [], []
    for name, kind in ON_RANKS:
        code = code_of_test(CATALOGUE[name], kind)
        programs += [
            (code, mended_program(CATALOGUE[name], kind)),
            (code, plant_mistake(CATALOGUE[name], kind)),
        ]
        right += [True, False]
    context = forks.context()
    results = context.SimpleQueue()
    ranks = [
        context.Process(target=run_on_rank, args=(rank, programs, tmp_path / "store", results))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    passed = dict(results.get() for _ in ranks)
    for process in ranks:
        process.join()
    # A wrong program may be right on one rank: the mistake shows on the other.
    assert [all(on_ranks) for on_ranks in zip(passed[0], passed[1], strict=True)] == right
