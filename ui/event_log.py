"""Controller and state changes as they happen, from the log files of the brokers of this machine.

The part ``log`` of the stream has the lines; `times_of` reads the exact times of elections, ISR
changes and changes of the controller from them. Another cluster's files cannot be read: its page says so.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.deploy.log_files import LOG_FILES, LogEntry, LogFile
from barnabas.ui.context import Context, context_of, render
from barnabas.ui.timeline import controller_text, isr_texts, leader_text

_FILES: Final = ("controller", "state-change")
_LAST_LINES: Final = 100
"""Of each file, when a page begins to listen."""
_MOST_ENTRIES: Final = 500
_MOST_CHARACTERS: Final = 1_000
_LINE: Final = re.compile(r"(?P<time>.{19})\.(?P<ms>\d{3}) (?P<level>[A-Z]+) +\[[^\]]*\] (?P<text>.*)", re.S)
_IDS: Final = r"\[[\d, ]*\]"
_ELECTION: Final = re.compile(
    r"partition (\S+): (?!New)\w+ -> Online \(leader \S+ -> (\d+), leader epoch \d+, "
)
_NO_LEADER: Final = re.compile(r"partition (\S+): Online -> Offline")
_ISR: Final = re.compile(rf"partition (\S+): isr ({_IDS}) -> ({_IDS}), ")
_CONTROLLER: Final = re.compile(r"broker (\d+) is elected controller with epoch \d+")

Entry = dict[str, Any]


class EventLog:
    """The lines of all brokers' files in the order of their times. Calls read files and block."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        """`folders`: of the brokers."""
        self._paths = {
            (f"broker-{id}", folder / LOG_FILES[file]) for id, folder in folders.items() for file in _FILES
        }
        self._files: dict[Path, LogFile] = {}

    def new(self) -> list[Entry]:
        """At first the last lines, then those that were added; at most `_MOST_ENTRIES`, the newest."""
        found: list[LogEntry] = []
        for label, path in sorted(self._paths):
            if path in self._files:
                found += self._files[path].new()
            elif path.exists():
                # A broker that has never been controller has no such file yet.
                self._files[path] = LogFile(label, path)
                found += self._files[path].last(_LAST_LINES)
        found.sort(key=lambda entry: entry.time)
        return [read for entry in found[-_MOST_ENTRIES:] if (read := read_entry(entry)) is not None]

    def __del__(self) -> None:
        # The stream drops a part when its last page is closed.
        for file in self._files.values():
            file.close()


def read_entry(entry: LogEntry) -> Entry | None:
    """An entry of the stream; None for lines without a time, as the rest of a traceback at the start."""
    match = _LINE.fullmatch("\n".join(entry.lines))
    if match is None:
        return None
    local = time.strptime(match["time"], "%Y-%m-%d %H:%M:%S")
    text = match["text"][:_MOST_CHARACTERS]
    return {
        # The same for each reader of the line.
        "id": f"{entry.label} {entry.time} {zlib.crc32(text.encode()):x}",
        "time_ms": int(time.mktime(local)) * 1000 + int(match["ms"]),
        "source": entry.label,
        "level": match["level"],
        "text": text,
    }


def times_of(entries: Iterable[Entry]) -> dict[tuple[str, str, str], int]:
    """By kind, sentence and partition of a change, in the words of the timeline: its newest time in ms."""
    return {change: entry["time_ms"] for entry in entries for change in _changes_in(entry["text"])}


def _changes_in(text: str) -> Iterator[tuple[str, str, str]]:
    """Kind, sentence and partition of each change that a line tells."""
    if found := _CONTROLLER.search(text):
        yield "controller", controller_text(int(found[1])), ""
    elif found := _ELECTION.search(text):
        yield "election", leader_text(int(found[2])), found[1]
    elif found := _NO_LEADER.search(text):
        yield "election", leader_text(None), found[1]
    elif found := _ISR.search(text):
        before, after = ([int(id) for id in re.findall(r"\d+", ids)] for ids in (found[2], found[3]))
        for changed, _ in isr_texts(before, after):
            yield "isr", changed, found[1]


def open_log(context: Context) -> EventLog:
    """Of the brokers of this machine; without lines for another cluster."""
    return EventLog(
        {int(one.id): one.directory for one in context.cluster.brokers} if context.cluster else {}
    )


def make_log(context: Context) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    """The part ``log`` of the stream."""
    log = open_log(context)

    async def ask(_: object) -> dict[str, Any]:
        return {"log": await asyncio.to_thread(log.new)}

    return ask


async def _page(request: Request) -> Response:
    """The lines of the log files and the faults; of another cluster, which has no files here, all marks."""
    context, sampler = context_of(request), request.app.state.sampler
    chosen = {name: request.query_params.get(name, "") for name in ("source", "level", "text")}
    lines = [
        {
            "time_ms": mark["time_ms"],
            "source": f"broker-{mark['broker']}" if "broker" in mark else "cluster",
            "level": mark["kind"],
            "text": mark["text"],
        }
        for mark in sampler.marks()
        if context.cluster is None or mark["kind"] == "fault"
    ]
    lines = [line for line in (*lines, *sampler.log_lines()) if _is_chosen(line, **chosen)]
    lines.sort(key=lambda line: line["time_ms"], reverse=True)
    return render(request, "events.html", lines=lines, chosen=chosen, is_bad=_is_bad)


def _is_chosen(line: Entry, *, source: str, level: str, text: str) -> bool:
    return (
        source in ("", line["source"])
        and (not level or line["level"] not in ("INFO", "DEBUG"))
        and text.lower() in line["text"].lower()
    )


def _is_bad(level: str) -> bool:
    return level in ("WARNING", "ERROR", "CRITICAL", "fault")


ROUTES: Final = [Route("/events", _page)]
