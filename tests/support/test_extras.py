"""A missing optional library is answered with the command that installs it."""

import sys

import pytest
import torch

import regard
from regard.__main__ import main
from regard.gpt import GPT
from regard.gpt.tokens import character_tokenizer
from regard.support.imports import MissingExtraError
from tests.captures import captured


@pytest.fixture
def without(monkeypatch):
    """Makes libraries impossible to import, as if they were not installed."""

    class Missing:
        def __init__(self):
            self.names = set()

        def find_spec(self, name, path, target=None):
            if name.partition(".")[0] in self.names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    finder = Missing()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    def hide(*names):
        finder.names.update(names)
        for module in list(sys.modules):
            if module.partition(".")[0] in names:
                monkeypatch.delitem(sys.modules, module)

    return hide


def needs(library, name="app"):
    message = rf'needs {library}, which is not installed: pip install "regard\[{name}\]"$'
    return pytest.raises(MissingExtraError, match=message)


def test_figures(without):
    without("matplotlib")
    m = regard.attention_map(torch.randn(4, 8), torch.randn(4, 8))
    for draw in (
        lambda: regard.plot(m),
        lambda: captured(6).figure(0, 0),
        lambda: captured(6).figure(0),
        lambda: regard.causal.plot(8),
    ):
        with needs("matplotlib"):
            draw()


def test_the_widget(without, monkeypatch):
    without("anywidget")
    monkeypatch.delitem(sys.modules, "regard.show.widget", raising=False)
    with needs("anywidget", "widget"):
        captured(6).widget()


def test_the_server(without, monkeypatch):
    without("uvicorn", "starlette")
    for module in [name for name in sys.modules if name.startswith("regard.show.server")]:
        monkeypatch.delitem(sys.modules, module)
    with needs("(uvicorn|starlette)"):
        captured(6).show(open=False, block=False)


def test_a_page_needs_nothing(without, tmp_path):
    without("matplotlib", "rich", "starlette", "typer", "uvicorn")
    captured(6).to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


def test_tokenizers(without):
    without("tokenizers")
    with needs("tokenizers"):
        character_tokenizer("abc")
    with needs("tokenizers"):
        GPT.from_pretrained("default")


def test_a_command_says_it_in_one_line(without, monkeypatch, capsys):
    without("tokenizers")
    monkeypatch.setattr(sys, "argv", ["regard", "generate", "The sea"])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = "the tokenizer of included_model needs tokenizers, which is not installed"
    assert capsys.readouterr() == ("", f'regard: {said}: pip install "regard[app]"\n')


def test_the_command_without_typer(without, monkeypatch):
    without("typer")
    for module in [name for name in sys.modules if name.startswith("regard.cli")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(regard, "cli")
    with pytest.raises(SystemExit) as end:
        main()
    said = 'regard: the command `regard` needs typer, which is not installed: pip install "regard[app]"'
    assert end.value.code == said
