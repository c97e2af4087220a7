"""docs/coming-from/*.md: both columns of every row run, and have the same effect."""

import importlib
import inspect
import os
import shlex
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.client.config import ConsumerConfig, ProducerConfig
from barnabas.common.settings import settings_of as client_settings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import broker_command
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.state import SecurityConfiguration
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.names import fresh_name

from ..cluster.tools import UNHARMED, call_command, running
from .both_sides import (
    Column,
    Outcome,
    PythonColumn,
    Row,
    Seat,
    ShellColumn,
    Table,
    Watch,
    differences,
    imports_of,
    run_column,
    settings_of,
    tables_of,
)
from .clients import CLIENTS, Unavailable

FOLDER: Final = Path(__file__).parents[2] / "docs" / "coming-from"
PAGES: Final = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
TABLES: Final = [table for page, text in PAGES.items() for table in tables_of(page, text)]
PASSWORD: Final = "alice's own"
SAME_WORDS: Final = {
    "brokers": ("127.0.0.1:",),
    "partitions, leaders and replicas of a topic": ("topic", "2 partitions"),
    "the offset of a time": ("topic", "2"),
}
"""Of tasks whose output has another form there: what both print."""
Done = tuple[list[Outcome], str]


class Columns:
    """All columns of all tables: programs in threads, and our commands in this one, which they patch."""

    def __init__(self, cluster: LocalCluster, seat: Seat, folder: Path, pool: ThreadPoolExecutor) -> None:
        assert cluster.security is not None
        self._seat, self._folder, self._pool = seat, folder, pool
        self._given: dict[str, Any] = {
            "servers": seat.bootstrap,
            "secured_servers": cluster.bootstrap,
            "ca_file": str(cluster.directory / "security" / "ca.pem"),
            "password": PASSWORD,
        }
        (folder / "lines.txt").write_text("one\ntwo\n")
        (folder / "kcat.conf").write_text(f"bootstrap.servers={seat.bootstrap}\npartitioner=murmur2_random\n")
        self._words = {"lines.txt": str(folder / "lines.txt")}
        self._unavailable: dict[Table, str] = {}
        self._others = {table: self._begin(table) for table in TABLES}

    def _begin(self, table: Table) -> list[Future[Done]]:
        """The columns of a table that need no command of ours."""
        beginnings = imports_of(PAGES[table.page])
        there, here = [row.there for row in table.rows], [row.here for row in table.rows]
        if beginnings:
            return [
                self._submit(rows, lambda watch, begins=begins: PythonColumn(watch, begins, self._given))
                for rows, begins in zip((there, here), beginnings, strict=True)
            ]
        if not any(there):
            return []
        try:
            variables = dict(CLIENTS["kcat"].prepare())
        except Unavailable as error:
            self._unavailable[table] = str(error)
            return []
        variables["PATH"] = f"{Path(variables['KCAT']).parent}{os.pathsep}{os.environ['PATH']}"
        return [self._submit(there, lambda watch: ShellColumn(watch, self._words, self._run(variables)))]

    def _submit(self, rows: list[str], make: Callable[[Watch], Column]) -> Future[Done]:
        return self._pool.submit(run_column, rows, self._seat, make)

    def of(self, table: Table) -> tuple[Done, Done]:
        if table in self._unavailable:
            pytest.skip(self._unavailable[table])
        done = [future.result(120) for future in self._others[table]]
        if len(done) < 2:
            rows = [row.here for row in table.rows]
            done.append(
                run_column(rows, self._seat, lambda watch: ShellColumn(watch, self._words, self._call))
            )
        if len(done) < 2:
            done.insert(0, ([Outcome()] * (len(table.rows) + 1), ""))
        there, here = done
        return there, here

    def _run(self, variables: Mapping[str, str]) -> Callable[[str], str]:
        environment = {**os.environ, **variables, "KCAT_CONFIG": str(self._folder / "kcat.conf")}

        def run(line: str) -> str:
            done = subprocess.run(
                ["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False, env=environment
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return run

    def _call(self, line: str) -> str:
        words, _, stdin = line.partition(" <<< ")
        program, *arguments = shlex.split(words)
        assert program == "barnabas"
        text = "".join(f"{word}\n" for word in shlex.split(stdin))
        done = call_command(*arguments, stdin=text, BARNABAS_BOOTSTRAP=self._seat.bootstrap)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def columns(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[Columns]:
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

    folder = tmp_path_factory.mktemp("coming-from")
    cluster = LocalCluster(
        folder / "cluster",
        brokers=1,
        zookeeper=fresh_name(f"{zookeeper.connect}/coming-from"),
        settings=UNHARMED,
        security=SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256"),
        users={"alice": PASSWORD},
        command=with_plain_listener,
    )
    with running(cluster), closing(Seat(plain)) as seat, ThreadPoolExecutor(len(TABLES) * 2) as pool:
        yield Columns(cluster, seat, folder, pool)
    reserved.close()


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_both_columns_of_a_table_do_the_same(columns: Columns, table: Table) -> None:
    (there, their_error), (here, our_error) = columns.of(table)
    assert (their_error, our_error) == ("", "")
    assert len(there) == len(here) == len(table.rows) + 1
    assert list(differences(table, there, here, SAME_WORDS)) == []


def theirs(page: str) -> Callable[[str], bool]:
    """Whether a client takes a setting of this name."""
    import aiokafka
    import confluent_kafka

    if page == "aiokafka":
        clients = (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer)
        return {name for client in clients for name in inspect.signature(client).parameters}.__contains__
    if page == "kafka-python":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import kafka
        return {*kafka.KafkaConsumer.DEFAULT_CONFIG, *kafka.KafkaProducer.DEFAULT_CONFIG}.__contains__

    def is_taken(name: str) -> bool:
        try:
            confluent_kafka.Consumer({"group.id": "g", name: "?"})
        except confluent_kafka.KafkaException as error:
            return "No such configuration property" not in str(error)
        return True

    return is_taken


@pytest.mark.parametrize("page", ["aiokafka", "confluent-kafka", "kafka-python"])
def test_a_setting_with_another_name_there_is_one_that_the_error_here_names(page: str) -> None:
    renamed = settings_of(PAGES[page])
    assert len(renamed) >= 5
    takes = theirs(page)
    assert not takes("no.such.setting")
    assert [name for name in renamed if not takes(name)] == []
    for name, ours in renamed.items():
        kind = ConsumerConfig if ours in client_settings(ConsumerConfig) else ProducerConfig
        with pytest.raises(InvalidConfiguration, match=f"there is no such setting; did you mean {ours}"):
            kind.of({name: "?"})


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
