"""Conformance: cases on disk, and a program in NumPy that is right or makes one mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from regard.checker import CATALOGUE
from regard.conformance import judge, write_cases
from regard.conformance.case_folder import INDEX, TENSORS
from tests.conformance.wrong_lines import WRONG
from tests.sampling import share

PROGRAM = Path(__file__).with_name("numpy_attention.py")
MOST = 5 << 20  # bytes of a folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases")).parent


def judge_program(folder: Path, results: Path, lines: list[tuple[str, str]]):
    source = PROGRAM.read_text(encoding="utf-8")
    for right, wrong in lines:
        assert right in source
        source = source.replace(right, wrong)
    space = {"__name__": "numpy_attention"}
    with numpy.errstate(all="ignore"):
        exec(compile(source, "numpy_attention.py", "exec"), space)
        space["write"](results, space["solve"](folder))
    return judge(folder, results)


def test_a_right_program_is_right(folder, tmp_path):
    """It runs as a program of its own, which imports NumPy and neither PyTorch nor Regard."""
    results = tmp_path / "results.safetensors"
    subprocess.run([sys.executable, PROGRAM, folder, results], check=True)
    judgement = judge(folder, results)
    assert judgement.verdict == "right", str(judgement)
    assert judgement.missing == []
    assert len(judgement.verdicts) == 2 * 30, "outputs and log-sum-exps"


@pytest.mark.parametrize("name", share(WRONG, 4))
def test_a_wrong_line_is_named_first(folder, tmp_path, name):
    judgement = judge_program(folder, tmp_path / "results.safetensors", WRONG[name])
    assert judgement.verdict == "wrong"
    assert judgement.mistakes[0] == name.partition("/")[0], str(judgement)
    assert judgement.mistakes[0] in str(judgement)


def test_mistakes_of_gradients_are_named(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    right = load_file(folder / TENSORS)
    wanted = ("output", "dq", "dk", "dv", "lse")
    results = {name: x.clone() for name, x in right.items() if name.partition(".")[2] in wanted}
    save_file(results, tmp_path / "right.safetensors")
    assert judge(folder, tmp_path / "right.safetensors").ok
    detached = {n: x * 0 if n.endswith((".dq", ".dk")) else x for n, x in results.items()}
    save_file(detached, tmp_path / "wrong.safetensors")
    assert judge(folder, tmp_path / "wrong.safetensors").mistakes == ["weights-detached"]


def test_the_folder_is_small_and_the_same_every_time(folder, tmp_path):
    assert sum(path.stat().st_size for path in folder.iterdir()) < MOST
    write_cases(tmp_path / "again")
    for name in (INDEX, TENSORS):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    write_cases(tmp_path / "other", seed=1)
    assert (tmp_path / "other" / TENSORS).read_bytes() != (folder / TENSORS).read_bytes()


def test_inputs_are_exact_in_half_precision(folder):
    from safetensors.torch import load_file

    for name, x in load_file(folder / TENSORS).items():
        if name.endswith((".q", ".k", ".v")) and not name.startswith("large-scores"):
            exact = x.double()
            assert torch.equal(exact.half().double(), exact)
            assert torch.equal(exact.bfloat16().double(), exact)


def test_what_is_not_there_is_not_judged(folder, tmp_path):
    from safetensors.torch import save_file

    save_file({"plain.output": torch.zeros(2, 4, 7, 7)}, tmp_path / "one.safetensors")
    judgement = judge(folder, tmp_path / "one.safetensors")
    assert judgement.verdict == "wrong"
    assert "expected (2, 4, 7, 6), got (2, 4, 7, 7)" in str(judgement)
    assert len(judgement.missing) == 29
    save_file({"other": torch.zeros(1)}, tmp_path / "none.safetensors")
    assert judge(folder, tmp_path / "none.safetensors").verdict == "undecided"
    assert json.loads(judgement.to_json())["results"][0]["error"] is None


@pytest.mark.parametrize(
    ("one", "other"), [("no-scale", "top-left-causal"), ("softcap-dropped", "grouped-heads-tiled")]
)
def test_two_mistakes_at_once_are_both_named(folder, tmp_path, one, other):
    judgement = judge_program(folder, tmp_path / "results.safetensors", [*WRONG[one], *WRONG[other]])
    assert set(judgement.together) == {one, other}, str(judgement)
    assert judgement.mistakes == []
    assert f"WRONG: {' and '.join(judgement.together)}" in str(judgement)


def test_a_mistake_of_sinks_stands_beside_another(folder, tmp_path):
    lines = [*WRONG["window-off-by-one"], *WRONG["sink-dropped"]]
    judgement = judge_program(folder, tmp_path / "results.safetensors", lines)
    assert judgement.mistakes[0] == "window-off-by-one"
    assert judgement.elsewhere == ["sink-dropped"]
    assert "WRONG: window-off-by-one, and sink-dropped" in str(judgement)


def test_of_three_mistakes_at_once_one_is_named_as_nearest(folder, tmp_path):
    names = ("no-scale", "softcap-dropped", "grouped-heads-tiled")
    lines = [line for name in names for line in WRONG[name]]
    judgement = judge_program(folder, tmp_path / "results.safetensors", lines)
    assert (judgement.mistakes, judgement.together) == ([], [])
    assert judgement.nearest == "no-scale"
    assert "explains some of them" in str(judgement)


def test_results_for_other_inputs_are_recognised(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    answers = load_file(write_cases(tmp_path / "other", seed=3).parent / TENSORS)
    save_file({n: x for n, x in answers.items() if n.endswith(".output")}, tmp_path / "other.safetensors")
    judgement = judge(folder, tmp_path / "other.safetensors")
    assert (judgement.verdict, judgement.other_seed, judgement.mistakes) == ("wrong", 3, [])
    assert "right for other inputs, those of seed 3" in " ".join(str(judgement).split())
    noise = {n: torch.randn(x.shape) for n, x in answers.items() if n.endswith(".output")}
    save_file(noise, tmp_path / "noise.safetensors")
    text = " ".join(str(judge(folder, tmp_path / "noise.safetensors")).split())
    assert "Were they computed from the inputs of this folder?" in text


def test_whole_numbers_are_no_results(folder, tmp_path):
    from safetensors.torch import save_file

    save_file({"plain.output": torch.zeros(2, 4, 7, 6, dtype=torch.int32)}, tmp_path / "int.safetensors")
    judgement = judge(folder, tmp_path / "int.safetensors")
    assert "plain.output: expected floating-point numbers, got int32" in str(judgement)


def test_a_broken_folder_is_answered_in_a_sentence(folder, tmp_path):
    with pytest.raises(ValueError, match=INDEX):
        judge(tmp_path, tmp_path / "results")
    write_cases(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps(index | {"version": 2}))
    with pytest.raises(ValueError, match="version 1, got 'regard-conformance', version 2"):
        judge(tmp_path, tmp_path / "results")
    (tmp_path / INDEX).write_text(json.dumps(index | {"sha256": "0"}))
    with pytest.raises(ValueError, match="write it anew"):
        judge(tmp_path, tmp_path / "results")


def test_wrong_lines_are_mistakes_of_the_catalogue():
    assert {name.partition("/")[0] for name in WRONG} <= CATALOGUE.keys()
