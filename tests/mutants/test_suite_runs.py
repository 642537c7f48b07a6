"""`regard mutate` from end to end: processes, limits, messages, and nothing left behind."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from regard.checker.errors import CheckError
from regard.mutants import mutate
from tests.patience import has_ended, wait_until
from tests.sampling import share

ATTENTION = """
import torch

def attention(q, k, v, causal=False):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    T, S = scores.shape[-2:]
    if causal:
        scores = scores.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -torch.inf)
    return torch.softmax(scores, -1) @ v
"""
TESTS = """
import os
import torch
import torch.nn.functional as F
from package.kernels import attention as renamed  # another name
from package import attention as exported
REGISTRY = {"attention": renamed}

def test_in_another_folder(tmp_path):
    os.chdir(tmp_path)
    (tmp_path / "left").write_text("behind")
    q, k, v = torch.randn(3, 1, 2, 8, 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for function in (renamed, exported, REGISTRY["attention"]):
        torch.testing.assert_close(function(q, k, v, causal=True), expected)
"""

ENDLESS = """
import os
import subprocess
import torch
import torch.nn.functional as F
from package.kernels import attention

def test_it():
    child = subprocess.Popen(["sleep", "600"])
    with open(os.environ["PIDS"], "a") as file:
        print(child.pid, file=file)
    q, k, v = torch.randn(3, 1, 2, 8, 8)
    while not torch.allclose(attention(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-3):
        pass
"""
LAYER = """
import torch

class Attention(torch.nn.Module):
    def forward(self, q, k, v, mask=None):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, -1) @ v

class Projected(Attention):
    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Linear(8, 8)

    def forward(self, q, k, v, mask=None):
        return super().forward(*map(self.projection, (q, k, v)), mask)
"""
LAYER_TESTS = """
import torch
import torch.nn.functional as F
from package.layer import Attention

def test_it():
    q, k, v = torch.randn(3, 1, 2, 8, 8)
    torch.testing.assert_close(Attention()(q, k, v), F.scaled_dot_product_attention(q, k, v))
"""
HOLDER = """
import torch.nn.functional as F

class Holder:
    def __init__(self{arguments}):
        pass

    def run(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)
"""
HOLDER_TESTS = """
import torch
from package.holder import Holder

def test_it():
    n = 2
    assert Holder({arguments}).run(*torch.randn(3, 1, 2, 8, 8)).isfinite().all()
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A package and its tests, in the current folder."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from package.kernels import attention\n")
    (tmp_path / "package" / "kernels.py").write_text(ATTENTION)
    (tmp_path / "test_it.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder):
    return {str(path) for path in folder.rglob("*")}


def test_killed_survived_and_a_test_that_kills(project, tmp_path_factory, monkeypatch):
    before, temporary = everything(project), tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    names = ["no-scale", "top-left-causal", "window-dropped"]
    told = []
    report = mutate(["test_it.py"], "package.kernels:attention", mistakes=names, jobs=2, tell=told.append)
    reason = "no call of the suite shows it: there are as many queries as keys"
    known = sorted(line.partition(": ")[2] for line in told[:2])
    assert known == ["killed no-scale", f"not noticed top-left-causal: {reason}"], "told as soon as known"
    assert {line.partition(": ")[0] for line in told[:2]} == {"1 of 2", "2 of 2"}
    assert told[2:] == ["survived top-left-causal: a test that kills it was found"]
    assert report.killed == ["no-scale"]
    (survivor,) = report.survivors
    assert survivor.name == "top-left-causal"
    assert survivor.why == reason
    assert survivor.verified
    assert "def test_attention_notices_top_left_causal():" in survivor.test
    assert report.left_out == {"window-dropped": "the target has no argument for window or left window"}
    assert report.badge == "attention mistakes noticed: 1 of 2"
    assert report.baseline["calls"] == 3, "one for each name"
    as_json = json.loads(report.to_json())
    assert as_json["results"][1]["verified"] is True
    assert as_json["baseline"]["calls"] == 3, "as the attribute is called"
    for text in (report.badge, survivor.why, "killed: no-scale", "left out"):
        assert text in str(report)
    assert everything(project) == before, "nothing is left behind"
    assert everything(temporary) == set()
    assert Path.cwd() == project


@pytest.mark.at_length("test_wrong_arguments_are_answered_before_anything_runs")
@pytest.mark.parametrize(
    ("test", "message"),
    share(
        [
            ("import absent", "the suite cannot be run: test_it.py cannot be collected: .*absent"),
            ("def test_it(): assert 1 == 2", "the suite fails without any mistake: test_it.py::test_it"),
            ("x = 1", "the suite has no tests"),
            ("def test_it(): pass", "passes without a single call of package.kernels:attention"),
            ("import os\ndef test_it(): os._exit(3)", "the suite exits before its end"),
            ("import sys\nsys.exit(2)", r"test_it.py ends the process by exit\(2\) while it is imported"),
            ("import sys\ndef test_it(): sys.exit(2)", r"the suite fails without any mistake: .*SystemExit"),
            (
                "def test_it():\n    while True: pass",
                "did not finish within 3 s without any mistake: a test hangs",
            ),
        ],
        8,
    ),
)
def test_suites_that_do_not_serve_are_answered_in_a_sentence(project, test, message):
    (project / "test_it.py").write_text(test)
    before = everything(project)
    timeout = 3 if "while True" in test else 60
    with pytest.raises(CheckError, match=message):
        mutate(["test_it.py"], "package.kernels:attention", mistakes=["no-scale"], timeout=timeout)
    assert everything(project) == before


@pytest.mark.at_length("test_a_hang_is_ended_with_all_that_it_started")
def test_a_test_that_never_ends_on_a_mutant_has_noticed_it(project, monkeypatch):
    """And what a test has started ends with it."""
    monkeypatch.setenv("PIDS", str(project / "pids"))
    (project / "test_it.py").write_text(ENDLESS)
    report = mutate(["test_it.py"], "package.kernels:attention", mistakes=["no-scale"])
    assert [result.by for result in report.results] == ["the suite is too slow"]
    assert "killed by the time limit alone, which a busy machine may reach as well: no-scale" in str(report)
    pids = [int(pid) for pid in (project / "pids").read_text().split()]
    wait_until(lambda: all(map(has_ended, pids)))


@pytest.mark.at_length("test_killed_survived_and_a_test_that_kills")
def test_a_kernel_that_crashes_on_small_inputs_is_searched_at_the_sizes_of_its_suite(project):
    crash = "    import os\n    if q.shape[-2] < 8: os.abort()\n"
    code = ATTENTION.replace("causal=False):\n", f"causal=False):\n{crash}")
    (project / "package" / "kernels.py").write_text(code)
    report = mutate(["test_it.py"], "package.kernels:attention", mistakes=["top-left-causal"])
    assert [(x.name, x.verified) for x in report.survivors] == [("top-left-causal", True)]
    assert "torch.randn(1, 2, 8, 8), torch.randn(1, 2, 16, 8)" in report.survivors[0].test


@pytest.mark.at_length("test_killed_survived_and_a_test_that_kills")
def test_a_module_without_weights_is_a_target(project):
    (project / "package" / "layer.py").write_text(LAYER)
    (project / "test_it.py").write_text(LAYER_TESTS)
    names = ["no-scale", "inverted-mask", "grouped-heads-tiled"]
    report = mutate(["test_it.py"], "package.layer:Attention", mistakes=names)
    assert report.killed == ["no-scale"]
    assert report.survivors[0].name == "inverted-mask (mask)"
    assert report.survivors[0].verified
    assert "output = Attention()(q, k, v, mask=" in report.survivors[0].test


@pytest.mark.at_length("test_killed_survived_and_a_test_that_kills")
def test_a_method_is_a_target(project):
    """A test is written if its class is made without arguments; if not, the report says so."""
    for arguments, expected in (
        ("", "output = Holder().run(q, k, v"),
        (", n", "no test: Holder() cannot be"),
    ):
        (project / "package" / "holder.py").write_text(HOLDER.format(arguments=arguments))
        (project / "test_it.py").write_text(HOLDER_TESTS.format(arguments=arguments[2:]))
        report = mutate(["test_it.py"], "package.holder:Holder.run", mistakes=["no-scale"])
        assert [(x.name, x.verified) for x in report.survivors] == [("no-scale", not arguments)]
        assert expected in str(report)


@pytest.mark.at_length("test_killed_survived_and_a_test_that_kills")
def test_a_module_with_weights_is_answered_with_what_to_do(project):
    (project / "package" / "layer.py").write_text(LAYER)
    (project / "test_it.py").write_text(
        "import torch\nfrom package.layer import Projected\n"
        "def test_it(): assert Projected()(*torch.randn(3, 1, 5, 8)).shape == (1, 5, 8)\n"
    )
    with pytest.raises(CheckError, match=r"off attention.*name the function of queries, keys and values"):
        mutate(["test_it.py"], "package.layer:Projected", mistakes=["no-scale"])


def test_wrong_arguments_are_answered_before_anything_runs(project):
    with pytest.raises(CheckError, match=r"a colon between them.*did you mean package\.kernels:attention\?"):
        mutate(["test_it.py"], "package.kernels.attention")
    with pytest.raises(CheckError, match=r"did you mean my_attention:function\?"):
        mutate(["test_it.py"], "my_attention")
    with pytest.raises(CheckError, match=r"no file or folder nothing\.py"):
        mutate(["nothing.py"], "package.kernels:attention")
    with pytest.raises(ValueError, match="did you mean no-scale"):
        mutate(["test_it.py"], "package.kernels:attention", mistakes=["noscale"])


@pytest.mark.at_length("test_killed_survived_and_a_test_that_kills")
def test_command(project):
    command = [sys.executable, "-m", "regard", "mutate", "test_it.py", "--json", "--mistake", "no-scale"]
    done = subprocess.run(
        [*command, "--target", "package/kernels.py:attention"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["badge"] == "attention mistakes noticed: 1 of 1"
    assert "1 of 1: killed no-scale" in done.stderr
    done = subprocess.run(
        [*command, "--target", "package:nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("regard: ")
