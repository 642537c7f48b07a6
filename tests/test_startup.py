"""What is imported when: nothing heavy by `import regard` or by help, nothing optional by the library.

These tests look at modules, not at clocks; `python -m benchmarks.startup` measures the time.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import regard
from regard.cli import app
from regard.support.imports import call_after_import
from tests.patience import HANGING

HEAVY = {"torch", "numpy", "safetensors"}
OPTIONAL = {
    *("gguf", "huggingface_hub", "matplotlib", "pandas", "pyarrow", "rich", "starlette", "tokenizers"),
    *("transformers", "typer", "uvicorn"),
}
EVERY_NAME = "import regard; [getattr(regard, name) for name in regard.__all__]"


def imported_by(program):
    """The top-level modules that a program has imported when it ends."""
    end = "import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules)))\n"
    result = subprocess.run(
        [sys.executable, "-c", end + program], capture_output=True, text=True, check=False, timeout=HANGING
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split())


def test_import_regard_imports_nothing_heavy():
    modules = imported_by("import regard; regard.__version__; dir(regard)")
    assert not modules & (HEAVY | OPTIONAL)


def test_every_public_name_needs_only_torch_numpy_and_safetensors_and_a_model_no_compiler():
    model = "regard.gpt.GPT.from_pretrained('default').generate('The', max_new_tokens=2)"
    program = f"{EVERY_NAME}\nnames = set(sys.modules)\nregard.attention.steps.trace; {model}"
    modules = imported_by(f"{program}\nassert names >= {HEAVY}, names\nassert not names & {OPTIONAL}, names")
    assert "regard.gpt.files.loader" in modules
    assert "torch._dynamo" not in modules  # takes as long as the rest of PyTorch


def test_help_and_version_import_no_torch():
    """One process asks for everything: what any of them imported would be there at the end."""
    program = """
import sys
from regard.__main__ import main
for arguments in ARGUMENTS:
    sys.argv = ["regard", *arguments]
    try:
        main()
    except SystemExit as end:
        assert end.code in (None, 0, 2), (arguments, end.code)
"""
    arguments = [[], ["--help"], ["--version"], *([name, "--help"] for name in get_command(app).commands)]
    modules = imported_by(program.replace("ARGUMENTS", repr(arguments)))
    assert "typer" in modules
    assert not modules & (HEAVY | OPTIONAL - {"rich", "typer"})


@pytest.mark.parametrize("package", [regard, regard.checker], ids=lambda package: package.__name__)
def test_type_checkers_see_the_names_that_are_imported_when_used(package):
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == package._HOME
    assert sorted(seen) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is vars(package)[name]  # kept after the first use
    assert set(package.__all__) <= set(dir(package))


def test_checking_imports_no_torch_in_the_command(tmp_path):
    (tmp_path / "mine.py").write_text("def attention(q, k, v): return (q @ k.mT).softmax(-1) @ v\n")
    program = f"""
import sys
from regard.__main__ import main
sys.argv = ["regard", "check", {str(tmp_path / "mine.py")!r} + ":attention"]
try:
    main()
except SystemExit as end:
    assert end.code == 1, end.code
    sys.exit(0)
"""
    assert not imported_by(program) & HEAVY


@pytest.mark.parametrize("watched_first", [True, False])
def test_a_function_is_called_after_an_import(watched_first, tmp_path, monkeypatch):
    (tmp_path / "watched_library.py").write_text("calls = []\n")
    (tmp_path / "its_plugin.py").write_text(
        "import watched_library\ndef register():\n    watched_library.calls.append('registered')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    try:
        if watched_first:
            import watched_library
        call_after_import("watched_library", "its_plugin", "register")
        assert ("its_plugin" in sys.modules) == watched_first
        import watched_library

        assert watched_library.calls == ["registered"]
        assert sys.meta_path == finders
    finally:
        for name in ("watched_library", "its_plugin"):
            sys.modules.pop(name, None)
