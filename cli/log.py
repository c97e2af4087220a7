"""`barnabas log`: dump a log's files, verify a log dir, repair a damaged replica."""

from __future__ import annotations

import argparse

from barnabas.cli import log_dump, log_repair, log_verify


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for module in (log_dump, log_verify, log_repair):
        module.add_action(actions)


def run(options: argparse.Namespace) -> int:
    """Run the action; each is a module of its own."""
    actions = {"dump": log_dump.run, "verify": log_verify.run, "repair": log_repair.run}
    return actions[options.action](options)
