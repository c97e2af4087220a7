"""`barnabas log`: its actions on the files of a log, each in a module of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from barnabas.cli import log_dump, log_repair, log_verify
from barnabas.cli.action import Action, actions, arg, flag, repeated
from barnabas.cli.arguments import bootstrap_option, number
from barnabas.common.settings import LONG_MAX

add_arguments = actions(
    Action(
        "dump",
        "print the files of a log: batches, records, indexes, producers, checkpoints",
        log_dump.run,
        (
            arg(
                "files",
                "FILE",
                "a file, or the folder of a partition for all its files",
                nargs="+",
                type=Path,
            ),
            flag("--deep", "print the records of each batch too"),
            flag("--offsets-decoder", "decode the records as those of __consumer_offsets (implies --deep)"),
            arg("--max", "N", "at most N entries of each file", type=number(0, LONG_MAX)),
            flag("--json", "one JSON object per line"),
        ),
        "exit code: 0 done, 1 a file is damaged, 2 not a file of a log, 4 no such file",
    ),
    Action(
        "verify",
        "report damage in the log dir of a stopped broker",
        log_verify.run,
        (
            arg("dir", "DIR", "a log dir, or the folder of a partition in it", type=Path),
            flag("--quick", "check the batches' headers and CRCs, not their records"),
            # The former name of the default.
            flag("--deep", argparse.SUPPRESS),
            arg("--jobs", "N", "check with N processes (default: one for each processor)", type=number(1)),
            repeated(
                "--compare",
                "DIR",
                "verify the log dir of another stopped broker too, and compare its replicas",
                type=Path,
            ),
            flag("--json", "print one JSON object"),
        ),
        "exit code: 0 whole, 1 damaged, 2 not a log dir, or in use by a running broker, 4 no such folder",
    ),
    Action(
        "repair",
        "set damaged replicas of a stopped broker aside",
        log_repair.run,
        (
            arg("dir", "DIR", "a log dir of the stopped broker", type=Path),
            arg("partitions", "TOPIC-PARTITION", "these (default: all damaged ones)", nargs="*"),
            bootstrap_option(),
            flag(
                "--accept-data-loss",
                "also if no other replica is known to have the records, which may then be lost",
            ),
        ),
    ),
)
