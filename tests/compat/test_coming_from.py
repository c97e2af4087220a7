"""docs/coming-from/*.md: both columns of every row run, and have the same effect."""

import importlib
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import broker_command
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.state import SecurityConfiguration
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from tests.support.names import fresh_name

from ..cluster.tools import UNHARMED, running
from .both_sides import Outcome, Row, Table, differences, imports_of, run_column, tables_of

PAGES = {
    path.stem: path.read_text() for path in (Path(__file__).parents[2] / "docs/coming-from").glob("*.md")
}
PROGRAMS = [table for page, text in PAGES.items() if imports_of(text) for table in tables_of(page, text)]
Columns = dict[Table, tuple[Future[tuple[list[Outcome], str]], ...]]
PASSWORD = "alice's own"


@pytest.fixture(scope="module")
def columns(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[Columns]:
    """All columns of all tables, at work at the same time."""
    with warnings.catch_warnings():
        # kafka-python uses old functions when it is imported, which would be in a thread of a column.
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("kafka")
    reserved = ReservedPort.pick()
    plain = f"127.0.0.1:{reserved.port}"

    def with_plain_listener(settings_file: Path) -> list[str]:
        lines = settings_file.read_text().splitlines()
        listener = next(line.partition("=")[2].strip() for line in lines if line.startswith("listeners"))
        return [*broker_command(settings_file), "--set", f"listeners={listener},PLAINTEXT://{plain}"]

    cluster = LocalCluster(
        tmp_path_factory.mktemp("coming-from"),
        brokers=1,
        zookeeper=fresh_name(f"{zookeeper.connect}/coming-from"),
        settings=UNHARMED,
        security=SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256"),
        users={"alice": PASSWORD},
        command=with_plain_listener,
    )
    with running(cluster), ThreadPoolExecutor(len(PROGRAMS) * 2) as pool:
        assert cluster.security is not None
        given: dict[str, Any] = {
            "secured_servers": cluster.bootstrap,
            "ca_file": str(cluster.directory / "security" / "ca.pem"),
            "password": PASSWORD,
        }
        yield {
            table: tuple(
                pool.submit(run_column, table, is_here, imports_of(PAGES[table.page])[is_here], plain, given)
                for is_here in (False, True)
            )
            for table in PROGRAMS
        }


@pytest.mark.parametrize("table", PROGRAMS, ids=str)
def test_both_columns_of_a_table_do_the_same(columns: Columns, table: Table) -> None:
    (there, their_error), (here, our_error) = (future.result(120) for future in columns[table])
    assert (their_error, our_error) == ("", "")
    assert len(there) == len(here) == len(table.rows) + 1
    assert list(differences(table, there, here)) == []


def test_differences_and_rows_that_show_nothing_are_named() -> None:
    rows = "| a | `x = f(1 \\| 2)`<br>`y = 2` | none |\n| b | `z()` | `z()` |\n"
    text = f"## Send\n\n| | there | here |\n| --- | --- | --- |\n{rows}"
    (table,) = tables_of("page", text)
    assert table.rows == (Row("a", "x = f(1 | 2)\ny = 2", ""), Row("b", "z()", "z()"))
    empty, same = Outcome(), Outcome({"records": [1]})
    assert list(differences(table, [empty, empty, same], [empty, empty, same])) == []
    (other,) = differences(table, [empty, empty, same], [empty, empty, Outcome({"records": [2]})])
    assert other.startswith("b: records")
    assert list(differences(table, [empty] * 3, [empty] * 3)) == ["b: the row shows nothing"]
    (other,) = differences(
        table, [empty, empty, Outcome(same.state, {"x": 1})], [empty, empty, Outcome(same.state, {"x": 2})]
    )
    assert other.startswith("b: `x`")
