"""`barnabas elect preferred|unclean`: let preferred replicas lead, or any live ones of leaderless partitions.

Exit code 0 if every partition that needed a leader got one, 1 if one did not, 4 for an unknown partition.
"""

from __future__ import annotations

import argparse

from barnabas.cli.action import answer, arg, flag
from barnabas.cli.arguments import check_partitions, on_cluster
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK
from barnabas.client.admin.admin import Admin, ElectionType
from barnabas.protocol.errors import ApiError, ErrorCode

_TYPES = {"preferred": ElectionType.PREFERRED, "unclean": ElectionType.UNCLEAN}


async def _elect(options: argparse.Namespace, admin: Admin) -> int:
    named = None if options.all else options.partitions
    outcomes = sorted((await admin.elect_leaders(named, election_type=_TYPES[options.type])).items())
    rows = [
        {
            **tp._asdict(),
            "is_elected": error is None,
            "error": None if error is None or _is_unneeded(error) else str(error),
        }
        for tp, error in outcomes
    ]
    lines = [f"{tp.topic}:{tp.partition} {_described(error)}" for tp, error in outcomes]
    answer(options, rows, *(lines or ["no partition needs an election"]))
    codes = {error.code for _, error in outcomes if error is not None and not _is_unneeded(error)}
    if not codes:
        return OK
    return NOT_FOUND if codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} else FAILED


def _is_unneeded(error: ApiError) -> bool:
    return error.code == ErrorCode.ELECTION_NOT_NEEDED


def _described(error: ApiError | None) -> str:
    if error is None:
        return "has a new leader"
    return "needs no election" if _is_unneeded(error) else f"failed: {error}"


add_arguments = on_cluster(
    "elect",
    "",
    _elect,
    arg(
        "type",
        help="preferred: the first replica of each partition, if it is in sync; "
        "unclean: any live replica of a partition without a leader, which loses records",
        choices=sorted(_TYPES),
    ),
    arg("partitions", "TOPIC:PARTITION", "or --all that need it", nargs="*"),
    flag("--all", "all partitions that need it"),
    check=check_partitions,
).add_to
