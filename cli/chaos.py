"""`barnabas chaos`: a scripted scenario of faults under load on a cluster of its own, judged, with a report.

The cluster lives in a temporary directory and ends with the command, also by Ctrl-C and SIGTERM. Exit code 1
says that a promise was broken that the scenario's settings do not give up, or that a step failed. Ctrl-C ends
the run, with a report of the load so far.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from barnabas.chaos.run import run
from barnabas.chaos.scenario import builtin_scenarios, find_scenario, read_scenario
from barnabas.cli.action import arg, command, flag, show
from barnabas.cli.arguments import new_directory, number
from barnabas.cli.exit_codes import FAILED, INTERRUPTED, NOT_FOUND, OK, TERMINATED, USAGE, CommandError
from barnabas.cli.output import print_json

_NAME: Final = "barnabas-chaos.html"


def _run(options: argparse.Namespace) -> int:
    if options.list:
        rows = [
            {"name": name, "title": read_scenario(path).title} for name, path in builtin_scenarios().items()
        ]
        show(options, rows, ("name", "title"))
        return OK
    if options.scenario is None:
        raise CommandError(f"expected a file or one of {', '.join(builtin_scenarios())}; see --list", USAGE)
    scenario = read_scenario(find_scenario(options.scenario))
    # Before a run of seconds, not after it.
    from barnabas.ui.report import render_report

    _check_report(options.report)
    directory = new_directory(options.dir, "barnabas-chaos-")
    screen = sys.stderr if options.json else sys.stdout

    def say(seconds: float, text: str) -> None:
        print(f"{seconds:6.2f} s  {text}", file=screen, flush=True)

    is_kept = options.dir is not None or options.keep
    print(f"{scenario.title}: {scenario.cluster.brokers} brokers in {directory}", file=screen, flush=True)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        recording = run(scenario, options.scenario, directory, seed=options.seed, say=say)
        is_kept = is_kept or not (recording.conclusion.is_good or recording.was_interrupted)
    finally:
        if not is_kept:
            shutil.rmtree(directory, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    for sentence in recording.conclusion.sentences:
        print(f"  {sentence}", file=screen)
    if is_kept:
        print(f"kept: {directory}", file=screen)
    if options.json:
        print_json(recording.data | {"report": str(options.report)})
    # Last, so that a disk that is full by now costs the report alone.
    _write_report(options.report, render_report(recording.data))
    print(f"report: {options.report}", file=screen)
    if recording.was_interrupted:
        return INTERRUPTED
    return OK if recording.conclusion.is_good else FAILED


def _check_report(report: Path) -> None:
    folder = report.absolute().parent
    if not folder.is_dir():
        raise CommandError(f"--report {report}: there is no directory {folder}", NOT_FOUND)
    if report.is_dir():
        raise CommandError(f"--report {report}: expected a file, and this is a directory", USAGE)
    if not os.access(report if report.exists() else folder, os.W_OK):
        raise CommandError(f"--report {report}: it may not be written")


def _write_report(report: Path, text: str) -> None:
    try:
        report.write_text(text, encoding="utf-8")
    except OSError as error:
        if report.is_file():
            # Half a report would show a part of the run.
            report.unlink()
        raise CommandError(f"--report {report}: it was not written: {error.strerror}") from error


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


add_arguments = command(
    _run,
    arg("scenario", "NAME|FILE", "a built-in scenario (--list), or a file in TOML", nargs="?"),
    flag("--list", "print the built-in scenarios"),
    arg(
        "--report", "FILE", f"where the report is written (default: {_NAME})", type=Path, default=Path(_NAME)
    ),
    arg("--seed", "N", "of the choices among followers (default: 1)", type=number(0), default=1),
    arg("--dir", "DIR", "a new or empty directory for the cluster, which is kept", type=Path),
    flag("--keep", "keep the directory; it is also kept if a promise is broken or a step fails"),
    flag("--json", "print the recording as one JSON object on stdout, progress on stderr"),
    epilog="exit code 0 if every promise holds that the settings give; 1 if one is broken or a step failed",
)
