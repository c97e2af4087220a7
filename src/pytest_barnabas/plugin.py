"""Fixtures, options and markers of the pytest plugin; docs/pytest.md describes them for users.

One cluster serves a session (with pytest-xdist: a worker), as the ini options say. Tests with the marker
``barnabas`` get one with other settings, and pytest runs them together. No process outlives the run, however
it ends: the brokers and ZooKeeper end with the process of the tests.
"""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from barnabas.client.blocking import Admin, Consumer, Producer
    from barnabas.deploy.cluster_options import ClusterOptions
    from barnabas.deploy.scripted_cluster import Cluster

_LOG_BYTES: Final = 16 * 1024
_MARKERS: Final = {
    "barnabas": ("brokers", "settings", "security", "links"),
    "barnabas_topic": ("partitions", "replication_factor", "configs"),
}
"""The arguments of each marker."""
MakeUser = Callable[..., str]
_CLUSTERS: Final = pytest.StashKey[list["Cluster"]]()


def _options(config: pytest.Config, given: Mapping[str, Any]) -> ClusterOptions:
    """The ini options, overridden by those of a marker.

    Raises UsageError for a wrong ini option, ValueError for a wrong one of the marker.
    """
    from barnabas.deploy.cluster_options import ClusterOptions

    settings: dict[str, Any] = {}
    for line in config.getini("barnabas_settings"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"barnabas_settings: expected NAME=VALUE, got {line!r}")
        settings[name.strip()] = value.strip()
    ini = {name: config.getini(f"barnabas_{name}") for name in ("brokers", "security", "links")}
    ini |= {"brokers": int(ini["brokers"]) if ini["brokers"].strip().isdecimal() else ini["brokers"]}
    try:
        options = ClusterOptions.of(**ini, settings=settings)
    except ValueError as error:
        raise pytest.UsageError(f"barnabas_{error}") from None
    if not given:
        return options
    chosen = ini | {name: value for name, value in given.items() if value is not None}
    return ClusterOptions.of(**{**chosen, "settings": settings | dict(given.get("settings") or {})})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("barnabas_brokers", "brokers of the cluster of the tests", default="3")
    parser.addini(
        "barnabas_settings", "settings of its brokers, NAME=VALUE in each line", type="linelist", default=[]
    )
    parser.addini(
        "barnabas_security",
        "how clients connect: off, tls, plain, plain+tls, scram or scram+tls",
        default="off",
    )
    parser.addini("barnabas_links", "whether links can fail", type="bool", default=True)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CLUSTERS] = []
    config.addinivalue_line(
        "markers",
        "barnabas(brokers=None, settings=None, security=None, links=None): run with a cluster that has these "
        "options",
    )
    config.addinivalue_line(
        "markers",
        "barnabas_topic(partitions=3, replication_factor=None, configs=None): the topic of barnabas_topic",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "barnabas_cluster" not in metafunc.fixturenames:
        return
    given = {name: _arguments(metafunc.definition, name) for name in _MARKERS}
    if given["barnabas"] is not None:
        try:
            options = _options(metafunc.config, given["barnabas"])
        except ValueError as error:
            where = f"{metafunc.definition.nodeid}: @pytest.mark.barnabas"
            raise pytest.Collector.CollectError(f"{where}: {error}") from None
        metafunc.parametrize("barnabas_cluster", [options], indirect=True, scope="session", ids=str)


def _arguments(test: pytest.Item, name: str) -> Mapping[str, Any] | None:
    """The arguments of the test's marker of this name; raises CollectError, naming the wrong one."""
    marker = test.get_closest_marker(name)
    if marker is None:
        return None
    wrong = _wrong_argument(marker)
    if wrong is not None:
        raise pytest.Collector.CollectError(f"{test.nodeid}: @pytest.mark.{name}: {wrong}")
    return marker.kwargs


def _wrong_argument(marker: pytest.Mark) -> str | None:
    from barnabas.common.suggestions import suggestion
    from barnabas.deploy.cluster_options import EXPECTED_NUMBER, option_problem

    names = _MARKERS[marker.name]
    for value in marker.args:
        return f"{value!r} has no name; expected one of {', '.join(names)}"
    for name, value in marker.kwargs.items():
        if name not in names:
            return f"{name}={value!r}: unknown{suggestion(name, names)}"
        if value is None:
            continue
        if name == "configs":
            problem = None if isinstance(value, Mapping) else "expected a mapping"
        elif marker.name == "barnabas":
            problem = option_problem(name, value)
        else:
            problem = None if type(value) is int and value >= 1 else EXPECTED_NUMBER
        if problem is not None:
            return f"{name}={value!r}: {problem}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every broker's log beside a failure."""
    report = yield
    if report.failed and "barnabas_cluster" in getattr(item, "fixturenames", ()):
        from barnabas.deploy.process import tail

        files = [path for cluster in item.config.stash[_CLUSTERS] for path in cluster.log_files.values()]
        ends = [(f"the end of {path}", tail(Path(path), 60, _LOG_BYTES)) for path in files]
        report.sections += [(title, text) for title, text in ends if text]
    return report


@pytest.fixture(scope="session")
def barnabas_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A running cluster of three brokers (ini: ``barnabas_brokers``, ``barnabas_settings``,
    ``barnabas_security``, ``barnabas_links``).
    """
    # Imported here: most runs of pytest in this environment need no cluster.
    from barnabas.deploy.scripted_cluster import Cluster

    options = getattr(request, "param", None) or _options(request.config, {})
    clusters = request.config.stash[_CLUSTERS]
    with Cluster(options, tmp_path_factory.mktemp("barnabas")) as cluster:
        clusters.append(cluster)
        yield cluster
        clusters.remove(cluster)


@pytest.fixture
def barnabas_topic(request: pytest.FixtureRequest, barnabas_cluster: Cluster) -> Iterator[str]:
    """The name of a topic that only this test uses; deleted after it (marker: ``barnabas_topic``)."""
    topic = _arguments(request.node, "barnabas_topic") or {}
    name = f"{re.sub('[^A-Za-z0-9._-]', '-', request.node.name)[:200]}-{uuid.uuid4().hex[:8]}"
    barnabas_cluster.create_topic(name, **topic)
    yield name
    from barnabas.protocol.errors import BarnabasError

    try:
        barnabas_cluster.delete_topic(name)
    except BarnabasError as error:
        warnings.warn(pytest.PytestWarning(f"topic {name} was not deleted: {error}"), stacklevel=1)


@pytest.fixture
def barnabas_producer(barnabas_cluster: Cluster) -> Iterator[Producer[bytes, bytes]]:
    """A producer of `barnabas.client.blocking`; closed after the test."""
    with barnabas_cluster.producer() as producer:
        yield producer


@pytest.fixture
def barnabas_consumer(barnabas_cluster: Cluster) -> Iterator[Consumer[bytes, bytes]]:
    """A consumer of `barnabas.client.blocking` in a group of its own, from the earliest record on."""
    with barnabas_cluster.consumer() as consumer:
        yield consumer


@pytest.fixture
def barnabas_admin(barnabas_cluster: Cluster) -> Iterator[Admin]:
    """An admin client of `barnabas.client.blocking`; closed after the test."""
    with barnabas_cluster.admin() as admin:
        yield admin


@pytest.fixture
def barnabas_user(request: pytest.FixtureRequest, barnabas_cluster: Cluster) -> Iterator[MakeUser]:
    """Makes users of this test from their rights, such as ``"read,write topic:orders group:g*"``.

    Returns the name, for `Cluster.client_settings`; users and rights are removed after the test.
    """
    made: list[str] = []
    prefix = re.sub("[^A-Za-z0-9._-]", "-", request.node.name)[:100]

    def make(*rights: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        made.append(name)
        barnabas_cluster.create_user(name, *rights)
        return name

    yield make
    from barnabas.protocol.errors import BarnabasError

    for name in made:
        try:
            barnabas_cluster.delete_user(name)
        except BarnabasError as error:
            warnings.warn(pytest.PytestWarning(f"user {name} was not deleted: {error}"), stacklevel=1)
