"""Ring attention and Ulysses on two processes: planted mistakes are named."""

import pytest

from regard.checker import CheckError, check, sandbox
from regard.checker.catalogue import THEMES
from regard.checker.examples import DISTRIBUTED_TEMPLATES, NAMES, plant_mistake
from regard.checker.ranks import distributed
from regard.checker.ranks.distributed import (
    adapt_for_ranks,
    judge,
    make_trials,
    reference_of_whole,
    run_ranks,
)
from tests.checker.planting import load, uproot
from tests.sampling import share

RING = DISTRIBUTED_TEMPLATES["ring"]
DISTRIBUTED_MISTAKES = THEMES["several processes"]
TRANSPOSED = """

def ring_with_lse(q, k, v, is_causal, process_group, return_lse=False):  # (B, T/n, H, D)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = ring_attention(q, k, v, is_causal, process_group)
    return (out.transpose(1, 2), lse[..., 0]) if return_lse else out.transpose(1, 2)
"""
BROKEN = """

def fails_on_one_rank(q, k, v, rank, world_size):
    if rank == 1:
        raise ValueError(f"rank {rank} of {world_size} is tired")
    dist.barrier()
    return v


def waits_in_vain(q, k, v):
    if dist.get_rank() == 0:
        dist.recv(v, 1)
    return v


def linear(q, k, v):
    return q @ (k.mT @ v)


def ring_linear(q, k, v):
    state = k.mT @ v
    dist.all_reduce(state)
    return q @ state


def forgetful(q, k, v):
    dist.barrier()
    return q @ (k.mT @ v)
"""
# Variations that are written into the right ring: the name that each must get.
VARIATIONS = {
    "own_block_only": ("k, v = exchange(k, group), exchange(v, group)", "pass", "stale-ring-step"),
    "values_stale": (
        "k, v = exchange(k, group), exchange(v, group)",
        "k = exchange(k, group)",
        "stale-ring-step",
    ),
    "others_visible": ("keys <= at if", "(keys <= at) | (source != rank) if", "causal-offset-by-rank"),
    "own_triangle": ("keys <= at if", "torch.ones(T, T).tril().bool() if", "causal-offset-by-rank"),
    "summed": (
        "out = torch.exp(lse - merged) * out + torch.exp(block_lse - merged) * block",
        "out = out + block",
        "merge-without-lse",
    ),
    "unscaled": (" / D**0.5", "", "no-scale"),
    "striped": (
        "at = rank * T + torch.arange(T)[:, None]\n        keys = source * T + torch.arange(T)",
        "at = rank + n * torch.arange(T)[:, None]\n        keys = source + n * torch.arange(T)",
        "striped",
    ),
}
TRIED = share([name for name in VARIATIONS if name != "striped"], 3)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The findings about every example and every variation, from one start of the processes."""
    folder = tmp_path_factory.mktemp("ranks")
    programs = {kind: (kind, source) for kind, source in DISTRIBUTED_TEMPLATES.items()}
    for mistake in DISTRIBUTED_MISTAKES:
        for kind in mistake.plants:
            programs[mistake.name] = (kind, plant_mistake(mistake, kind))
    for name in (*TRIED, "striped"):
        old, new, _ = VARIATIONS[name]
        assert old in RING
        programs[name] = ("ring", RING.replace(old, new))
    specs = {}
    for name, (kind, source) in programs.items():
        file = folder / f"{name.replace('-', '_')}.py"
        file.write_text(source)
        specs[name] = f"{file}:{NAMES[kind]}"
    subjects = {
        name: adapt_for_ranks(load(source, NAMES[kind]), {}, 2) for name, (kind, source) in programs.items()
    }
    uproot()
    trials = make_trials(subjects["ring"], 2, {})
    answers = run_ranks(list(specs.values()), 2, {}, trials)
    assert all(isinstance(result, dict) for result in answers.values()), answers
    return {n: judge(subjects[n], 2, trials, answers[spec], {}) for n, spec in specs.items()}


@pytest.mark.parametrize("kind", DISTRIBUTED_TEMPLATES)
def test_the_templates_are_right(reports, kind):
    assert {(check.name, check.status) for check in reports[kind].checks} >= {
        ("output", "passed"),
        ("causal", "passed"),
    }
    assert reports[kind].diagnoses == []


@pytest.mark.parametrize("name", [mistake.name for mistake in DISTRIBUTED_MISTAKES])
def test_a_planted_mistake_is_the_first_diagnosis(reports, name):
    assert reports[name].diagnoses[0].name == name
    assert any(check.status == "failed" for check in reports[name].checks)
    assert "expected" in reports[name].example


@pytest.mark.parametrize("variation", TRIED)
def test_other_forms_of_the_mistakes_are_named(reports, variation):
    assert [diagnosis.name for diagnosis in reports[variation].diagnoses] == [VARIATIONS[variation][2]]


def test_another_order_of_tokens_is_undecided(reports):
    assert "striped order" in reports["striped"].undecided
    assert not any(check.status == "failed" for check in reports["striped"].checks)


@pytest.mark.at_length("test_a_planted_mistake_is_the_first_diagnosis")
def test_the_layout_is_found_and_the_lse_compared(tmp_path, in_this_process):
    (tmp_path / "ring.py").write_text(RING.replace("return out", "return out, lse") + TRANSPOSED)
    report = sandbox.check_in_process(f"{tmp_path}/ring.py:ring_with_lse", {"processes": 2})
    assert report.verdict == "right", str(report)
    assert {check.name for check in report.passed} == {"output", "causal", "lse"}
    assert "(B, T/n, H, D)" in report.assumptions[0]


@pytest.mark.at_length("test_a_planted_mistake_is_the_first_diagnosis")
def test_errors_are_told_and_a_reference_says_what_is_right(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "WAITING", 5.0)  # less, and slow ranks seem to wait
    (tmp_path / "broken.py").write_text(RING + BROKEN)
    fails, waits = (f"{tmp_path}/broken.py:{name}" for name in ("fails_on_one_rank", "waits_in_vain"))
    trials = [{"sizes": {"T": 4}, "flag": None}]
    rings = [f"{tmp_path}/broken.py:{name}" for name in ("ring_linear", "forgetful")]
    results = run_ranks([*rings, fails, waits], 2, {}, trials)
    linear = load(RING + BROKEN, "linear")
    subject = adapt_for_ranks(linear, {}, 2)
    whole = reference_of_whole(linear, subject, {}, {})
    for spec, verdict in zip(rings, ("passed", "failed"), strict=True):
        assert judge(subject, 2, trials, results[spec], {}, whole).checks[0].status == verdict
    assert results[fails] == "rank 1 raised ValueError: rank 1 of 2 is tired"
    assert results[waits].startswith("the ranks wait for each other (5 s)")


def one_sequence(x):
    return x


def test_what_cannot_be_run_on_processes_is_refused():
    with pytest.raises(CheckError, match=r"top level of a file.*--processes 2"):
        check(lambda q, k, v: v, processes=2)
    with pytest.raises(CheckError, match="from 2 to 16"):
        check(one_sequence, processes=1)
    with pytest.raises(CheckError, match=r"expected a function of \(q, k, v\)"):
        check(one_sequence, processes=2)
