"""Fixtures for tests that need more than functions: event loops, a real ZooKeeper, clusters of processes.

One ZooKeeper serves all tests of an xdist worker; each cluster lives in a chroot of its own there. When a
test fails, the end of every broker's log is added to its report.
"""

import asyncio
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import tail
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper, connect_string_from_environment
from tests.support.certificates import Certificates
from tests.support.names import fresh_name
from tests.support.retries import mark_retried, show_flaky
from tests.support.shares import SPARE_NICENESS, WORKERS, ModuleScheduling, is_spare, rank_of
from tests.support.worker_seconds import WorkerSeconds

# The duration of an example is random while other tests and their clusters run. A run that fails must fail
# again, so the examples follow from the test. `--hypothesis-profile=search` looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("barnabas", settings.get_profile("search"), derandomize=True)
settings.load_profile("barnabas")

StartCluster = Callable[..., LocalCluster]

_IN_DEBUG_MODE = os.environ.get("ASYNCIO_DEBUG_LOOP") == "1"
_TESTS = Path(__file__).parent
_UNIT_TESTS = _TESTS / "unit"
_REPORT = pytest.StashKey[pytest.TestReport]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(WorkerSeconds(config))
    if is_spare(os.environ.get("PYTEST_XDIST_WORKER", "gw0")):
        os.nice(SPARE_NICENESS)
    # Until Python 3.11.8 a parse of source fails if another begins in it (python/cpython#106905). A traceback
    # parses its lines to place carets, and asyncio logs one from the collection of a task, in any allocation.
    if sys.version_info < (3, 11, 8):
        traceback._extract_caret_anchors_from_line_segment = (  # type: ignore[attr-defined]  # private
            lambda segment: None
        )
    # `nohup make test &` starts with SIGINT ignored, and every process of the tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests start hundreds of brokers and commands, and each would compile its modules, which takes 0.25 s.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Nor does a run without workers rewrite the asserts of all test modules again, which takes 15 s.
    sys.dont_write_bytecode = False
    # The seeds of random histories follow from the day; all workers of a run get that of its beginning.
    os.environ.setdefault("TEST_DAY", f"{datetime.now(UTC):%Y%m%d}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return WORKERS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ModuleScheduling:
    return ModuleScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_retried(config, items, _TESTS)
    items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what is imported by now out of garbage collections, a tenth of the CPU time of unit tests."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    show_flaky(terminalreporter)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_REPORT] = report
    return report


def _debugging_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(True)
    # A busy machine makes any callback slow, and a warning of that would be a finding in tests of the log.
    loop.slow_callback_duration = float("inf")
    return loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Async tests run on uvloop, as in production; ``make soak`` repeats the unit tests in debug mode."""
    if _IN_DEBUG_MODE and item.path.is_relative_to(_UNIT_TESTS):
        return {"asyncio-debug": _debugging_loop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One certificate authority for the whole worker."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper | ExistingZooKeeper]:
    """A real ZooKeeper for the whole worker (or that of BARNABAS_ZOOKEEPER); tests must not stop it."""
    connect = connect_string_from_environment()
    if connect is not None:
        existing = ExistingZooKeeper(connect)
        existing.wait_ready()
        yield existing
        return
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def zookeeper_connect(zookeeper: ZooKeeper | ExistingZooKeeper) -> str:
    """``host:port/chroot`` with a chroot that nobody else uses (it does not exist yet)."""
    return fresh_name(f"{zookeeper.connect}/test")


@pytest.fixture
def start_cluster(
    request: pytest.FixtureRequest, tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[StartCluster]:
    """A function that starts a cluster; all that it started are ended after the test.

    Arguments as `LocalCluster`'s, all by name, and ``own_zookeeper=True`` for one that the test may stop.
    """
    started: list[LocalCluster] = []

    def start(*, own_zookeeper: bool = False, **arguments: object) -> LocalCluster:
        if not own_zookeeper:
            arguments.setdefault("zookeeper", fresh_name(f"{zookeeper.connect}/test"))
        arguments.setdefault("directory", tmp_path / f"cluster-{len(started) + 1}")
        cluster = LocalCluster(**arguments)
        started.append(cluster)
        cluster.start()
        return cluster

    yield start
    report = request.node.stash.get(_REPORT, None)
    for cluster in started:
        if report is not None:
            report.sections += [
                (f"the end of {path}", tail(path, lines=60, max_bytes=32768))
                for broker in cluster.brokers
                for path in (broker.log_file, *sorted((broker.directory / "logs").glob("*.log")))
            ]
        cluster.kill_all()
        cluster.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, start_cluster: StartCluster) -> LocalCluster:
    """Three brokers, up and writable, or what the marker ``brokers(**arguments)`` says."""
    marker = request.node.get_closest_marker("brokers")
    return start_cluster(**({} if marker is None else marker.kwargs))
