"""New offsets of a group: times, durations, partitions and files as an operator writes them."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.cli.groups import (
    _rows_of,
    chosen_partitions,
    duration_ms,
    lag_summary,
    lag_text,
    offsets_in,
    time_ms,
    within,
)
from barnabas.cli.main import build_parser
from barnabas.client.admin.groups import GroupDescription
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.support.fake_broker import FakeCluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("lags_and_ends", "total", "text"),
    [
        ([(3, 9), (4_000, 9_000)], 4_003, "lag 4,003"),
        ([(0, 9)], 0, "lag 0"),
        ([], None, "lag - (no committed offsets)"),
        ([(None, 9), (None, 9)], None, "lag - (2 partitions without a committed offset)"),
        (
            [(None, 9), (None, None), (6, 9), (1, 9)],
            None,
            "lag - (1 partition without a committed offset, 1 partition without a leader, 7 in the others)",
        ),
    ],
)
def test_an_unknown_lag_is_not_0(
    lags_and_ends: list[tuple[int | None, int | None]], total: int | None, text: str
) -> None:
    rows = [
        {
            "lag": lag,
            "log_end_offset": end,
            "committed_offset": None if lag is None or end is None else end - lag,
        }
        for lag, end in lags_and_ends
    ]
    unknown = sum(lag is None for lag, _ in lags_and_ends)
    assert lag_summary(rows) == {"lag": total, "unknown_lag_partitions": unknown}
    assert lag_text(rows) == text


def test_the_lag_of_an_offset_beyond_the_end_is_unknown() -> None:
    group = GroupDescription("g", "Empty", "consumer", "", BrokerId(1), ())
    end = 14
    committed = {A0: OffsetAndMetadata(100), B0: OffsetAndMetadata(4)}
    rows = _rows_of(group, [A0, B0], committed, {}, {A0: end, B0: end})
    assert [row["lag"] for row in rows] == [None, 10]
    assert lag_text(rows) == "lag - (1 partition with a committed offset beyond its end, 10 in the others)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T00:00:00.250Z", 250),
        ("1970-01-01T02:00:00+01:00", 3_600_000),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, expected: int) -> None:
    assert time_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1D", 86_400_000),
        ("PT2H30M", 9_000_000),
        ("P1DT1.5S", 86_401_500),
        ("PT0S", 0),
    ],
)
def test_a_duration_is_iso_8601(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((duration_ms, text) for text in ("", "P", "PT", "P1DT", "1D", "P1Y", "PT-1S", "P1D ")),
        *((time_ms, text) for text in ("yesterday", "", "1969-12-31T23:59:59Z")),
    ],
)
def test_other_texts_are_wrong_usage(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(CommandError, match=r"expected a (duration|time)") as refused:
        parse(text)
    assert refused.value.exit_code == USAGE


def test_a_topic_means_all_its_partitions_or_the_named_ones() -> None:
    assert chosen_partitions(["a", "b:0", "a:1"], {"a": 2, "b": 3}) == [A0, A1, B0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((text, NOT_FOUND) for text in ("c", "c:0", "a:2")),
        *((text, USAGE) for text in ("a:", "a:x", "a:0,", "a:-1")),
    ],
)
def test_a_missing_partition_is_not_found_and_a_malformed_one_wrong_usage(text: str, code: int) -> None:
    with pytest.raises(CommandError, match=r"--topic|there is no topic 'c'") as refused:
        chosen_partitions([text], {"a": 2})
    assert refused.value.exit_code == code


def test_a_file_names_offsets(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text("a,0,5\n\n b , 0 , 7\n")
    assert offsets_in(path) == {A0: 5, B0: 7}


@pytest.mark.parametrize(("text", "said"), [("a,0\n", "line 1"), ("a,0,1\na,0,2\n", "twice"), ("", "none")])
def test_a_malformed_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=said):
        offsets_in(path)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="not valid UTF-8") as refused:
        offsets_in(path)
    assert refused.value.exit_code == USAGE


def test_offsets_stay_within_the_log_and_others_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert [within(A0, offset, 10, 20) for offset in (5, 10, 15, 20, 25)] == [10, 10, 15, 20, 20]
    assert capsys.readouterr().err.splitlines() == [
        "barnabas groups: a-0 has no offset 5, only 10 to 20: 10 is used",
        "barnabas groups: a-0 has no offset 25, only 10 to 20: 20 is used",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--to-earliest", "has committed no offsets of topics that exist; name topics with --topic TOPIC"),
        (
            "--topic t --shift-by 1",
            "has committed no offsets there, so none can be shifted; give",
        ),
        ("--topic t:1 --from-file {file}", "{file} names none of the partitions of --topic"),
    ],
)
async def test_a_reset_of_nothing_says_what_is_missing(words: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets"
    file.write_text("t,0,0\n")
    given = ["groups", "reset-offsets", "g", *words.format(file=file).split()]
    async with FakeCluster() as cluster:
        cluster.add_topic("t", partitions=2)
        options = build_parser("groups").parse_args([*given, "-b", cluster.bootstrap])
        with pytest.raises(CommandError, match=re.escape(said.format(file=file))) as refused:
            await asyncio.to_thread(options.run, options)
    assert refused.value.exit_code == NOT_FOUND
