"""The table of a command's actions: name, help, arguments, and the function that does it; and their output.

An action prints its result with `show` or `answer`: as JSON, or as a table or lines for a person. Imports
nothing heavy, since `barnabas broker` uses it too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from barnabas.cli.output import print_json, print_table

Argument = Callable[[argparse._ActionsContainer], object]
"""Adds itself to a parser, or to a group of one."""

Row = dict[str, Any]

Column = str | Callable[[Row], object]
"""The name of a field, or a function from the row to its cell."""


class Action(NamedTuple):
    """`run` takes the parsed options and returns the exit code, or None for 0."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], int | None]
    arguments: Sequence[Argument] = ()
    epilog: str | None = None

    def add_to(self, parser: argparse.ArgumentParser, name: str = "") -> None:
        for add in self.arguments:
            add(parser)
        parser.epilog = self.epilog
        parser.set_defaults(run=self.run)


Adding = Callable[[argparse.ArgumentParser, str], None]
"""Adds the arguments of a command to its parser; the name is that of the command."""


def actions(*table: Action) -> Adding:
    """A command with these actions."""

    def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
        subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for action in table:
            action.add_to(subparsers.add_parser(action.name, help=action.help))

    return add_arguments


def command(
    run: Callable[[argparse.Namespace], int | None], *arguments: Argument, epilog: str | None = None
) -> Adding:
    """A command without actions. Its help is in `main`."""
    return Action("", "", run, arguments, epilog).add_to


def arg(names: str, metavar: str | None = None, help: str | None = None, **settings: Any) -> Argument:
    """A word of the command, or an option with a value; `names` are separated by blanks."""
    return lambda parser: parser.add_argument(*names.split(), metavar=metavar, help=help, **settings)


def repeated(names: str, metavar: str, help: str | None = None, **settings: Any) -> Argument:
    """An option that may be given several times, as its help says."""
    text = f"{help} (may be repeated)" if help else "may be repeated"
    return arg(names, metavar, text, **{"action": "append", "default": [], **settings})


def flag(names: str, help: str | None = None, **settings: Any) -> Argument:
    return lambda parser: parser.add_argument(*names.split(), action="store_true", help=help, **settings)


def one_of(*arguments: Argument, required: bool = False) -> Argument:
    """At most one of these, or if `required` exactly one."""

    def add(parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for argument in arguments:
            argument(group)

    return add


def show(
    options: argparse.Namespace,
    rows: Sequence[Row],
    columns: Mapping[str, Column] | Sequence[str],
    nothing: str = "",
    *,
    value: Any = None,
) -> None:
    """Print rows as a table, or as one JSON array; without rows a person reads `nothing`.

    `columns`: by heading, or the fields that are the headings. `value` is printed in place of the array.
    """
    if options.json:
        print_json(rows if value is None else value)
    elif rows:
        fields = columns if isinstance(columns, Mapping) else {name: name for name in columns}
        print_table(
            tuple(fields),
            [[row[of] if isinstance(of, str) else of(row) for of in fields.values()] for row in rows],
        )
    elif nothing:
        print(nothing)


def pick(source: object, names: str) -> Row:
    """These attributes as a row, tuples as lists; the names are separated by blanks."""
    values = {name: getattr(source, name) for name in names.split()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def answer(options: argparse.Namespace, value: Any, *lines: str) -> None:
    """Print a JSON value, or lines for a person."""
    if options.json:
        print_json(value)
    else:
        for line in lines:
            print(line)
