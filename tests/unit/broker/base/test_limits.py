"""The table of docs/guarantees.md has the bounds that the code has."""

from pathlib import Path

import pytest

from barnabas.broker.base import limits
from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.config.settings import SETTINGS
from barnabas.broker.coordinators.groups.group import GROUP_BYTES
from barnabas.broker.coordinators.groups.members import MEMBER_BYTES
from barnabas.broker.log.batch_scan import LARGE_BYTES, SMALL_BYTES
from barnabas.controller.assignment import MAX_PARTITIONS
from barnabas.protocol.errors import MAX_TEXTS_LENGTH
from barnabas.protocol.record_walk import MAX_ELEMENTS, MAX_UNPACKED_BYTES
from barnabas.protocol.schema import MAX_ARRAY_LENGTH, MAX_HEAD_BYTES, MAX_INNER_ELEMENTS, MAX_STRING_BYTES

PAGE = Path(__file__).parents[4] / "docs" / "guarantees.md"
MB = 1 << 20
ONE = ConnectionLimits()
POOLED_BYTES = limits.POOLED_SMALL_BLOCKS * SMALL_BYTES + limits.POOLED_LARGE_BLOCKS * LARGE_BYTES


def rows() -> list[str]:
    text = PAGE.read_text().partition("## What one peer can take")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(
    ("resource", "bound"),
    [
        (
            "a message without its records",
            f"{MAX_HEAD_BYTES // MB} MB; {MAX_ARRAY_LENGTH:,} elements in an array; in a request "
            f"{MAX_INNER_ELEMENTS:,} in all arrays within arrays, and {MAX_STRING_BYTES:,} bytes in a string",
        ),
        (
            "a connection's received requests without an answer",
            f"{ONE.max_in_flight}, and {ONE.max_in_flight_bytes // MB} MB or one frame",
        ),
        (
            "all received requests, and those that are being sent",
            f"`queued.max.request.bytes` and one request; {ONE.always_bytes // 1024} KB for each connection",
        ),
        (
            "a connection's answers that the peer does not read",
            f"{2 * ONE.max_unwritten_bytes // MB} MB and one answer",
        ),
        (
            "all waiting requests",
            f"{limits.MAX_WAITING:,} fetches of consumers, of followers, produces, deletions each; "
            f"{limits.MAX_WAITING_FOR_TOPICS:,} about topics; {limits.MAX_WAITING_PARTITIONS:,} "
            "partitions or topics in each of these",
        ),
        (
            "groups of a partition of `__consumer_offsets` that have neither a generation nor an offset yet",
            f"{limits.MAX_NEW_GROUPS:,}",
        ),
        ("a member of a group", f"{limits.MAX_MEMBER_PROTOCOLS} protocols"),
        (
            "the metadata of a group's members",
            f"{limits.MAX_GROUP_METADATA_BYTES // MB} MB, names of protocols included",
        ),
        (
            "all groups of a broker, without their offsets",
            f"{limits.MAX_GROUPS_BYTES // MB} MB: {GROUP_BYTES // 1000} KB for each group, "
            f"{MEMBER_BYTES // 1000} KB for each member or assigned member id, and the bytes that "
            "members send",
        ),
        (
            "old records, copied into memory, in all answers",
            f"{(POOLED_BYTES + limits.MAX_UNPOOLED_BYTES) // MB} MB and one answer for each of "
            f"{limits.COLD_READERS} threads",
        ),
        ("indexes of sealed segments in memory", f"{limits.MAX_INDEX_BYTES // MB} MB, or one index"),
        ("a request that makes topics or partitions", f"{MAX_PARTITIONS:,} partitions in all its topics"),
        ("the settings of new topics in an answer", f"{limits.MAX_NEW_CONFIGS_BYTES // MB} MB"),
        ("the error texts of an answer", f"{MAX_TEXTS_LENGTH:,} characters"),
        ("fetches that wait to read old records", f"{limits.MAX_WAITING_FOR_COLD_READERS:,}"),
        (
            "consumers' fetch sessions",
            f"`max.incremental.fetch.session.cache.slots`, {limits.MAX_SESSION_PARTITIONS:,} partitions, "
            f"{limits.MAX_PARTITIONS_OF_SESSION:,} in one",
        ),
        ("followers' fetch sessions", f"one for each broker, {limits.MAX_SESSION_PARTITIONS:,} partitions"),
        (
            "a connection's run on a network thread",
            f"{ONE.run_ns // 1_000_000} ms and the request in progress",
        ),
        ("appends to slow disks", f"{limits.DISK_WORKERS} at a time"),
        (
            "a produced batch",
            f"{MAX_ELEMENTS:,} records and headers; decompressed, the larger of "
            f"{MAX_UNPACKED_BYTES // 1_000_000} million bytes and `max.message.bytes`",
        ),
        (
            "the batches of a partition in a produce request",
            f"1; in the native protocol {limits.MAX_PRODUCED_BATCHES:,}",
        ),
        (
            "requests that look into records for more than a moment, lookups by time among them",
            f"{limits.RECORDS_WORKERS} at a time",
        ),
    ],
)
def test_the_guarantees_have_the_bounds_of_the_code(resource: str, bound: str) -> None:
    assert [row.split(" | ")[1] for row in rows() if row.startswith(f"| {resource} |")] == [bound]


def test_the_guarantees_name_settings_that_exist() -> None:
    named = {word for row in rows() for word in row.split("`")[1::2]}
    assert named - {"max.message.bytes", "compression.type", "__consumer_offsets"} <= set(SETTINGS)
