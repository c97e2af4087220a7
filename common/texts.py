"""Numbers and times as texts for people: in the output of commands, in problems and on the live page."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_DURATION: Final = re.compile(
    r"P(?=[^P]*\d)(?:(?P<days>\d{1,12})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,12})H)?(?:(?P<minutes>\d{1,12})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 record``, ``2 records``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def first_of(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """``a, b and 3 more``; all of them if they are at most so many."""
    rest = len(texts) - most
    return separator.join(texts[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def iso_time(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601 in UTC with milliseconds; ``-`` for a negative one."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_ms(text: str) -> int:
    """``P1DT2H30M`` (ISO 8601) as ms. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r}: expected a duration as P1DT2H30M15S")
    days, hours, minutes = (int(match[name] or 0) for name in ("days", "hours", "minutes"))
    return round((((days * 24 + hours) * 60 + minutes) * 60 + float(match["seconds"] or 0)) * 1000)


def ms_ago(duration: int) -> int:
    """The time in ms that is so many ms ago, not before 1970."""
    return max(0, int(time.time() * 1000) - duration)


def age_text(age_ms: int) -> str:
    """``1d 2h``, ``3min 4s``, ``5s``: the two largest units."""
    seconds = max(0, age_ms) // 1000
    parts = [
        (seconds // 86_400, "d"),
        (seconds // 3_600 % 24, "h"),
        (seconds // 60 % 60, "min"),
        (seconds % 60, "s"),
    ]
    while len(parts) > 1 and not parts[0][0]:
        del parts[0]
    return " ".join(f"{number}{unit}" for number, unit in parts[:2])
