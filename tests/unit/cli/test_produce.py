"""Lines from any source, however its bytes come."""

import asyncio
import fcntl
import io
import json
import os
import re
import resource
import threading

import pytest

from barnabas.cli import perf
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.main import build_parser, main
from barnabas.cli.produce import MAX_LINE_BYTES, _produce, read_lines
from barnabas.client.consumer.consumer import Consumer
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import FakeTransactions
from tests.support.waiting import DEADLINE_S

_FIRST_HIGH = 1_024
_MANY_FILES = 4_096


class _Dribble(io.RawIOBase):
    """Returns its bytes in pieces of one size, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = io.BytesIO(data)
        self._size = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        piece = self._data.read(self._size)
        memoryview(buffer)[: len(piece)] = piece
        return len(piece)


async def _all_lines(data: bytes, size: int) -> list[bytes]:
    source = io.BufferedReader(_Dribble(data, size), buffer_size=max(size, 1))
    return [line async for lines in read_lines(source) for line in lines]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"\n\nx\n", [b"", b"", b"x"]),
        (b"dos\r\nunix\n", [b"dos", b"unix"]),
        (b"keeps \r inside\n", [b"keeps \r inside"]),
        (bytes(range(1, 10)) + b"\n", [bytes(range(1, 10))]),
    ],
)
async def test_lines_are_the_same_under_any_chunking(data: bytes, lines: list[bytes], size: int) -> None:
    # \n is byte 10, \r byte 13: range(1, 10) has neither.
    assert await _all_lines(data, size) == lines


async def test_a_line_without_end_is_refused() -> None:
    class Endless(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return b"x" * 4 * 1024 * 1024

        read = read1

    with pytest.raises(CommandError, match=f"longer than {MAX_LINE_BYTES:,} bytes"):
        await anext(read_lines(Endless()))


async def test_lines_come_before_the_source_ends() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb", buffering=0) as sink:
        lines = read_lines(source)
        sink.write(b"first\nsec")
        assert await anext(lines) == [b"first"]
        sink.write(b"ond\n")
        assert await anext(lines) == [b"second"]
        sink.close()
        with pytest.raises(StopAsyncIteration):
            await anext(lines)


async def test_a_source_that_does_not_block_has_not_ended_while_it_has_nothing() -> None:
    """Also with a descriptor that `select` does not take, as in a process with many files."""
    pieces = [b"first\n", None, b"second\n", b""]

    class Raw(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def fileno(self) -> int:
            return ready

        def readinto(self, buffer: object) -> int | None:
            piece = pieces.pop(0)
            if piece is None:
                return None
            memoryview(buffer)[: len(piece)] = piece
            return len(piece)

    low, writer = os.pipe()
    os.close(writer)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(_MANY_FILES, limits[1])), limits[1]))
    ready = fcntl.fcntl(low, fcntl.F_DUPFD, _FIRST_HIGH)
    try:
        source = io.BufferedReader(Raw())
        async with asyncio.timeout(DEADLINE_S):
            assert [line async for lines in read_lines(source) for line in lines] == [b"first", b"second"]
    finally:
        os.close(low)
        os.close(ready)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_reading_leaves_the_lock_of_the_source_free() -> None:
    """The interpreter takes that of stdin when it ends, and aborts if the reading thread has it."""

    class Raw(io.RawIOBase):
        is_free = False

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            closing = threading.Thread(target=source.close, daemon=True)
            closing.start()
            closing.join(timeout=5)
            self.is_free = not closing.is_alive()
            return 0

    raw = Raw()
    source = io.BufferedReader(raw)
    assert [lines async for lines in read_lines(source)] == []
    assert raw.is_free


async def test_a_line_too_large_is_reported_with_the_number_of_acknowledged_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "produce",
        "t",
        "--json",
        "--format",
        "value",
        "--set",
        "max.request.size=1000",
        "--set",
        "batch.size=100",
    ]
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        source = io.BytesIO(b"one\ntwo\n" + b"x" * 5_000 + b"\nfour\n")
        assert await _produce(build_parser("produce").parse_args(words), cluster.bootstrap, source) == FAILED
        assert cluster.partition("t").log_end_offset == 2
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert (summary["sent"], summary["acknowledged"]) == (2, 2)
    assert "MESSAGE_TOO_LARGE" in summary["error"]
    assert said.err.startswith("barnabas produce: 2 of 2 records acknowledged, then: MESSAGE_TOO_LARGE")


async def test_batches_that_fail_are_one_line_of_error(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = ["produce", "t", "--set", "batch.size=100", "--set", "linger.ms=0"]
    async with FakeCluster() as cluster:
        cluster.add_topic("t", partitions=4)
        cluster.configure_logs("t", max_message_bytes=500)
        source = io.BytesIO(b"".join(b"%d" % number + b"x" * 1_000 + b"\n" for number in range(20)))
        assert await _produce(build_parser("produce").parse_args(words), cluster.bootstrap, source) == FAILED
        assert len(cluster.requests(ApiKey.PRODUCE)) > 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"barnabas produce: 0 of \d+ records acknowledged, then: MESSAGE_TOO_LARGE.*", line)
    assert caplog.messages == []


async def test_a_measured_write_that_fails_is_one_error(caplog: pytest.LogCaptureFixture) -> None:
    words = ["perf", "produce", "t", "--records", "20", "--size", "1000"]
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        cluster.configure_logs("t", max_message_bytes=500)
        cluster.intercept[ApiKey.CREATE_TOPICS] = lambda broker, request: CreateTopicsResponse(
            topics=[CreatableTopicResult(name="t", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)]
        )
        with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
            await perf._produce(build_parser("perf").parse_args(words), cluster.bootstrap)
    assert caplog.messages == []


async def test_the_advice_for_a_missing_topic_names_the_brokers_that_were_given() -> None:
    async with FakeCluster() as cluster:
        options = build_parser("produce").parse_args(["produce", "t", "-b", cluster.bootstrap])
        advice = f"`barnabas topics create t -b {cluster.bootstrap}`"
        with pytest.raises(CommandError, match=re.escape(advice)):
            await _produce(options, cluster.bootstrap, io.BytesIO())


async def test_a_partition_that_does_not_exist_is_not_found() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        options = build_parser("produce").parse_args(["produce", "t", "--partition", "99"])
        with pytest.raises(CommandError, match="has no partition 99, only 0 to 0") as refused:
            await _produce(options, cluster.bootstrap, io.BytesIO(b"one\n"))
    assert refused.value.exit_code == NOT_FOUND


async def _write_in_transaction(cluster: FakeCluster, data: bytes, *words: str) -> int:
    options = build_parser("produce").parse_args(["produce", "t", "--transactional-id", "x", *words])
    return await _produce(options, cluster.bootstrap, io.BytesIO(data))


async def test_the_lines_of_a_transaction_are_committed_together() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        transactions = FakeTransactions(cluster)
        assert await _write_in_transaction(cluster, b"one\ntwo\n") == OK
        assert transactions.of("x").committed == [{b"one", b"two"}]
        assert transactions.wrong == []


async def test_a_failed_record_and_an_invalid_line_abort_the_transaction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        transactions = FakeTransactions(cluster)
        transactions.fail(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
        assert await _write_in_transaction(cluster, b"one\n", "--set", "retries=1") == FAILED
        assert "0 of 1 records acknowledged, then: the transaction" in capsys.readouterr().err
        limits = ["--set", "max.request.size=1000", "--set", "batch.size=100"]
        assert await _write_in_transaction(cluster, b"one\n" + b"x" * 5_000 + b"\n", *limits) == FAILED
        assert "0 of 1 records acknowledged, then: MESSAGE_TOO_LARGE" in capsys.readouterr().err
        with pytest.raises(CommandError, match="line 2: no key separator"):
            await _write_in_transaction(cluster, b"k:one\ntwo\n", "--key-separator", ":")
        assert transactions.of("x").committed == []
        assert transactions.wrong == []


async def _written(data: bytes, *words: str) -> tuple[int, list[tuple[object, ...]]]:
    """The exit code; partition, key, value, headers and time of each record in a topic of 2 partitions."""
    async with FakeCluster() as cluster:
        cluster.add_topic("t", partitions=2)
        options = build_parser("produce").parse_args(["produce", "t", *words])
        code = await _produce(options, cluster.bootstrap, io.BytesIO(data))
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            ends = await consumer.end_offsets([("t", 0), ("t", 1)])
            records = [await consumer.getone() for _ in range(sum(ends.values()))]
    records.sort(key=lambda record: (record.partition, record.offset))
    return code, [(r.partition, r.key, r.value, r.headers, r.timestamp_ms) for r in records]


async def test_json_lines_keep_their_partition_headers_time_and_nulls() -> None:
    lines = (
        b'{"topic": "s", "partition": 1, "offset": 9, "timestamp_ms": 7, "key": "", "value": null, '
        b'"headers": [{"name": "a", "value": "1"}, {"name": "a", "value_base64": "gA=="}]}\n'
        b'{"partition": 0, "key_base64": "gA==", "value": ""}\n'
    )
    code, records = await _written(lines, "--json", "--timestamp", "5")
    assert code == OK
    assert records == [
        (0, b"\x80", b"", (), 5),
        (1, b"", None, (("a", b"1"), ("a", b"\x80")), 7),
    ]


async def test_options_give_records_what_their_lines_lack() -> None:
    own = b'{"partition": 1, "key": "own", "value": "", "headers": {"a": "1"}}\n{"value": "x"}\n'
    given = [
        "-k",
        "k",
        "-H",
        "h=1",
        "-H",
        "h=",
        "-Z",
        "--timestamp",
        "1970-01-01T00:00:01Z",
        "--partition",
        "0",
    ]
    pairs = (("h", b"1"), ("h", b""))
    assert (await _written(own, "--format", "json", *given))[1] == [
        (0, b"own", None, (("a", b"1"), *pairs), 1000),
        (0, b"k", b"x", pairs, 1000),
    ]
    assert (await _written(b"\nx\n", *given))[1] == [
        (0, b"k", None, pairs, 1000),
        (0, b"k", b"x", pairs, 1000),
    ]
    assert (await _written(b"a\t\n", "--format", "key-value", *given[2:]))[1] == [
        (0, b"a", None, pairs, 1000)
    ]


async def test_a_partition_that_the_topic_lacks_is_an_error_or_ignored() -> None:
    lines = b'{"partition": 1, "value": "a"}\n{"partition": 2, "key": "k", "value": "b"}\n'
    said = r"line 2: topic t has no partition 2, only 0 to 1; --ignore-partition .* before it: 1 of 1"
    with pytest.raises(CommandError, match=said):
        await _written(lines, "--json")
    assert len((await _written(lines, "--json", "--ignore-partition"))[1]) == 2


async def test_the_place_of_each_record_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    await _written(b"a\nb\n", "--partition", "1", "--show-offsets", "--timestamp", "5")
    assert capsys.readouterr().out.splitlines() == [f"t-1  {n}  1970-01-01T00:00:00.005Z" for n in (0, 1)]
    await _written(b'{"value": 1, "timestamp_ms": 5}\n', "--json", "--partition", "1", "--show-offsets")
    place, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert place == {"topic": "t", "partition": 1, "offset": 0, "timestamp_ms": 5}
    assert summary["acknowledged"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--key-separator", ":", "--format", "value"],
            "--key-separator: expected --format key-value, not value",
        ),
        (["--key-separator", ":", "--key", "k"], "--key: every line has a key of its own"),
        (["--ignore-partition"], "--ignore-partition: expected --format json, not value"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", "t", "-b", "127.0.0.1:1", *words]) == USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-H", "name"], ["-H", "=v"], ["-H", "\udcff=v"], ["--timestamp", "soon"]])
def test_a_malformed_header_or_time_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser("produce").parse_args(["produce", "t", *words])
