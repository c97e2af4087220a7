"""Fixtures, options and markers of the pytest plugin; docs/pytest.md describes them for users.

One cluster serves a session (with pytest-xdist: a worker), as the ini options say. Tests with the marker
``barnabas`` get one with other settings, and pytest runs them together. No process outlives the run, however
it ends: the kernel kills the brokers and ZooKeeper when the process of the tests ends.
"""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from barnabas.deploy.state import SecurityConfiguration
    from pytest_barnabas.cluster import Cluster

_LOG_BYTES: Final = 16 * 1024
_MARKERS: Final = {
    "barnabas": ("brokers", "settings", "security"),
    "barnabas_topic": ("partitions", "replication_factor", "configs"),
}
"""The arguments of each marker."""
_MAPPINGS: Final = ("settings", "configs")
_SECURITY: Final = ("off", "tls", "plain", "plain+tls", "scram", "scram+tls")
_EXPECTED_NUMBER: Final = "expected a whole number, 1 or more"
_EXPECTED_SECURITY: Final = f"expected one of {', '.join(_SECURITY)}"
MakeUser = Callable[..., str]
_CLUSTERS: Final = pytest.StashKey[list["Cluster"]]()


@dataclass(frozen=True)
class Options:
    """The options of a cluster."""

    brokers: int
    settings: tuple[tuple[str, str], ...]
    security: str = "off"

    @classmethod
    def of(
        cls,
        config: pytest.Config,
        brokers: int | None = None,
        settings: Mapping[str, Any] | None = None,
        security: str | None = None,
    ) -> Options:
        """The ini options, overridden by those of a marker. Raises UsageError for a wrong ini option."""
        chosen: dict[str, str] = {}
        for line in config.getini("barnabas_settings"):
            name, equals, value = line.partition("=")
            if not equals:
                raise pytest.UsageError(f"barnabas_settings: expected NAME=VALUE, got {line!r}")
            chosen[name.strip()] = value.strip()
        chosen |= {name: str(value) for name, value in (settings or {}).items()}
        if brokers is None:
            text = config.getini("barnabas_brokers").strip()
            brokers = int(text) if text.isdecimal() else 0
            if brokers < 1:
                raise pytest.UsageError(f"barnabas_brokers = {text}: {_EXPECTED_NUMBER}")
        if security is None:
            security = _in_order(config.getini("barnabas_security"))
            if security not in _SECURITY:
                raise pytest.UsageError(f"barnabas_security = {security}: {_EXPECTED_SECURITY}")
        return cls(brokers, tuple(sorted(chosen.items())), _in_order(security))

    @property
    def configuration(self) -> SecurityConfiguration | None:
        """The parts that are switched on. Users have the rights that they are given and no others."""
        from barnabas.deploy.state import SecurityConfiguration

        if self.security == "off":
            return None
        words = self.security.split("+")
        mechanism = {"plain": "PLAIN", "scram": "SCRAM-SHA-256"}.get(words[0])
        return SecurityConfiguration(tls="tls" in words, mechanism=mechanism, acl=mechanism is not None)

    def __str__(self) -> str:
        named = [f"brokers={self.brokers}", *(f"{name}={value}" for name, value in self.settings)]
        return ",".join(named if self.security == "off" else [*named, self.security])


def _in_order(security: str) -> str:
    """The words of a security in one order: ``tls+scram`` is ``scram+tls``."""
    return "+".join(sorted(word.strip() for word in security.split("+")))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("barnabas_brokers", "brokers of the cluster of the tests", default="3")
    parser.addini(
        "barnabas_settings", "settings of its brokers, NAME=VALUE in each line", type="linelist", default=[]
    )
    parser.addini("barnabas_security", f"how clients connect: {', '.join(_SECURITY)}", default="off")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CLUSTERS] = []
    config.addinivalue_line(
        "markers",
        "barnabas(brokers=None, settings=None, security=None): run with a cluster that has these brokers, "
        "settings and security",
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
        options = Options.of(metafunc.config, **given["barnabas"])
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

    names = _MARKERS[marker.name]
    for value in marker.args:
        return f"{value!r} has no name; expected one of {', '.join(names)}"
    for name, value in marker.kwargs.items():
        if name not in names:
            return f"{name}={value!r}: unknown{suggestion(name, names)}"
        if name in _MAPPINGS:
            if value is not None and not isinstance(value, Mapping):
                return f"{name}={value!r}: expected a mapping"
        elif name == "security":
            if value is not None and (not isinstance(value, str) or _in_order(value) not in _SECURITY):
                return f"{name}={value!r}: {_EXPECTED_SECURITY}"
        elif value is not None and (type(value) is not int or value < 1):
            return f"{name}={value!r}: {_EXPECTED_NUMBER}"
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
    ``barnabas_security``).
    """
    # Imported here: most runs of pytest in this environment need no cluster.
    from barnabas.deploy.local import LocalCluster
    from pytest_barnabas.cluster import Cluster

    options: Options = getattr(request, "param", None) or Options.of(request.config)
    local = LocalCluster(
        tmp_path_factory.mktemp("barnabas"),
        brokers=options.brokers,
        settings=dict(options.settings),
        security=options.configuration,
    )
    clusters = request.config.stash[_CLUSTERS]
    try:
        local.start()
        cluster = Cluster(local)
        clusters.append(cluster)
        try:
            yield cluster
        finally:
            clusters.remove(cluster)
            cluster.close()
    finally:
        local.kill_all()
        local.close()


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
