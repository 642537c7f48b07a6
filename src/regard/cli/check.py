"""`regard check`: is this attention right, and if not, what is wrong with it?"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.parts.options import AsJson
from regard.cli.parts.signals import allow_closed_pipe
from regard.cli.parts.verdict import EXIT_CODES, end_with
from regard.support.characters import escape

if TYPE_CHECKING:
    from regard.checker.reports.report import Report

OPTIONS: tuple[str, ...] = ("causal", "window", "softcap", "scale", "heads", "true_means", "cached", "oracle")
OPTIONS += ("device", "gradients", "processes", "strict")
"""The options that `regard.check` has by the same names."""


def check(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.py:Name",
            help="The attention to check: a function, a module or a class. package.module:Name works too.",
            show_default=False,
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="NAME=VALUE", help="Constructor arguments, as d_model=64 num_heads=4."
        ),
    ] = None,
    call: Annotated[
        list[str] | None,
        typer.Option(
            "--call",
            metavar="NAME=VALUE",
            help="An argument of its forward pass, as offset=0, or a tensor by its shape, as pe=randn(T,C).",
        ),
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--no-causal",
            help="Whether it should be causal. By default this is found out.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[int | None, typer.Option(help="The window that it should have, in keys.")] = None,
    softcap: Annotated[float | None, typer.Option(help="The soft cap that it should have.")] = None,
    scale: Annotated[float | None, typer.Option(help="The scale that it should have, if not 1/√D.")] = None,
    heads: Annotated[
        int | None, typer.Option(help="Its number of heads, if that cannot be found out.")
    ] = None,
    true_means: Annotated[
        Literal["look", "hide"] | None,
        typer.Option(metavar="look|hide", help="Whether True in its boolean masks means look or hide."),
    ] = None,
    cached: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:step", help="How a sequence is continued: step(module, x, cache)."),
    ] = None,
    oracle: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:Name", help="Your own slow version, to compare with instead."),
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients/--no-gradients", help="Whether to compare gradients.")
    ] = True,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where its code runs.")] = "cpu",
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many processes run it together: ring attention, Ulysses."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count warnings as failures, and leave nothing untried.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit for its code.")] = 60.0,
    memory: Annotated[float, typer.Option(metavar="GB", help="Memory limit for its code.")] = 4.0,
    as_json: AsJson = False,
    show_list: Annotated[bool, typer.Option("--list", help="Show the catalogue of mistakes.")] = False,
    visibility: Annotated[
        bool, typer.Option("--visibility", help="Show which inputs show which mistake, and how clearly.")
    ] = False,
) -> None:
    """Check an attention function, module or class: a verdict, and what is wrong.

    It runs in a process of its own, which ends with this one. Exit code: 0 right, 1 wrong, 2 it could not be
    run, 3 undecided.

    \b
    Examples:
      regard check attention.py:CausalSelfAttention
      regard check attention.py:MultiHead d_model=64 num_heads=4
      regard check torch.nn.functional:scaled_dot_product_attention
      regard check --list
      regard check --visibility
    """
    given = dict(locals())
    if show_list:
        with allow_closed_pipe():
            _print_catalogue(as_json)
        return
    if visibility:
        from regard.checker.visibility import measure_visibility

        end_with(measure_visibility(), 0, as_json)
    from regard.checker.errors import CheckError

    words = [target, *context.args] if target else []  # --with takes several words
    places = [word for word in words if "=" not in word]
    try:
        if len(places) != 1:
            raise CheckError(
                f"expected one thing to check, as path/to/file.py:Name, got {', '.join(places) or 'none'}"
            )
        options: dict[str, Any] = {
            "init": _arguments("--with", [*(with_ or []), *(word for word in words if "=" in word)]),
            "call": _arguments("--call", call or []),
        }
        # None means that the option was not given; False is an answer (--no-causal).
        options |= {name: given[name] for name in OPTIONS if given[name] is not None}
        from regard.checker.sandbox import check_in_process

        report = check_in_process(places[0], options, timeout=timeout, memory=memory)
    except CheckError as error:
        if as_json:
            result = {"verdict": None, "ok": None, "error": str(error)}
            # In JSON an error goes to stdout as well, so that a program need not parse two formats.
            typer.echo(escape(json.dumps(result, ensure_ascii=False)))
        else:
            typer.echo(f"regard: {escape(str(error))}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        end_with(report, EXIT_CODES[report.verdict], as_json)
    with allow_closed_pipe():
        print_report(report)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _arguments(option: str, words: list[str]) -> dict[str, Any]:
    """`name=value` pairs of an option, the values read as Python where they can be."""
    from regard.checker.errors import CheckError

    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        # isidentifier, since the name becomes a keyword argument.
        if not equals or not name.isidentifier():
            raise CheckError(f"{option}: expected name=value, got {word!r}")
        try:
            # Shells and configs write true, false and none in lower case, which are no literals of Python.
            value = ast.literal_eval(
                {"true": "True", "false": "False", "none": "None"}.get(text.lower(), text)
            )
        # What is no literal is text, so that `norm=rms` needs no quotes; randn(T,C) is read by the checker.
        except (ValueError, SyntaxError):
            value = text
        arguments[name] = value
    return arguments


STYLES = {"right": "bold green", "wrong": "bold red", "undecided": "bold yellow", "fix": "cyan"}
STYLES |= {"passed": "green", "failed": "red", "warning": "yellow", "untried": "yellow", "skipped": "dim"}


def print_report(report: Report) -> None:
    """Print the report in colour, as wide as the terminal."""
    from rich.console import Console
    from rich.text import Text

    from regard.checker.reports.report import report_lines

    console = Console(highlight=False)
    for line in report_lines(report, console.width):
        text = Text(line.text)
        text.stylize(STYLES.get(line.style, ""), 0, line.styled)
        # soft_wrap: the lines were wrapped to the width already, and Rich would break them once more.
        console.print(text, soft_wrap=True)


def _print_catalogue(as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from regard.checker.catalogue import CATALOGUE, THEMES

    if as_json:
        entries = [
            {"name": m.name, "what": m.what, "fix": m.fix, "warning": m.warning} for m in CATALOGUE.values()
        ]
        typer.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("mistake", no_wrap=True)
    table.add_column("attention …")
    for theme, mistakes in THEMES.items():
        table.add_row(f"[bold]{theme}[/bold]", "")
        for m in mistakes:
            table.add_row(f"  {m.name}", m.what + (" [dim](warning)[/dim]" if m.warning else ""))
    Console(highlight=False).print(table)
    typer.echo(f"\n{len(CATALOGUE)} mistakes; regard explain-mistake NAME explains one.")
