"""One cluster for all compatibility tests of a worker, and the clients before it.

``COMPAT_BOOTSTRAP=host:port,…`` runs the suite against a cluster that is there already, such as
Apache Kafka; tests that need Barnabas' own client, or kill a broker, are
then skipped.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from benchmarks.peers.apache_kafka import VERSION
from tests.support.names import fresh_name

from ..cluster.tools import UNHARMED
from .clients import SECURED_CLIENTS, Driver, Unavailable
from .features import Bench
from .java import Tool, java_tools
from .wire import have_offsets_topic_made

EXTERNAL = os.environ.get("COMPAT_BOOTSTRAP", "")
StartDriver = Callable[[str], Driver]
ToolOf = Callable[[str], Tool]
Shared = Callable[..., AbstractContextManager[LocalCluster]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper) -> Shared:
    """A cluster for several tests, which is not started yet: a context manager that ends it."""

    @contextmanager
    def make(name: str, settings: Mapping[str, str] | None = None, **more: Any) -> Iterator[LocalCluster]:
        if EXTERNAL:
            pytest.skip("needs a cluster of our own, and COMPAT_BOOTSTRAP names another")
        chroot = fresh_name(f"{zookeeper.connect}/{name}")
        cluster = LocalCluster(
            tmp_path_factory.mktemp(name), zookeeper=chroot, settings=UNHARMED | dict(settings or {}), **more
        )
        try:
            yield cluster
        finally:
            cluster.kill_all()
            cluster.close()

    return make


@pytest.fixture(scope="session")
def compat_cluster(shared: Shared) -> Iterator[LocalCluster]:
    """Three brokers for all tests of a worker that harm no broker."""
    with shared("compat", {"group.min.session.timeout.ms": "3000"}) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The addresses of the cluster under test, which is ready for groups."""
    addresses: str = EXTERNAL or request.getfixturevalue("compat_cluster").bootstrap
    have_offsets_topic_made(addresses)
    return addresses


def make_driver_of(started: ExitStack) -> StartDriver:
    drivers: dict[str, Driver] = {}

    def find(name: str) -> Driver:
        if name in drivers and not drivers[name].is_usable:
            drivers.pop(name).__exit__()
        if name not in drivers:
            try:
                drivers[name] = started.enter_context(SECURED_CLIENTS[name].start())
            except Unavailable as error:
                pytest.skip(f"{name}: {error}")
        return drivers[name]

    return find


@pytest.fixture(scope="session")
def driver_of() -> Iterator[StartDriver]:
    """The driver of a client, started once; skips the test, with the reason, if it cannot be fetched."""
    with ExitStack() as started:
        yield make_driver_of(started)


class Spare:
    """Processes of clients for the members of groups, used again by later tests."""

    def __init__(self, started: ExitStack) -> None:
        self._started = started
        self._idle: dict[str, list[Driver]] = {}

    def lend(self, name: str) -> Driver:
        idle = self._idle.get(name)
        return idle.pop() if idle else self._started.enter_context(SECURED_CLIENTS[name].start())

    def give_back(self, driver: Driver) -> None:
        """Keep it for another test, or end it if it is no longer usable."""
        if driver.is_usable:
            self._idle.setdefault(driver.name, []).append(driver)
        else:
            driver.__exit__()


@pytest.fixture(scope="session")
def spare() -> Iterator[Spare]:
    with ExitStack() as started:
        yield Spare(started)


def make_bench(bootstrap: str, client: str, driver_of: StartDriver, spare: Spare) -> Bench:
    reference = driver_of("confluent-kafka")
    described = reference.ask("describe_cluster", bootstrap=bootstrap)
    return Bench(
        bootstrap=bootstrap,
        driver=driver_of(client),
        reference=reference,
        brokers=[broker_id for broker_id, _, _ in described["brokers"]],
        is_barnabas=not EXTERNAL,
        lend=spare.lend,
        give_back=spare.give_back,
    )


@pytest.fixture
def bench(request: pytest.FixtureRequest, bootstrap: str, driver_of: StartDriver, spare: Spare) -> Bench:
    """The client that the test is parametrized with, and the reference."""
    return make_bench(bootstrap, request.param, driver_of, spare)


@pytest.fixture(scope="session")
def tool_of() -> Iterator[ToolOf]:
    """The Java tools of a release, which run in one JVM for all tests of a worker. Raises Unavailable."""
    with ExitStack() as started:
        yield cache(lambda version: started.enter_context(java_tools(version)))


@pytest.fixture(scope="session")
def tool(tool_of: ToolOf) -> Tool:
    """Runs a Java tool by its class; skips the test, with the reason, if the tools cannot be fetched."""
    return tool_or_skip(tool_of, VERSION)


def tool_or_skip(tool_of: ToolOf, version: str) -> Tool:
    """The same of a release."""
    try:
        return tool_of(version)
    except Unavailable as error:
        pytest.skip(str(error))
