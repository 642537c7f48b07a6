"""Commands from a table: `commands.toml` says what a command takes, and its own file is imported to run it.

So `regard --help` imports no command, and a command's file imports what it needs at its top.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

TABLE = tomllib.loads((Path(__file__).parent.parent / "commands.toml").read_text(encoding="utf-8"))
KINDS: dict[str, Any] = {
    "text": str,
    "integer": int,
    "number": float,
    "flag": bool,
    "path": Path,
    "texts": list[str],
    "paths": list[Path],
}


def add_commands(app: typer.Typer) -> None:
    """Add every command of the table to an application; one whose name has two words is in a group."""
    shared = TABLE["shared"]
    groups: dict[str, typer.Typer] = {}
    for name, about in TABLE.items():
        group, _, own = name.rpartition(" ")
        if any(other.startswith(f"{name} ") for other in TABLE):
            groups[name] = new_group(help=about["help"], no_args_is_help=True)
            app.add_typer(groups[name], name=name, short_help=about["short"])
        elif about is not shared:
            # \b keeps Click from joining the lines of the examples into one paragraph.
            text = about["help"].replace("\n\nExample", "\n\n\b\nExample")
            settings = {"allow_extra_args": True} if "extra_words" in about else None
            groups.get(group, app).command(
                own, short_help=about.get("short"), help=text, context_settings=settings
            )(_function(name, about, shared))


def new_group(**options: Any) -> typer.Typer:
    """Return an application whose help is plain text."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, **options)


def _function(name: str, about: dict[str, Any], shared: dict[str, Any]) -> Callable[..., None]:
    """Return a function with the parameters of a command, which calls that of the command's file."""
    words = name.replace("-", "_").split()

    def run(context: typer.Context, **options: Any) -> None:
        if "extra_words" in about:
            options[about["extra_words"]] = context.args
        getattr(import_module(f"regard.cli.{words[0]}"), words[-1])(**options)

    options = about.get("options", {})
    parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [_parameter(option, options[option] or shared[option]) for option in options]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, about: dict[str, Any]) -> Parameter:
    default = about.get("default")
    kind = KINDS[about["type"]] if "type" in about else type(default)
    if "choices" in about:
        kind = Literal[tuple(about["choices"])]
    settings = {key: about[key] for key in ("metavar", "help", "show_default", "min") if key in about}
    if "argument" in about:
        info = typer.Argument(**settings)
    else:
        info = typer.Option(*about.get("flags", _flags(name, default)).split(", "), **settings)
    if "required" in about:
        default = Parameter.empty
    elif default is None:
        kind = kind | None
    elif kind is Path:
        default = Path(default)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _flags(name: str, default: object) -> str:
    flag = name.rstrip("_").replace("_", "-")
    return f"--{flag}/--no-{flag}" if default is True else f"--{flag}"
