"""The `barnabas` command: picks the subcommand, reports errors, sets the exit code.

Guarantees. Only the module of the chosen subcommand is imported, so that `barnabas broker` imports nothing
that it does not need. An error that we raise on purpose is one line on stderr and an exit code
(`exit_codes.py`); any other is a bug of ours and keeps its traceback. Main thread.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

from barnabas.cli import exit_codes
from barnabas.cli.output import errors_alone, escape_unencodable, is_utf_8
from barnabas.common.suggestions import did_you_mean, suggestion
from barnabas.protocol.errors import BarnabasError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("up", "start a cluster on this machine: ZooKeeper and brokers"),
    "down": ("cluster", "stop the cluster"),
    "status": ("status", "brokers, controller, and every replica with its offsets"),
    "env": ("cluster", 'print variables that name the cluster, for eval "$(barnabas env)"'),
    "logs": ("logs", "print the logs of the local cluster's brokers"),
    "kill": ("cluster", "kill a broker or ZooKeeper (SIGKILL)"),
    "stop": ("cluster", "stop a broker by a controlled shutdown, or ZooKeeper"),
    "pause": ("cluster", "pause a broker or ZooKeeper (SIGSTOP)"),
    "resume": ("cluster", "continue a paused broker or ZooKeeper (SIGCONT)"),
    "restart": ("cluster", "restart a broker, after a controlled shutdown if it still runs, or ZooKeeper"),
    "topics": ("topics", "create, list, describe, change and delete topics"),
    "groups": ("groups", "show consumer groups and their lag, and reset their offsets"),
    "transactions": ("transactions", "list and describe transactions, and end those that are stuck"),
    "log-dirs": ("log_dirs", "show the log dirs of brokers, and move replicas between them"),
    "elect": ("elect", "let preferred replicas lead again, or any replica of a leaderless partition"),
    "reassign": ("reassign", "move partitions to other brokers, or change their number of replicas"),
    "drain": ("reassign", "move all replicas away from a broker"),
    "configs": ("configs", "show and change the settings of topics and brokers"),
    "users": ("users", "create, change, delete and list users, their passwords and quotas"),
    "acls": ("acls", "grant rights to users, revoke and list them"),
    "features": ("features", "show and change the features that all brokers of the cluster use"),
    "faults": ("faults", "make brokers answer requests with errors, late or not at all, for tests"),
    "produce": ("produce", "write lines from stdin or a file as records"),
    "consume": ("consume", "print the records of a topic"),
    "broker": ("broker", "run one broker in the foreground"),
    "log": ("log", "dump, verify and repair the files of a log"),
    "chaos": ("chaos", "run a scenario of faults under load, judge it, and write its report"),
    "demo": ("demo", "the main job on real data, start to end"),
    "perf": ("perf", "measure how fast a cluster writes and reads records"),
    "ui": ("ui", "serve the live page of a cluster"),
    "completion": ("completion", "print a completion script for bash or zsh"),
}
"""Subcommand → (module of barnabas.cli, help). A module has ``add_arguments(parser, name)``; see `action`."""

_EPILOG: Final = (
    "exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable, 4 not found, 130 interrupted. "
    "See also `barnabas COMMAND --help`."
)


_EXTRAS: Final = {
    **dict.fromkeys(("kazoo", "prometheus_client", "uvloop"), "broker"),
    **dict.fromkeys(("rich", "shtab"), "cli"),
    **dict.fromkeys(("fastavro", "jinja2", "markupsafe", "sse_starlette", "starlette", "uvicorn"), "ui"),
}
"""Package → the extra that installs it."""

_REPORTED_BY_LOG: Final = frozenset({"broker", "consume", "demo", "ui"})
"""Commands that run on while brokers are away, so that a line of the log says so."""


class CommandParser(argparse.ArgumentParser):
    """Takes options before, between and after the words of a command, also if its last word is optional.

    Wrong usage is reported with the usage of the subcommand, and with the name that was probably meant.
    """

    def __init__(self, *positionals: Any, **options: Any) -> None:
        super().__init__(*positionals, **options)
        self._has_subcommands = False
        self._is_intermixing = False

    def add_subparsers(self, **options: Any) -> Any:
        self._has_subcommands = True
        return super().add_subparsers(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # parse_known_intermixed_args calls this method; and it loses the end of options, `--`.
        if self._has_subcommands or self._is_intermixing or "--" in (args or ()):
            return super().parse_known_args(args, namespace)
        self._is_intermixing = True
        try:
            options, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False
        if unknown:
            self._refuse(unknown)
        return options, unknown

    def _refuse(self, unknown: Sequence[str]) -> None:
        names = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        hints = (did_you_mean(word.partition("=")[0], names) for word in unknown if word.startswith("--"))
        self.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, hints), '')}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        value = super()._get_value(action, arg_string)
        # A path may have any bytes; names and values are sent as UTF-8. A subcommand gets all its words.
        is_subcommand = isinstance(action, argparse._SubParsersAction)
        if isinstance(value, str) and not is_subcommand and not is_utf_8(value):
            raise argparse.ArgumentError(action, f"{value!r}: expected text in UTF-8")
        return value

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = suggestion(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r}{hint}")


def build_parser(*chosen: str | None) -> argparse.ArgumentParser:
    """The parser, complete for the chosen subcommands and with a line of help for the others."""
    parser = CommandParser(
        prog="barnabas",
        description="A replicated commit log: run a cluster, write to it, read from it.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module_name, help_text) in COMMANDS.items():
        sub = commands.add_parser(
            name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
        )
        if name in chosen:
            module = importlib.import_module(f"barnabas.cli.{module_name}")
            module.add_arguments(sub, name)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (argparse itself exits with 2 for wrong usage)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    escape_unencodable(sys.stdout, sys.stderr)
    chosen = next((word for word in words if not word.startswith("-")), None)
    try:
        return _run(words, chosen)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra = _EXTRAS[package]
        print(
            f"barnabas {chosen}: needs the package {package}, which is not installed: "
            f"pip install 'barnabas[{extra}]', in a checkout pip install '.[{extra}]'",
            file=sys.stderr,
        )
        return exit_codes.FAILED


def _run(words: list[str], chosen: str | None) -> int:
    parser = build_parser(chosen)
    options = parser.parse_args(words)
    if options.version:
        from barnabas import __version__
        from barnabas.common import compiled_core

        print(f"barnabas {__version__} ({compiled_core.describe()})")
        return exit_codes.OK
    if options.command is None:
        parser.print_help()
        return exit_codes.USAGE
    # Most commands report themselves that no broker can be reached.
    is_reported_by_log = options.command in _REPORTED_BY_LOG
    try:
        with nullcontext() if is_reported_by_log else errors_alone("barnabas.client.cluster"):
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                # Set by `barnabas.__main__`; from here on Ctrl-C lets the command clean up.
                signal.signal(signal.SIGINT, signal.default_int_handler)
            code: int = options.run(options) or exit_codes.OK
        # Flush here, so that a closed pipe raises here and not at exit. Without a stdout (`>&-`) it is None.
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has closed the pipe, as `head` does; print nothing more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except (BarnabasError, OSError) as error:
        print(f"barnabas {options.command}: {_text_of(error)}{_hint(options, error)}", file=sys.stderr)
        return exit_codes.exit_code_of(error)


def _text_of(error: BaseException) -> str:
    """The text of an error; for one of the system: its file and its reason, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _hint(options: argparse.Namespace, error: BaseException) -> str:
    """What to add to an error of the connection to a cluster."""
    if exit_codes.exit_code_of(error) != exit_codes.NOT_REACHABLE:
        return ""
    # Set by `chosen_bootstrap`: a command without a cluster need not import its module.
    source = getattr(options, "bootstrap_source", None)
    return f" (the address comes from {source})" if source else ""


if __name__ == "__main__":
    sys.exit(main())
