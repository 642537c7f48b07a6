"""Conformance: cases on disk, and a program in NumPy that is right or makes one mistake."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.conformance import judge, write_cases
from regard.conformance.case_draw import make_cases
from regard.conformance.case_folder import INDEX, TENSORS
from tests.conformance.wrong_lines import UNNAMED, WRONG
from tests.sampling import share

PROGRAM = Path(__file__).with_name("numpy_attention.py")
MOST = 5 << 20  # bytes of a folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases")).parent


@pytest.fixture(scope="module")
def right_outputs(folder):
    """The right outputs and log-sum-exps, by name."""
    answers = load_file(folder / TENSORS)
    return {name: x for name, x in answers.items() if name.endswith((".output", ".lse"))}


def judge_tensors(folder, tmp_path, tensors):
    save_file({n: x.clone().contiguous() for n, x in tensors.items()}, tmp_path / "results.safetensors")
    return judge(folder, tmp_path / "results.safetensors")


def judge_program(folder, results, lines):
    """Judge the results of the program with other lines."""
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
    assert len(judgement.verdicts) == 2 * 89, "outputs and log-sum-exps"


# In every run one that makes NaN, which is told apart from NaN of other causes.
@pytest.mark.parametrize("name", dict.fromkeys([*share(WRONG, 56), "zero-times-infinity"]))
def test_a_wrong_line_is_named_first(folder, tmp_path, name):
    judgement = judge_program(folder, tmp_path / "results.safetensors", WRONG[name])
    assert judgement.verdict == "wrong"
    assert judgement.mistakes[0] == name.partition("/")[0], str(judgement)
    assert judgement.mistakes[0] in str(judgement)


def test_mistakes_of_gradients_are_named(folder, tmp_path):
    wanted = ("output", "dq", "dk", "dv", "lse")
    results = {n: x for n, x in load_file(folder / TENSORS).items() if n.partition(".")[2] in wanted}
    assert judge_tensors(folder, tmp_path, results).ok
    detached = {n: x * 0 if n.endswith((".dq", ".dk")) else x for n, x in results.items()}
    assert judge_tensors(folder, tmp_path, detached).mistakes == ["weights-detached"]


def test_the_folder_is_small_and_the_same_every_time(folder, tmp_path):
    assert sum(path.stat().st_size for path in folder.iterdir()) < MOST
    write_cases(tmp_path / "again")
    for name in (INDEX, TENSORS):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    write_cases(tmp_path / "other", seed=1)
    assert (tmp_path / "other" / TENSORS).read_bytes() != (folder / TENSORS).read_bytes()


def test_what_is_not_there_is_not_judged(folder, tmp_path):
    judgement = judge_tensors(folder, tmp_path, {"plain.output": torch.zeros(2, 4, 7, 7)})
    assert judgement.verdict == "wrong"
    assert "expected (2, 4, 7, 6), got (2, 4, 7, 7)" in str(judgement)
    assert len(judgement.missing) == 88
    assert judge_tensors(folder, tmp_path, {"other": torch.zeros(1)}).verdict == "undecided"
    assert json.loads(judgement.to_json())["results"][0]["error"] is None


@pytest.mark.at_length("test_a_wrong_line_is_named_first")
@pytest.mark.parametrize(
    ("one", "other"), [("no-scale", "top-left-causal"), ("softcap-dropped", "grouped-heads-tiled")]
)
def test_two_mistakes_at_once_are_both_named(folder, tmp_path, one, other):
    judgement = judge_program(folder, tmp_path / "results.safetensors", [*WRONG[one], *WRONG[other]])
    assert set(judgement.together) == {one, other}, str(judgement)
    assert judgement.mistakes == []
    assert f"WRONG: {' and '.join(judgement.together)}" in str(judgement)


def test_results_for_other_inputs_are_recognised(folder, tmp_path):
    answers = load_file(write_cases(tmp_path / "other", seed=3).parent / TENSORS)
    outputs = {n: x for n, x in answers.items() if n.endswith(".output")}
    judgement = judge_tensors(folder, tmp_path, outputs)
    assert (judgement.verdict, judgement.other_seed, judgement.mistakes) == ("wrong", 3, [])
    assert "right for other inputs, those of seed 3" in " ".join(str(judgement).split())
    noise = {n: torch.randn(x.shape) for n, x in outputs.items()}
    text = " ".join(str(judge_tensors(folder, tmp_path, noise)).split())
    assert "Were they computed from the inputs of this folder?" in text


def test_a_broken_folder_is_answered_in_a_sentence(folder, tmp_path):
    with pytest.raises(ValueError, match=INDEX):
        judge(tmp_path, tmp_path / "results")
    write_cases(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps(index | {"version": 3}))
    with pytest.raises(ValueError, match="version 2, got 'regard-conformance', version 3"):
        judge(tmp_path, tmp_path / "results")
    (tmp_path / INDEX).write_text(json.dumps(index | {"sha256": "0"}))
    with pytest.raises(ValueError, match="write it anew"):
        judge(tmp_path, tmp_path / "results")


# Pairs of features that no case has together, each with the reason.
UNTESTED = {
    ("causal", "ahead"): "a causal query sees no later key",
    ("cache", "ahead"): "a later piece is not there yet",
    **{("cache", x): "the pieces have as many queries as keys" for x in ("fewer queries", "more queries")},
    **{("cache", x): "it would have to come in pieces, too" for x in ("mask", "bias", "packed")},
    **{("packed", x): "kernels of packed sequences take lengths" for x in ("mask", "bias", "padding")},
}


def test_every_two_features_are_in_one_case_or_left_out_with_a_reason():
    features = [set(case.features()) for case in make_cases()]
    pairs = itertools.combinations(sorted(set().union(*features)), 2)
    untested = {frozenset(pair) for pair in pairs if not any(set(pair) <= f for f in features)}
    assert untested == {frozenset(pair) for pair in UNTESTED}


@pytest.mark.at_length("test_a_wrong_line_is_named_first")
@pytest.mark.parametrize("name", UNNAMED)
def test_a_kernel_that_is_wrong_in_a_corner_is_not_called_right(folder, tmp_path, name):
    """None of these is a mistake of the catalogue; each is right in most cases."""
    lines, where = UNNAMED[name]
    judgement = judge_program(folder, tmp_path / "results.safetensors", lines)
    assert judgement.verdict == "wrong"
    assert judgement.mistakes == []
    assert judgement.where == where
    assert not where or f"cases with: {', '.join(where)}." in " ".join(str(judgement).split())


def test_zeros_and_nan_are_no_mistake_of_the_catalogue(folder, tmp_path, right_outputs):
    judgement = judge_tensors(folder, tmp_path, {n: torch.zeros_like(x) for n, x in right_outputs.items()})
    assert (judgement.verdict, judgement.mistakes, judgement.together) == ("wrong", [], [])
    assert "plain.output: all zeros: nothing was written" in str(judgement)
    assert "89 of 89 outputs are all zeros" in str(judgement)
    judgement = judge_tensors(folder, tmp_path, {n: x * torch.nan for n, x in right_outputs.items()})
    assert (judgement.mistakes, judgement.nearest) == ([], "")
    assert "plain.output: NaN in 336 of 336 numbers" in str(judgement)
    assert "89 of 89 outputs have NaN or inf" in str(judgement)
    zeros = {n: x * 0 if n.startswith("packed") else x for n, x in right_outputs.items()}
    judgement = judge_tensors(
        folder, tmp_path, {n: x.nan_to_num(neginf=-torch.inf) for n, x in zeros.items()}
    )
    assert judgement.mistakes == []
    assert judgement.where == []  # packed sequences in bfloat16 are right
    assert "11 of 89 outputs are all zeros: nothing was written there" in str(judgement)


@pytest.mark.at_length("test_a_right_program_is_right")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", "0.005"), ("bfloat16", "0.04")])
def test_the_tolerance_is_that_of_the_dtype_in_which_a_result_is_written(
    folder, tmp_path, right_outputs, dtype, tolerance
):
    written = {name: x.to(getattr(torch, dtype)) for name, x in right_outputs.items()}
    judgement = judge_tensors(folder, tmp_path, written)
    assert judgement.verdict == "right", str(judgement)
    assert f"{tolerance} in {dtype}" in str(judgement)
    # In float32 the same numbers are wrong.
    assert judge_tensors(folder, tmp_path, {n: x.float() for n, x in written.items()}).verdict == "wrong"


def test_results_without_an_output_are_not_right(folder, tmp_path, right_outputs):
    lse = {name: x for name, x in right_outputs.items() if name.endswith(".lse")}
    judgement = judge_tensors(folder, tmp_path, lse)
    assert (judgement.verdict, judgement.ok) == ("undecided", False)
    assert str(judgement).startswith("undecided: no output is there")
    wrong = {name: torch.where(x.isfinite(), x, torch.nan) for name, x in lse.items()}
    judgement = judge_tensors(folder, tmp_path, wrong)
    assert judgement.verdict == "wrong", "NaN is no −∞"
    assert "No output is there; wrong is lse" in str(judgement)


@pytest.mark.parametrize(
    "fill",
    [
        "np.float32(-1e9)",
        pytest.param(
            "np.finfo(np.float32).min",
            marks=pytest.mark.at_length("test_a_mask_of_finite_numbers_is_named_by_its_empty_rows"),
        ),
    ],
)
def test_a_mask_of_finite_numbers_is_named_by_its_empty_rows(folder, tmp_path, fill):
    lines = [("np.where(visible, scores, -np.inf)", f"np.where(visible, scores, {fill})")]
    judgement = judge_program(folder, tmp_path / "results.safetensors", lines)
    assert judgement.mistakes == ["finite-mask-value"], str(judgement)
    both = [*lines, *WRONG["no-scale"]]
    judgement = judge_program(folder, tmp_path / "results.safetensors", both)
    assert (judgement.mistakes, judgement.elsewhere) == (["no-scale"], [])
