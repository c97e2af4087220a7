"""The rules of `barnabas groups reset-offsets`, as plain functions.

Every new offset is limited to the range of the log, from its first offset to its end.
Durations and times are ISO 8601; a time without a zone is UTC, as in Kafka's tool. Pure, but for the file.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from barnabas.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from barnabas.protocol.ids import TopicPartition

_DURATION: Final = re.compile(
    r"P(?=[^P]*\d)(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?"
)


def time_ms(text: str) -> int:
    """``2025-01-31T12:00:00`` as ms since 1970. Raises CommandError (usage)."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{text!r}: expected a time as 2025-01-31T12:00:00.000", USAGE) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    milliseconds = round(found.timestamp() * 1000)
    if milliseconds < 0:
        raise CommandError(f"{text!r}: expected a time since 1970", USAGE)
    return milliseconds


def duration_ms(text: str) -> int:
    """``P1DT2H30M`` as ms. Raises CommandError (usage)."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise CommandError(f"{text!r}: expected a duration as P1DT2H30M15S", USAGE)
    days, hours, minutes = (int(found[name] or 0) for name in ("days", "hours", "minutes"))
    return round((((days * 24 + hours) * 60 + minutes) * 60 + float(found["seconds"] or 0)) * 1000)


def chosen_partitions(texts: Iterable[str], counts: dict[str, int]) -> list[TopicPartition]:
    """``topic`` or ``topic:0,2`` as partitions; ``counts`` are those of the topics that exist.

    Raises CommandError (usage) naming the partition that does not exist.
    """
    found: dict[TopicPartition, None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if topic not in counts:
            raise CommandError(f"--topic {text!r}: there is no topic {topic!r}", USAGE)
        chosen = numbers.split(",") if colon else [str(number) for number in range(counts[topic])]
        for number in chosen:
            if not (number.isascii() and number.isdecimal() and int(number) < counts[topic]):
                raise CommandError(
                    f"--topic {text!r}: expected partitions from 0 to {counts[topic] - 1}, as {topic}:0,1",
                    USAGE,
                )
            found[TopicPartition(topic, int(number))] = None
    return list(found)


def offsets_in(path: Path) -> dict[TopicPartition, int]:
    """Lines of ``topic,partition,offset``. Raises CommandError naming the file, and the line if known."""
    found: dict[TopicPartition, int] = {}
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else FAILED
        raise CommandError(f"{path}: {error.strerror}", code) from None
    except UnicodeDecodeError:
        raise CommandError(
            f"{path}: expected text of topic,partition,offset; it is no UTF-8", USAGE
        ) from None
    try:
        for number, row in enumerate(csv.reader(content.splitlines()), 1):
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if len(cells) != 3 or not all(cell.isascii() and cell.isdecimal() for cell in cells[1:]):
                raise CommandError(f"{path}, line {number}: expected topic,partition,offset", USAGE)
            tp = TopicPartition(cells[0], int(cells[1]))
            if tp in found:
                raise CommandError(f"{path}, line {number}: {tp} comes twice", USAGE)
            found[tp] = int(cells[2])
    except csv.Error as error:
        raise CommandError(f"{path}: expected lines of topic,partition,offset ({error})", USAGE) from None
    if not found:
        raise CommandError(f"{path}: expected lines of topic,partition,offset; there are none", USAGE)
    return found


def within(wanted: int, beginning: int, end: int) -> int:
    return max(beginning, min(end, wanted))


def shifted(committed: int | None, shift: int, beginning: int, end: int) -> int | None:
    """The committed offset, moved; None if there is none."""
    return None if committed is None else within(committed + shift, beginning, end)
