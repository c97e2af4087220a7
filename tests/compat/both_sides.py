"""The pages in docs/coming-from: tables are programs, and both columns of a row must have the same effect.

A table of three columns ("what to do", "there", "here") is two programs: the code of a column from top to
bottom. They run at the same time, each with a topic and a group of its own, and are compared after every row:
the records of the topic, its settings, the topics and the committed offsets (`Watch`), and the values that
both cells assign to the same name (`plain`). A row that changes none of these, and makes no object that a
later row needs, shows nothing and is a failure. A cell without code has no equivalent; then the other one is
run alone.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from barnabas.client import ConfigResource, ConsumerRecord, NewTopic, TopicPartition
from barnabas.client.blocking import Admin, Consumer, Producer
from tests.support.names import fresh_name

SEEDED: Final = 5
"""Records in partition 0 of each topic; partition 1 is empty. Their timestamps are a second apart."""
FIRST_MS: Final = 1_700_000_000_000
_RECENT_MS: Final = 3_600_000
_LIMIT_S: Final = 30
OUTPUT: Final = "output"
"""The name of what a command prints, among the values of a row."""
Names = dict[str, Any]


@dataclass(frozen=True)
class Row:
    task: str
    there: str
    here: str

    @property
    def both(self) -> bool:
        return bool(self.there and self.here)


@dataclass(frozen=True)
class Table:
    page: str
    title: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.title}"


def code_in(cell: str) -> str:
    """The code spans of a cell, each a line."""
    return "\n".join(re.findall(r"`([^`]+)`", cell)).replace("\\|", "|")


def tables_of(page: str, text: str) -> Iterator[Table]:
    """The tables of code; those with another number of columns are not programs."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        lines = [line[1:-1] for line in body.splitlines() if line.startswith("|")]
        rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", line)]
            for line in lines
        ]
        if rows and len(rows[0]) == 3:
            is_run = "not run" not in rows[0][1]
            yield Table(
                page,
                title,
                tuple(
                    Row(task, code_in(there) if is_run else "", code_in(here))
                    for task, there, here in rows[2:]
                ),
            )


def settings_of(text: str) -> dict[str, str]:
    """The table of two columns: settings there, and their names here."""
    return dict(re.findall(r'^\| `"?([\w.]+)"?` \| `(\w+)` \|$', text, flags=re.MULTILINE))


