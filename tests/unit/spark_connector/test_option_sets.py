"""The real sets of options against logs in memory: what each reads, and the error of each that is refused."""

import re
from typing import Any

import pytest

from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.options import parse_options
from barnabas.spark_connector.source.batch_reader import BarnabasReader, find_partitions, start_offsets
from barnabas.spark_connector.source.schema import source_schema
from tests.spark.option_sets import BATCH_SETS, RECORDS, STREAM_SETS, OptionSet, Place, Refused
from tests.support.batches import build_batch

SERVERS = {"kafka.bootstrap.servers": "a:1"}


@pytest.fixture
def filled(view: Any) -> Any:
    for record in RECORDS:
        tp = TopicPartition(record.topic, record.partition)
        view.append(tp)
        batch = build_batch(
            [(record.key, record.value)], timestamp_ms=record.timestamp_ms, base_offset=view.committed[tp]
        )
        view.append(tp, batch)
    return view


def places(view: Any, given: dict[str, str]) -> set[Place]:
    options = parse_options(given)
    made = BarnabasReader(options, source_schema(include_headers=options.include_headers), view)
    rows = [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]
    read = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert len(read) == len(set(read))
    return set(read)


@pytest.mark.parametrize("case", BATCH_SETS, ids=lambda case: case.name)
def test_a_batch_reads_what_sparks_source_reads(filled: Any, case: OptionSet) -> None:
    if isinstance(case.expectation, Refused):
        with pytest.raises(BarnabasError) as raised:
            places(filled, SERVERS | case.options)
        assert re.search(case.expectation.barnabas, str(raised.value))
    else:
        assert places(filled, SERVERS | case.options) == case.expectation


@pytest.mark.parametrize("case", STREAM_SETS, ids=lambda case: case.name)
def test_a_stream_starts_where_sparks_source_starts(filled: Any, case: OptionSet) -> None:
    if isinstance(case.expectation, Refused):
        with pytest.raises(BarnabasError) as raised:
            parse_options(SERVERS | case.options, streaming=True)
        assert re.search(case.expectation.barnabas, str(raised.value))
        return
    options = parse_options(SERVERS | case.options, streaming=True)
    _, partitions = find_partitions(options, filled)
    ends = filled.end_offsets(partitions)
    special = {-1: ends, -2: filled.log_start_offsets(partitions)}
    starts = start_offsets(options, filled, partitions)
    resolved = {tp: special[start][tp] if start < 0 else start for tp, start in starts.items()}
    assert case.expectation == {
        (*tp, offset) for tp in partitions for offset in range(resolved[tp], ends[tp])
    }
