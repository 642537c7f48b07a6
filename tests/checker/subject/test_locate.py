"""From a file's or a module's name to the thing: found, or answered in one line."""

import sys

import pytest

from regard.checker import CheckError
from regard.checker.subject.locate import locate


@pytest.fixture(autouse=True)
def _own_path(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_name_in_a_file_a_package_and_a_class(tmp_path):
    (tmp_path / "mine.py").write_text("class Outer:\n    class Inner:\n        pass\n")
    assert locate("mine.py:Outer.Inner").__name__ == "Inner"
    assert locate("torch.nn:MultiheadAttention").__name__ == "MultiheadAttention"
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 3\n")
    (package / "layer.py").write_text("from .sizes import WIDTH\ndef attention(q, k, v):\n    return WIDTH\n")
    assert locate("pack/layer.py:attention")(0, 0, 0) == 3
    assert locate("pack.layer:attention")(0, 0, 0) == 3


@pytest.mark.parametrize(
    ("text", "spec", "says"),
    [
        ("", "mine.py", "say what to check, as mine.py:Name"),
        ("def attend(q, k, v): ...\n", "mine.py", "it defines attend"),
        ("", "my.py:X", "no file my.py"),
        ("", "mime.py:X", r"no file mime.py \(there is mine.py\)"),
        ("", "nowhere/mine.py:X", "no folder nowhere"),
        ("", ".:X", "is a folder"),
        ("def attend(q, k, v): ...\n", "mine.py:atend", "did you mean attend"),
        ("def attend(q, k, v): ...\n", "mine.py:Zorg", "it has attend"),
        ("", "mine.py:X", "defines nothing"),
        (
            "import nosuchthing\n",
            "mine.py:X",
            r"No module named 'nosuchthing' \(line 1\): install nosuchthing",
        ),
        ("def f(:\n", "mine.py:f", "SyntaxError.*line 1"),
        ("x = 1\n1 / 0\n", "mine.py:x", r"ZeroDivisionError: division by zero \(line 2\)"),
        ("exit(3)\n", "mine.py:x", "calls exit"),
        ("", "no.such.thing:X", "no module no.such.thing"),
    ],
)
def test_every_way_to_miss_is_one_line(tmp_path, text, spec, says):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(CheckError, match=says) as caught:
        locate(spec)
    assert "\n" not in str(caught.value)
