"""`barnabas log`: its actions on the files of a log, each in a module of its own."""

from __future__ import annotations

import argparse
from typing import Final

from barnabas.cli import log_dump, log_repair, log_verify

_ACTIONS: Final = {"dump": log_dump, "verify": log_verify, "repair": log_repair}
"""Action → its module, which has ``add_action`` and ``run``."""


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for module in _ACTIONS.values():
        module.add_action(actions)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    code: int = _ACTIONS[options.action].run(options)
    return code
