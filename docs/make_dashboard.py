"""Makes deploy/grafana/dashboards/barnabas.json, the Grafana dashboard, from a table: `make dashboard`.

In a query, ``{ours}`` selects the chosen brokers, ``{topics}`` the chosen topics on them, and ``[rate]`` is
Grafana's interval. A test compares the file with the table, and the names of metrics with those of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards" / "barnabas.json"
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OURS, TOPICS = 'instance=~"$instance"', 'topic=~"$topic"'

CONTROLLER = "kafka_controller_kafkacontroller_"
REPLICAS = "kafka_server_replicamanager_"
TOPIC = "kafka_server_brokertopicmetrics_"
REQUEST = "kafka_network_requestmetrics_"
GROUPS = "kafka_coordinator_group_groupmetadatamanager_"
CLEANER = "kafka_log_logcleanermanager_"
PURGATORY = "kafka_server_delayedoperationpurgatory_"
SESSION = "kafka_server_sessionexpirelistener_"
WORKERS_IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count"


class Panel(NamedTuple):
    """``queries``: the legend → the query. ``colors`` are of a single value, from these values on."""

    title: str
    unit: str
    queries: dict[str, str]
    colors: dict[float | None, str] | None = None
    most: float | None = None


def stat(title: str, query: str, colors: dict[float | None, str] | None = None) -> Panel:
    return Panel(title, "none", {"": query}, colors or {})


def per_topic(title: str, unit: str, name: str) -> Panel:
    return Panel(title, unit, {"{{topic}}": f"sum by (topic) (rate({TOPIC}{name}_total{{topics}}[rate]))"})


def percentile(share: float, name: str, labels: str = "", by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({name}_bucket{{ours{labels}}}[rate])))"


def times_of(title: str, request: str) -> Panel:
    name, shares = f"{REQUEST}totaltimems", (0.5, 0.95, 0.99, 0.999)
    return Panel(
        title, "ms", {f"{share}": percentile(share, name, f',request="{request}"') for share in shares}
    )


def failed(name: str) -> str:
    return f'sum by (instance) (rate({TOPIC}{name}_total{{ours,topic=""}}[rate]))'


def changes(name: str) -> str:
    return f"sum by (instance) (rate({REPLICAS}{name}_total{{ours}}[rate]))"


IS_RED, IS_ORANGE = {None: "green", 1: "red"}, {None: "green", 1: "orange"}
STAGES = {
    "request queue": "requestqueue",
    "handler": "local",
    "followers": "remote",
    "response queue": "responsequeue",
    "response send": "responsesend",
}
STATES = ("stable", "empty", "preparingrebalance", "completingrebalance")

SECTIONS: dict[str, list[list[Panel]]] = {
    "Cluster": [
        [
            stat(
                "Controllers", f"sum({CONTROLLER}activecontrollercount)", {None: "red", 1: "green", 2: "red"}
            ),
            stat("Brokers", f"max({CONTROLLER}activebrokercount)"),
            stat("Partitions", f"max({CONTROLLER}globalpartitioncount)"),
            stat("Offline partitions", f"sum({CONTROLLER}offlinepartitionscount)", IS_RED),
            stat("Under-replicated", f"sum({REPLICAS}underreplicatedpartitions)", IS_ORANGE),
            stat("Under min ISR", f"sum({REPLICAS}underminisrpartitioncount)", IS_RED),
            stat("Offline log dirs", "sum(kafka_log_logmanager_offlinelogdirectorycount)", IS_RED),
            stat("ZooKeeper connections", "sum(barnabas_zookeeper_connected)"),
        ],
        [
            Panel(
                "Under-replicated partitions",
                "none",
                {"{{instance}}": f"{REPLICAS}underreplicatedpartitions{{ours}}"},
            ),
            Panel(
                "ISR changes",
                "ops",
                {
                    "{{instance}} shrinks": changes("isrshrinks"),
                    "{{instance}} expands": changes("isrexpands"),
                },
            ),
            Panel(
                "Follower lag", "none", {"{{instance}}": "kafka_server_replicafetchermanager_maxlag{ours}"}
            ),
            Panel(
                "Leader elections",
                "ops",
                {
                    "elections": (
                        "sum(rate(kafka_controller_controllerstats_leaderelectionrateandtimems_count[rate]))"
                    ),
                    "unclean": (
                        "sum(rate(kafka_controller_controllerstats_uncleanleaderelections_total[rate]))"
                    ),
                },
            ),
            Panel("Leaders", "none", {"{{instance}}": f"{REPLICAS}leadercount{{ours}}"}),
            Panel(
                "Partitions being reassigned",
                "none",
                {"{{instance}}": f"{REPLICAS}reassigningpartitions{{ours}}"},
            ),
        ],
    ],
    "Traffic": [
        [
            per_topic("Bytes in", "Bps", "bytesin"),
            per_topic("Bytes out to consumers", "Bps", "bytesout"),
            per_topic("Records in", "cps", "messagesin"),
        ],
        [
            Panel(
                "Replication",
                "Bps",
                {
                    "{{instance}} in": f"rate({TOPIC}replicationbytesin_total{{ours}}[rate])",
                    "{{instance}} out": f"rate({TOPIC}replicationbytesout_total{{ours}}[rate])",
                    "{{instance}} added replicas": f"rate({TOPIC}reassignmentbytesin_total{{ours}}[rate])",
                },
            ),
            Panel(
                "Refused and failed",
                "ops",
                {
                    "{{instance}} produce": failed("failedproducerequests"),
                    "{{instance}} fetch": failed("failedfetchrequests"),
                    "{{instance}} bytes too large": failed("bytesrejected"),
                },
            ),
            Panel("Log size", "bytes", {"{{topic}}": "sum by (topic) (kafka_log_log_size{topics})"}),
        ],
    ],
    "Requests": [
        [
            Panel(
                "Requests by API",
                "reqps",
                {
                    "{{request}}": (
                        f'sum by (request) (rate({REQUEST}requests_total{{ours,request!="Fetch"}}[rate]))'
                    )
                },
            ),
            times_of("Produce time", "Produce"),
            times_of("Consumers' fetch time", "FetchConsumer"),
        ],
        [
            Panel(
                "Stages of Produce (p99)",
                "ms",
                {
                    legend: percentile(0.99, f"{REQUEST}{stage}timems", ',request="Produce"')
                    for legend, stage in STAGES.items()
                },
            ),
            Panel(
                "Queues",
                "none",
                {
                    "{{instance}} requests": "kafka_network_requestchannel_requestqueuesize{ours}",
                    "{{instance}} answers": "kafka_network_requestchannel_responsequeuesize{ours}",
                },
            ),
            Panel(
                "Purgatories",
                "none",
                {"{{delayedOperation}}": (f"sum by (delayedOperation) ({PURGATORY}purgatorysize{{ours}})")},
            ),
        ],
        [
            Panel(
                "Errors in answers",
                "short",
                {
                    "{{request}} {{error}}": (
                        f'sum by (request, error) (rate({REQUEST}errors_total{{ours,error!="NONE"}}[rate]))'
                    )
                },
            ),
            Panel(
                "Mean size of requests",
                "bytes",
                {
                    "{{request}}": (
                        f"sum by (request) (rate({REQUEST}requestbytes_sum{{ours}}[rate]))"
                        f" / sum by (request) (rate({REQUEST}requestbytes_count{{ours}}[rate]))"
                    )
                },
            ),
            Panel(
                "ZooKeeper and flushes to disk (p99)",
                "ms",
                {
                    "{{instance}} ZooKeeper": percentile(
                        0.99,
                        "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms",
                        by="le, instance",
                    ),
                    "{{instance}} flush": percentile(
                        0.99, "kafka_log_logflushstats_logflushrateandtimems", by="le, instance"
                    ),
                },
            ),
        ],
    ],
    "Brokers": [
        [
            Panel("CPU", "percentunit", {"{{instance}}": "rate(process_cpu_seconds_total{ours}[rate])"}),
            Panel(
                "Idle threads",
                "percentunit",
                {
                    "{{instance}} network": "kafka_network_socketserver_networkprocessoravgidlepercent{ours}",
                    "{{instance}} workers": f"rate({WORKERS_IDLE}{{ours}}[rate]) / 1e9",
                },
                most=1,
            ),
            Panel("Memory", "bytes", {"{{instance}}": "process_resident_memory_bytes{ours}"}),
            Panel(
                "Connections and open files",
                "none",
                {
                    "{{instance}} connections": "barnabas_connections{ours}",
                    "{{instance}} files": "process_open_fds{ours}",
                },
            ),
        ],
        [
            Panel(
                "ZooKeeper session",
                "none",
                {
                    f"{{{{instance}}}} {name}": f"increase({SESSION}zookeeper{name}_total{{ours}}[rate])"
                    for name in ("disconnects", "expires")
                },
            ),
            Panel(
                "Dirty share of the dirtiest log",
                "percent",
                {"{{instance}}": f"{CLEANER}max_dirty_percent{{ours}}"},
            ),
            Panel(
                "Logs that cannot be compacted",
                "none",
                {"{{instance}}": f"sum by (instance) ({CLEANER}uncleanable_partitions_count{{ours}})"},
            ),
        ],
    ],
    "Groups and transactions": [
        [
            Panel(
                "Lag of groups",
                "none",
                {"{{consumergroup}}": "sum by (consumergroup) (kafka_consumergroup_lag_sum{ours})"},
            ),
            Panel(
                "Groups by state",
                "none",
                {state: f"sum({GROUPS}numgroups{state}{{ours}})" for state in STATES},
            ),
            Panel(
                "Oldest transaction",
                "ms",
                {"{{kind}}": "max by (kind) (barnabas_transactions_oldest_ms{ours})"},
            ),
        ],
    ],
}
"""The lines of panels under each title; the panels of a line share its width."""


def _filled(query: str) -> str:
    query = query.replace("{topics}", f"{{{OURS},{TOPICS}}}").replace("{ours", f"{{{OURS}")
    return query.replace("[rate]", "[$__rate_interval]")


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.colors is None:
        defaults |= {"min": 0} if panel.most is None else {"min": 0, "max": panel.most}
        options = {
            "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "background",
            "graphMode": "none",
        }
        if panel.colors:
            steps = [{"color": color, "value": value} for value, color in panel.colors.items()]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": "timeseries" if panel.colors is None else "stat",
        "title": panel.title,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": _filled(query),
                "legendFormat": legend,
            }
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _panels() -> Iterator[dict[str, Any]]:
    y = 0
    for title, lines in SECTIONS.items():
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        yield {"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        y += 1
        for line in lines:
            width, height = WIDTH // len(line), 7 if line[0].colors is None else 4
            for number, panel in enumerate(line):
                place = {"h": height, "w": width, "x": number * width, "y": y}
                yield {**_panel(panel), "gridPos": place}
            y += height


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "refresh": 2,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def render() -> str:
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }
    variables = [
        source,
        _variable("instance", "Broker", f"{REPLICAS}partitioncount"),
        _variable("topic", "Topic", f"{TOPIC}bytesin_total"),
    ]
    dashboard = {
        "uid": "barnabas",
        "title": "Barnabas",
        "tags": ["barnabas", "kafka"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "15s",
        "graphTooltip": 1,
        "templating": {"list": variables},
        "annotations": {"list": []},
        "links": [],
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), start=1)],
    }
    # Each panel is one line of the file. The table above is the part for readers.
    lines = ",\n".join(json.dumps(panel) for panel in dashboard.pop("panels"))
    return f'{json.dumps(dashboard)[:-1]}, "panels": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
    print(f"{FILE.name}: {len(SECTIONS)} sections")
