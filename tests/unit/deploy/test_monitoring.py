"""The compose profile `monitoring`: what its files name is there, and is what the brokers serve."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from barnabas.broker.config.load import load_config
from tests.support.dashboard import DASHBOARD, dashboard, queries

DEPLOY = Path(__file__).parents[3] / "deploy"
PROMETHEUS = DEPLOY / "prometheus.yml"
PROVISIONING = DEPLOY / "grafana" / "provisioning"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(DEPLOY / "docker-compose.yml")["services"]
    return found


def with_defaults(text: str) -> str:
    """The text as compose reads it if no variable is set."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text)


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Path in the container → source."""
    split = [volume.split(":") for volume in service["volumes"]]
    return {target: source for source, target, *_ in split}


def test_only_the_profile_starts_prometheus_and_grafana(services: dict[str, dict[str, Any]]) -> None:
    in_profiles = {
        name: service["profiles"]
        for name, service in services.items()
        if "monitoring" in service.get("profiles", ())
    }
    assert in_profiles == {"prometheus": ["monitoring"], "grafana": ["monitoring"]}
    for name in in_profiles:
        (port,) = services[name]["ports"]
        assert port.startswith("${BIND_ADDRESS:-127.0.0.1}:")


def test_prometheus_scrapes_every_broker_where_it_serves_metrics(services: dict[str, dict[str, Any]]) -> None:
    (job,) = read(PROMETHEUS)["scrape_configs"]
    (static,) = job["static_configs"]
    brokers = {
        name: {key: with_defaults(value) for key, value in service["environment"].items()}
        for name, service in services.items()
        if name.startswith("broker-")
    }
    configs = {name: load_config(environment=environment) for name, environment in brokers.items()}
    assert len(configs) == 3
    assert static["targets"] == [f"{name}:{config.metrics_port}" for name, config in configs.items()]
    assert {config.metrics_host for config in configs.values()} == {"0.0.0.0"}
    assert not any("9404" in port for name in brokers for port in services[name]["ports"])


def test_the_mounted_files_are_there(services: dict[str, dict[str, Any]]) -> None:
    files = {
        target: DEPLOY / source
        for name in ("prometheus", "grafana")
        for target, source in mounts(services[name]).items()
        if source.startswith("./")
    }
    assert all(path.exists() for path in files.values()), files
    assert files["/etc/prometheus/prometheus.yml"] == PROMETHEUS
    assert files["/etc/grafana/provisioning"] == PROVISIONING
    (provider,) = read(PROVISIONING / "dashboards" / "barnabas.yml")["providers"]
    assert files[provider["options"]["path"]] == DASHBOARD.parent
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert files[str(home.parent)] / home.name == DASHBOARD


def test_grafana_reads_prometheus_by_the_name_of_its_service(services: dict[str, dict[str, Any]]) -> None:
    (source,) = read(PROVISIONING / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert services["prometheus"]["ports"][0].endswith(":9090")
    assert source["type"] == "prometheus"
    assert source["isDefault"] is True


def test_the_panels_have_ids_of_their_own_places_and_queries() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(queries().values())
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "two panels overlap"
    assert max(x for x, _ in cells) < 24


def test_promtool_accepts_the_configuration() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (on Debian: apt-get install prometheus)")
    done = subprocess.run(
        ["promtool", "check", "config", str(PROMETHEUS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
