"""`barnabas elect preferred|unclean`: let preferred replicas lead, or any live ones of leaderless partitions.

Exit code 0 if every partition that needed a leader got one, 1 if one did not, 4 for an unknown partition.
"""

from __future__ import annotations

import argparse
from typing import Any

from barnabas.cli.arguments import add_cluster_arguments, chosen_bootstrap, run_async
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.log_dirs import partition_of
from barnabas.cli.output import print_json
from barnabas.client.admin.admin import Admin, ElectionType
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition

_TYPES = {"preferred": ElectionType.PREFERRED, "unclean": ElectionType.UNCLEAN}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "type",
        choices=sorted(_TYPES),
        help="preferred: the first replica of each partition, if it is in sync; "
        "unclean: any live replica of a partition without a leader, which loses records",
    )
    parser.add_argument("partitions", nargs="*", metavar="TOPIC:PARTITION", help="or --all that need it")
    parser.add_argument("--all", action="store_true", help="all partitions that need it")
    add_cluster_arguments(parser, json_help="print JSON")


def run(options: argparse.Namespace) -> int:
    if bool(options.partitions) == options.all:
        raise CommandError("name partitions as TOPIC:PARTITION, or give --all", USAGE)
    return run_async(_elect(options, chosen_bootstrap(options)))


async def _elect(options: argparse.Namespace, bootstrap: str) -> int:
    named = None if options.all else [partition_of(text) for text in options.partitions]
    async with Admin(bootstrap_servers=bootstrap) as admin:
        outcomes = await admin.elect_leaders(named, election_type=_TYPES[options.type])
    if options.json:
        print_json([_as_json(tp, error) for tp, error in sorted(outcomes.items())])
    else:
        for tp, error in sorted(outcomes.items()):
            print(f"{tp.topic}:{tp.partition} {_described(error)}")
        if not outcomes:
            print("no partition needs an election")
    failures = [error for error in outcomes.values() if error is not None and not _is_unneeded(error)]
    if not failures:
        return OK
    codes = {error.code for error in failures}
    return NOT_FOUND if codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} else FAILED


def _is_unneeded(error: ApiError) -> bool:
    return error.code == ErrorCode.ELECTION_NOT_NEEDED


def _described(error: ApiError | None) -> str:
    if error is None:
        return "has a new leader"
    return "needs no election" if _is_unneeded(error) else f"failed: {error}"


def _as_json(tp: TopicPartition, error: ApiError | None) -> dict[str, Any]:
    text = None if error is None or _is_unneeded(error) else str(error)
    return {"topic": tp.topic, "partition": tp.partition, "is_elected": error is None, "error": text}
