"""The queries of the Grafana dashboard, and the names of metrics in queries and texts."""

import json
import re
from pathlib import Path
from typing import Any, Final

DASHBOARD: Final = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards" / "barnabas.json"
_VARIABLES: Final = {"$__rate_interval": "5s", "$instance": ".+", "$topic": ".+"}
_NAME: Final = re.compile(r"\b(?:kafka|barnabas|process)_[a-z0-9_]+\b")


def dashboard() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return read


def queries() -> dict[str, list[str]]:
    """The queries of each panel by its title, with values for Grafana's variables."""
    return {
        panel["title"]: [_filled(target["expr"]) for target in panel["targets"]]
        for panel in dashboard()["panels"]
        if panel["type"] != "row"
    }


def metric_names(text: str) -> set[str]:
    """The names of metrics in a text or a query."""
    return set(_NAME.findall(text))


def _filled(query: str) -> str:
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    return query
