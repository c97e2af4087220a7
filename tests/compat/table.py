"""The tables of clients in docs/compatibility.md: the features each can use, the API versions it chose,
and its behaviour on a secured cluster.

    python -m tests.compat.table       # run the suite, and write the tables from its outcome

The tests compare each outcome with a cell of that page, so a wrong table fails `make test`.
A cell is ``yes``, what was different, ``-`` (the client has no such function), or ``no``.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = "COMPAT_RESULTS"
"""The variable that names the folder where tests leave what came out, instead of comparing it."""
NOT_THERE, FAILED = "-", "no"
_BEGIN, _END = "<!-- {}: made by python -m tests.compat.table -->", "<!-- end of {} -->"
FEATURES, VERSIONS, SECURITY = "features", "versions", "security"

Table = Mapping[str, Mapping[str, str]]
"""Row → client → cell."""


def is_being_made() -> bool:
    return RESULTS in os.environ


def check(table: str, row: str, client: str, cell: str) -> None:
    """Compare the outcome with the page, or leave it for the next version of the page."""
    folder = os.environ.get(RESULTS)
    if folder is None:
        said = read(PAGE.read_text(encoding="utf-8"), table).get(row, {}).get(client)
        complaint = (
            f"the page says {said!r} of {client} at {row!r} (python -m tests.compat.table rewrites it)"
        )
        assert said == cell, complaint
        return
    name = f"{table}-{row}-{client}".replace("/", " ")
    found = {"table": table, "row": row, "client": client, "cell": cell}
    (Path(folder) / f"{name}.json").write_text(json.dumps(found))


def read(text: str, table: str) -> dict[str, dict[str, str]]:
    """The table of this name in the page; empty if it has no such table."""
    _, _, behind = text.partition(_BEGIN.format(table))
    lines = [line for line in behind.partition(_END.format(table))[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if len(rows) < 3:
        return {}
    clients = rows[0][1:]
    return {row[0]: dict(zip(clients, row[1:], strict=True)) for row in rows[2:]}


def write(text: str, table: str, rows: Table, clients: Sequence[str], corner: str) -> str:
    """The page with this table in place of the one it has; ValueError without the marks."""
    begin, end = _BEGIN.format(table), _END.format(table)
    before, mark, rest = text.partition(begin)
    _, end_mark, after = rest.partition(end)
    if not mark or not end_mark:
        raise ValueError(f"the page has no marks {begin} and {end}")
    lines = [f"| {corner} | {' | '.join(clients)} |", f"| --- |{' --- |' * len(clients)}"]
    lines += [
        f"| {row} | {' | '.join(cells.get(client, FAILED) for client in clients)} |"
        for row, cells in rows.items()
    ]
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


def collect(folder: Path, order: Sequence[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Table → row → client → cell, from the files of the tests; rows in this order, others by number."""
    found: dict[str, dict[str, dict[str, str]]] = {FEATURES: {}, VERSIONS: {}, SECURITY: {}}
    left = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    known = {row: position for position, row in enumerate(order)}
    for entry in sorted(left, key=lambda entry: (known.get(entry["row"], 0), _number(entry["row"]))):
        found[entry["table"]].setdefault(entry["row"], {})[entry["client"]] = entry["cell"]
    return found


def _number(row: str) -> int:
    """The API key that a row begins with; the row of the clients' own versions comes first."""
    digits = row.split()[0]
    return int(digits) if digits.isdigit() else -1


def main() -> int:
    import tests.compat.group_features
    import tests.compat.transaction_features  # noqa: F401 - they add their rows
    from tests.compat.clients import CLIENTS, SECURED_CLIENTS
    from tests.compat.features import FEATURES as ALL
    from tests.compat.java import NAME
    from tests.compat.test_failover import ROW
    from tests.compat.test_group_failover import ROW as GROUP_ROW
    from tests.compat.test_secured_clients import ROWS

    with tempfile.TemporaryDirectory() as name:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/compat"],
            cwd=ROOT,
            env={**os.environ, RESULTS: name},
            check=False,
        )
        tables = collect(Path(name), [*ALL, ROW, GROUP_ROW, *ROWS])
    text = PAGE.read_text(encoding="utf-8")
    text = write(text, FEATURES, tables[FEATURES], list(CLIENTS), "")
    text = write(text, VERSIONS, tables[VERSIONS], [*CLIENTS, NAME], "API")
    text = write(text, SECURITY, tables[SECURITY], list(SECURED_CLIENTS), "")
    PAGE.write_text(text, encoding="utf-8")
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
