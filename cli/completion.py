"""`barnabas completion bash|zsh`: a script that completes commands and options, made by shtab."""

from __future__ import annotations

import argparse

from barnabas.cli.action import arg, command


def _print(options: argparse.Namespace) -> None:
    import shtab

    from barnabas.cli.main import COMMANDS, build_parser

    print(shtab.complete(build_parser(*COMMANDS), shell=options.shell))


add_arguments = command(
    _print,
    arg("shell", choices=("bash", "zsh")),
    epilog='in bash: eval "$(barnabas completion bash)"; in zsh the same with zsh, after compinit',
)
