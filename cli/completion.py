"""`barnabas completion bash|zsh`: a script that completes commands and options, made by shtab."""

from __future__ import annotations

import argparse

from barnabas.cli.exit_codes import OK


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.epilog = 'in bash: eval "$(barnabas completion bash)"; in zsh the same with zsh, after compinit'


def run(options: argparse.Namespace) -> int:
    import shtab

    from barnabas.cli.main import COMMANDS, build_parser

    print(shtab.complete(build_parser(*COMMANDS), shell=options.shell))
    return OK