def imports_of(text: str) -> list[str]:
    """The blocks of Python on a page, with which its two columns begin; none on a page of commands."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def assigned(code: str) -> set[str]:
    tree = ast.parse(code)
    return {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


# -- what a row has done -------------------------------------------------------------------------------------


class Opaque:
    """An object that has no plain value, such as a client."""


@dataclass
class Plain:
    """Values of any library as tuples, numbers and bytes, without names that differ between the columns."""

    names: Mapping[str, str]

    def __call__(self, value: Any) -> Any:
        match value:
            case None | bool() | int() | float() | bytes():
                return _old_time(value)
            case str():
                for name, general in self.names.items():
                    value = value.replace(name, general)
                return value
            case BaseException():
                return self._error(value)
            case Mapping():
                return {self(key): self(one) for key, one in value.items()}
            case set() | frozenset():
                return sorted(map(self, value), key=repr)
        if (record := self._record(value)) is not None:
            return record
        if (place := self._place(value)) is not None:
            return place
        if isinstance(value, list | tuple):
            return [self(one) for one in value]
        return Opaque

    def _error(self, error: BaseException) -> Any:
        code = getattr(error, "error_code", getattr(error, "errno", None))
        if error.args and callable(getattr(error.args[0], "code", None)):
            code = error.args[0].code()
        return ("error", Opaque if code is None else int(code))

    def _record(self, value: Any) -> Any:
        parts = [_get(value, name) for name in ("partition", "offset", "key", "value", "headers")]
        if any(part is _MISSING for part in parts):
            return None
        partition, offset, key, data, headers = parts
        pairs = sorted(headers.items() if isinstance(headers, Mapping) else headers or ())
        stamp = _get(value, "timestamp_ms")
        stamp = _get(value, "timestamp") if stamp is _MISSING else stamp
        stamp = stamp[1] if isinstance(stamp, tuple) else stamp
        return (
            "record",
            partition,
            offset,
            self(key),
            self(data),
            [tuple(one) for one in pairs],
            _old_time(stamp),
        )

    def _place(self, value: Any) -> Any:
        """A partition, an offset, or both: what theirs and ours name differently."""
        partition, offset = (_get(value, name) for name in ("partition", "offset"))
        if partition is _MISSING and offset is _MISSING:
            return None
        return tuple(number for number in (partition, offset) if isinstance(number, int))


_MISSING: Final = object()


def _has_opaque(value: Any) -> bool:
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return value is Opaque or (isinstance(parts, list | tuple) and any(map(_has_opaque, parts)))


def _get(value: Any, name: str) -> Any:
    part = getattr(value, name, _MISSING)
    return part() if inspect.ismethod(part) or inspect.isbuiltin(part) else part


def _old_time(value: Any) -> Any:
    """The time of now differs between two columns."""
    is_now = isinstance(value, int) and abs(value - time.time() * 1000) < _RECENT_MS
    return "now" if is_now else value


class Seat:
    """The cluster and the clients that all columns share."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap_servers=bootstrap)
        self.producer = Producer(bootstrap_servers=bootstrap)
        # A fetch at the end of another topic must not hold the next one up.
        self._reader = Consumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", fetch_max_wait_ms=5
        )
        self._reading = threading.Lock()

    def read(self, seen: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        """Add the committed records that are new, and take those away that are deleted."""
        with self._reading:
            ends, starts = self._reader.end_offsets(seen), self._reader.beginning_offsets(seen)
            for tp, records in seen.items():
                records[:] = [record for record in records if record.offset >= starts[tp]]
                position = max(starts[tp], records[-1].offset + 1 if records else 0)
                if position < ends[tp]:
                    self._reader.assign([tp])
                    self._reader.seek(tp, position)
                    while self._reader.position(tp) < ends[tp]:
                        records.extend(self._reader.poll(1_000))
            self._reader.assign([])

    def close(self) -> None:
        for client in (self.admin, self.producer, self._reader):
            client.close()


class Watch:
    """The outside view of a program: the topics with its prefix, their records, its group."""

    def __init__(self, seat: Seat) -> None:
        self.topic, self.group = fresh_name("t"), fresh_name("g")
        self.plain = Plain({self.topic: "topic", self.group: "group"})
        self._admin = seat.admin
        self._seat = seat
        self._records: dict[TopicPartition, list[ConsumerRecord]] = {}
        self._admin.create_topics(NewTopic(self.topic, 2, 1))
        for n in range(SEEDED):
            time_ms = FIRST_MS + 1_000 * n
            seat.producer.send(self.topic, b"v%d" % n, b"k%d" % n, partition=0, timestamp_ms=time_ms)
        seat.producer.flush()

    def state(self) -> Names:
        topics = [name for name in self._admin.list_topics() if name.startswith(self.topic)]
        counts = {name: len(one.partitions) for name, one in self._admin.describe_topics(topics).items()}
        state: Names = {"topics": counts}
        if self.topic in counts:
            resource = ConfigResource.topic(self.topic)
            entries = self._admin.describe_configs(resource)[resource]
            state["settings"] = {
                name: entry.value for name, entry in entries.items() if "TOPIC" in entry.source.name
            }
            for number in range(counts[self.topic]):
                self._records.setdefault(TopicPartition(self.topic, number), [])
            self._seat.read(self._records)
            state["records"] = self._seen()
            # Aborted records and the ends of transactions too.
            latest = self._admin.list_offsets(dict.fromkeys(self._records, "latest"))
            state["written"] = sum(one.offset for one in latest.values())
        committed = self._admin.group_offsets(self.group)
        # 0 is the position of an empty partition, which some clients commit.
        state["committed"] = {tp.partition: one.offset for tp, one in committed.items() if one and one.offset}
        return self.plain(state)

    def _seen(self) -> list[Any]:
        """The records in the order of each partition; partitioners spread those without a key differently."""
        keyed = {
            tp.partition: [one._replace(offset=-1) for one in records if one.key is not None]
            for tp, records in self._records.items()
        }
        unkeyed = [
            one._replace(offset=-1, partition=-1)
            for records in self._records.values()
            for one in records
            if one.key is None
        ]
        return [keyed, sorted(unkeyed, key=repr)]


# -- running -------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The state and the values of one column after a row."""

    state: Names = field(default_factory=dict)
    values: Names = field(default_factory=dict)
    makes: bool = False
    """Whether the row has made an object without a plain value."""


class PythonColumn:
    """A column of Python; ``await`` is allowed outside of functions."""

    def __init__(self, watch: Watch, beginning: str, given: Names) -> None:
        self._names: Names = {"topic": watch.topic, "group": watch.group, **given}
        self._runner = asyncio.Runner()
        exec(beginning, self._names)

    def run(self, code: str) -> Names:
        """The values of the names that the code assigns."""
        self._runner.run(self._execute(code))
        names = assigned(code) & self._names.keys()
        return {name: self._runner.run(self._settle(self._names[name])) for name in names}

    async def _execute(self, code: str) -> None:
        compiled = compile(code, code, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        async with asyncio.timeout(_LIMIT_S):
            if inspect.iscoroutine(result := eval(compiled, self._names)):
                await result

    async def _settle(self, value: Any) -> Any:
        """The result of a future."""
        if inspect.isawaitable(value):
            return await value
        result = getattr(value, "result", None) or getattr(value, "get", None)
        return result() if "Future" in type(value).__name__ and callable(result) else value

    def close(self) -> None:
        self._runner.run(self._end_clients())
        self._runner.close()

    async def _end_clients(self) -> None:
        """The clients of a program that failed half-way; all others are closed already."""
        for value in self._names.values():
            end = getattr(value, "stop", getattr(value, "close", None))
            if not isinstance(value, type) and callable(end):
                with suppress(Exception):
                    async with asyncio.timeout(_LIMIT_S):
                        if inspect.isawaitable(ended := end()):
                            await ended


class ShellColumn:
    """A column of commands; `run_line` runs one and returns what it prints."""

    def __init__(self, watch: Watch, given: Mapping[str, str], run_line: Callable[[str], str]) -> None:
        self._words = {"$TOPIC": watch.topic, "$GROUP": watch.group, **given}
        self._run_line = run_line

    def run(self, code: str) -> Names:
        for word, replacement in self._words.items():
            code = code.replace(word, replacement)
        printed = [line.strip() for one in code.splitlines() for line in self._run_line(one).splitlines()]
        return {OUTPUT: [_json_record(line) for line in printed]} if printed else {}

    def close(self) -> None:
        """Nothing runs any more."""


def _json_record(line: str) -> Any:
    """The parts that all tools print of a record in JSON, under our names."""
    if not line.startswith("{"):
        return line
    names = {"payload": "value", "ts": "timestamp_ms"}
    shown = ("topic", "partition", "offset", "timestamp_ms", "key", "value")
    record = {names.get(name, name): value for name, value in json.loads(line).items()}
    return {name: record[name] for name in shown if name in record}


Column = PythonColumn | ShellColumn


def run_column(rows: Iterable[str], seat: Seat, make: Callable[[Watch], Column]) -> tuple[list[Outcome], str]:
    """Run one column: the outcomes before the first row and after each, and the error that ended it."""
    watch = Watch(seat)
    outcomes, code = [Outcome(watch.state())], ""
    with ExitStack() as ends:
        try:
            column = make(watch)
            ends.callback(column.close)
            for code in rows:
                values = (
                    {name: watch.plain(value) for name, value in column.run(code).items()} if code else {}
                )
                plain = {name: value for name, value in values.items() if not _has_opaque(value)}
                state = watch.state() if code else outcomes[-1].state
                outcomes.append(Outcome(state, plain, len(plain) < len(values)))
        except BaseException as error:  # noqa: BLE001 - any failure is reported with its row
            return outcomes, f"{code}\n{type(error).__name__}: {error}"
    return outcomes, ""


def differences(
    table: Table,
    there: list[Outcome],
    here: list[Outcome],
    words: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Iterator[str]:
    """The rows whose columns had different effects, or that show none.

    `words`: of tasks whose output has another form there, the texts that must be in both.
    """
    for row, before, theirs, ours in zip(table.rows, here, there[1:], here[1:], strict=False):
        shown = [one for one, code in ((theirs, row.there), (ours, row.here)) if code]
        if not shown:
            yield f"{row.task}: no cell has code"
        names = theirs.values.keys() & ours.values.keys() if row.both else shown[0].values.keys()
        compared = [(what, theirs.state.get(what), ours.state.get(what)) for what in ours.state]
        compared += [(f"`{name}`", theirs.values.get(name), ours.values.get(name)) for name in names]
        for what, left, right in compared if row.both else ():
            if row.task in words and what == f"`{OUTPUT}`":
                missing = [
                    word for word in words[row.task] for text in (left, right) if word not in str(text)
                ]
                if missing:
                    yield f"{row.task}: {missing} is not in\n  there {left}\n  here  {right}"
            elif left != right:
                yield f"{row.task}: {what}\n  there {left}\n  here  {right}"
        is_end = re.search(r"\.(stop|close)\(\)", row.here)
        if row.here and ours.state == before.state and not names and not ours.makes and not is_end:
            yield f"{row.task}: the row shows nothing"
