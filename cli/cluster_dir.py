"""The directory of a command's local cluster: ``--dir``, ``BARNABAS_DIR`` or ``~/.barnabas/default``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from barnabas.cli.exit_codes import NOT_FOUND, CommandError
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import STATE_FILE

DIR_VARIABLE: Final = "BARNABAS_DIR"


def default_dir() -> Path:
    """The directory of the cluster if the command line names none."""
    given = os.environ.get(DIR_VARIABLE)
    return Path(given) if given else Path.home() / ".barnabas" / "default"


def add_dir_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        default=None,
        metavar="DIR",
        help=f"the cluster's directory (default: ${DIR_VARIABLE}, else ~/.barnabas/default)",
    )


def chosen_dir(options: argparse.Namespace) -> Path:
    found: Path = options.dir or default_dir()
    return found.expanduser().absolute()


def open_cluster(options: argparse.Namespace) -> RunningCluster:
    """The cluster in the chosen directory; raises CommandError (not found) if there never was one."""
    directory = chosen_dir(options)
    if not (directory / STATE_FILE).exists():
        raise CommandError(
            f"there is no cluster in {directory}; start one with `barnabas up --dir {directory}`", NOT_FOUND
        )
    return RunningCluster.open(directory)


def open_running_cluster(options: argparse.Namespace) -> RunningCluster:
    """As `open_cluster`, but the cluster must be running."""
    cluster = open_cluster(options)
    if not cluster.is_running:
        raise CommandError(f"the cluster in {cluster.directory} is not running", NOT_FOUND)
    return cluster
