"""The files around the code agree with it, and the wheel: built from git's files, installed clean, used.

The environment gets PyTorch and the other dependencies as links to those of this Python, and nothing else:
what the wheel's metadata does not ask for cannot be imported in it.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import regard
from regard.gpt.files.loader import INCLUDED_MODEL

ROOT = Path(__file__).parents[2]
LIBRARY_ONLY = Path(__file__).parent / "library_only.py"
WITH_APP = Path(__file__).parent / "with_app.py"


def run(*command, folder, code=0):
    """Run a command away from the source tree, and check how it ends."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution of a copy of the files that git knows or would add."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # and not removed since
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", out, folder=source)
    (built,) = out.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist):
    """The wheel, built from the source distribution without a network."""
    out = sdist.parent
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    run(*pip, "wheel", *offline, "--wheel-dir", out, sdist, folder=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def about(wheel):
    """The wheel's metadata."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(opened.read(name).decode())


def required(about, extra=""):
    """The names of what the wheel asks for: always, or for an extra as well."""
    requirements = map(Requirement, about.get_all("Requires-Dist", []))
    return {
        needed.name
        for needed in requirements
        if needed.marker is None or needed.marker.evaluate({"extra": extra})
    }


def with_dependencies(names):
    """Distributions of this Python by name, with everything that they ask for."""
    found = {}
    waiting = [(name, "") for name in names]
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = distribution = metadata.distribution(name)
        for needed in map(Requirement, distribution.requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, extra) for extra in ("", *needed.extras)]
    return found


def link(names, folder):
    """Link the packages of distributions into a folder."""
    folder.mkdir(exist_ok=True)
    for distribution in with_dependencies(names).values():
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__", "bin"}:
            target = Path(str(distribution.locate_file(top)))
            if not (folder / top).exists() and target.exists():
                (folder / top).symlink_to(target)


class Environment:
    """A virtual environment with the wheel in it, and with the packages that it was given."""

    def __init__(self, folder, wheel):
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        (site / "packages.pth").write_text(str(folder / "packages"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python]
        run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, folder=folder)

    def give(self, requirements):
        link(requirements, self.folder / "packages")

    def regard(self, *arguments, code=0):
        """The command `regard`, as it was installed."""
        return run(self.python.parent / "regard", *arguments, folder=self.folder, code=code)


def test_what_is_in_it(sdist, wheel):
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        licences = {
            name.rpartition("/")[2]: opened.read(name).decode() for name in names if "/licenses/" in name
        }
    source = ROOT / "src"
    listed = run(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src", folder=ROOT
    ).stdout
    files = {name.removeprefix("src/") for name in listed.split("\0") if name and (ROOT / name).is_file()}
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == files, "the wheel holds the files of src and no others"
    box = {
        f"regard/gpt/included_model/{name}"
        for name in ("model.safetensors", "tokenizer.json", "config.json", "README.md")
    }
    page = {str(path.relative_to(source)) for path in (source / "regard" / "show").rglob("*.js")}
    assert page
    assert packed >= box | page | {"regard/py.typed"}
    assert any(name.endswith("index.html") for name in packed)
    assert not [name for name in names if "test_" in name or name.startswith(("tests/", "benchmarks/"))]
    assert set(licences) == {"LICENSE", "NOTICE"}
    assert "Apache License" in licences["LICENSE"]
    assert "CC BY-SA 4.0" in licences["NOTICE"]


def test_the_sizes_are_those_that_the_documentation_states(sdist, wheel):
    page = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| (.*?) \| ([\d.]+) MB", page, re.MULTILINE))
    with zipfile.ZipFile(wheel) as opened:
        sizes = {file.filename: file.compress_size for file in opened.infolist()}
    model = sum(size for name, size in sizes.items() if "/included_model/" in name)
    lessons = sum(size for name, size in sizes.items() if "/learn/lessons/" in name)
    measured = (
        wheel.stat().st_size,
        sum(sizes.values()) - model - lessons,
        lessons,
        model,
        sdist.stat().st_size,
    )
    assert len(stated) == len(measured)
    for (what, megabytes), size in zip(stated.items(), measured, strict=True):
        assert abs(size / 1e6 - float(megabytes)) < 0.3, what


def test_what_it_asks_for(about):
    assert about["License-Expression"] == "Apache-2.0 AND CC-BY-4.0 AND CC-BY-SA-4.0"
    plain = {"torch", "numpy", "safetensors", "filelock"}  # the last comes with the first
    assert required(about) == plain
    extras = {name: required(about, name) - plain for name in about.get_all("Provides-Extra", [])}
    optional = {"app", "gguf", "parquet", "tokenizers", "transformers", "widget"}
    assert set(extras) == optional | {"all", "dev", "docs", "notebooks", "vllm"}
    assert extras["tokenizers"] == {"huggingface-hub", "tokenizers"}
    page = {"latex2mathml", "markdown-it-py", "mdit-py-plugins", "starlette", "uvicorn"}
    assert extras["app"] == extras["tokenizers"] | page | {"matplotlib", "rich", "typer"}
    assert extras["docs"] == extras["app"] | {"furo", "myst-parser", "sphinx"}
    assert extras["transformers"] == {"transformers"}
    assert extras["gguf"] == extras["tokenizers"] | {"gguf"}
    assert extras["parquet"] == {"pyarrow"}
    assert extras["widget"] == {"anywidget"}
    assert extras["vllm"] == {"vllm"}
    assert extras["all"] == set().union(*(extras[name] for name in optional))
    assert extras["dev"] > extras["all"]
    assert extras["notebooks"] == extras["dev"] | {"jupyterlab", "marimo"}


@pytest.mark.at_length("test_what_is_in_it")
def test_it_works_in_a_clean_environment(wheel, about, tmp_path):
    environment = Environment(tmp_path, wheel)

    # The library needs torch, NumPy and safetensors only.
    environment.give(required(about))
    works = run(environment.python, "-W", "error", LIBRARY_ONLY, folder=tmp_path)
    assert works.stdout == f"regard {about['Version']} works\n"
    missing = environment.regard("--version", code=1)
    sentence = 'the command `regard` needs typer, which is not installed: pip install "regard[app]"'
    assert (missing.stdout, missing.stderr) == ("", f"regard: {sentence}\n")

    # The command needs the app extra only.
    environment.give(required(about, "app"))
    assert environment.regard("--version").stdout == f"regard {about['Version']}\n"
    works = run(environment.python, "-W", "error", WITH_APP, folder=tmp_path)
    assert works.stdout == "the app works\n"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == regard.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_licence_of_the_model_in_the_box_is_said_everywhere():
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-4.0 AND CC-BY-SA-4.0"
    for path in (INCLUDED_MODEL / "README.md", ROOT / "NOTICE", ROOT / "README.md"):
        assert "CC BY-SA 4.0" in path.read_text(encoding="utf-8"), path


def workflow(name):
    """The text of a workflow, and what it says."""
    text = (WORKFLOWS / name).read_text(encoding="utf-8")
    return text, yaml.safe_load(text)


def test_a_release_needs_no_password_and_is_of_this_version():
    text, release = workflow("release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true
    assert release["permissions"] == {"contents": "read"}
    publish = release["jobs"]["publish"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert publish["steps"][-1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}
    assert "secrets." not in text
    (check,) = (step["run"] for step in release["jobs"]["build"]["steps"] if "GITHUB_REF_NAME" in str(step))
    for tag, code in ((f"v{regard.__version__}", 0), ("v9.9.9", 1)):
        environment = {**os.environ, "GITHUB_REF_NAME": tag}
        assert (
            subprocess.run(["bash", "-ec", check], cwd=ROOT, env=environment, check=False).returncode == code
        )


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_name_what_is_there(name):
    text, jobs = workflow(name)
    steps = [step for job in jobs["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert all(job["timeout-minutes"] for job in jobs["jobs"].values())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    run = "\n".join(step.get("run", "") for step in steps)
    assert set(re.findall(r"\bmake (?:\w+=\S+ )?([\w-]+)", run)) <= targets
    assert [path for path in re.findall(r"\btests/[\w/.]+", run) if not (ROOT / path).exists()] == []
    assert set(re.findall(r"[\w-]+\.(?:toml|txt)", text)) - {"versions.txt"} <= {
        x.name for x in ROOT.iterdir()
    }
