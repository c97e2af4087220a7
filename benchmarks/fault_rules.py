"""The cost of fault rules: the CPU of a produce request without rules, and with a rule that never hits it.

Clusters of one broker get the same requests over sockets, in turns, as in `benchmarks.authorization`. One has
``fault.injection.enable`` false; two others had rules that are cleared; one has a rule on another API, one a
rule on another topic. The figure is the median of the ratios to the first.

By itself, on a quiet machine: `python -m benchmarks.fault_rules`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack

import uvloop

from barnabas.client.admin.admin import Admin
from barnabas.common.fault_rules import FaultRule
from barnabas.deploy.local import LocalCluster
from benchmarks.authorization import cpu_of_turns, more_percent
from benchmarks.load import create_topic
from benchmarks.support import Figure, Options, new_cluster, run, tell, temporary_folder

_TOPIC = "topic"
_OFF = "switched off"
_CLEARED = "no rules"
_AGAIN = "another without rules"
_OTHER_API = "a rule on another API"
_OTHER_TOPIC = "a rule on another topic"
_RULES: Mapping[str, FaultRule] = {
    _OTHER_API: FaultRule(api="Heartbeat", drop=True),
    _OTHER_TOPIC: FaultRule(topic="no-such-topic", drop=True),
}


async def _prepare(cluster: LocalCluster, kind: str) -> None:
    await create_topic(cluster.bootstrap, _TOPIC, [1], [1])
    if kind is not _OFF:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.add_fault_rules(FaultRule(drop=True))
            await admin.remove_fault_rules()
            if kind in _RULES:
                await admin.add_fault_rules(_RULES[kind])


async def _turns(clusters: Mapping[str, LocalCluster], turns: int, count: int) -> dict[str, list[float]]:
    for kind, cluster in clusters.items():
        await _prepare(cluster, kind)
    return await cpu_of_turns(clusters, _TOPIC, turns, count)


def _round(options: Options) -> dict[str, list[float]]:
    turns, count = options.amount(200, 60), options.amount(1_000, 500)
    with ExitStack() as stack:
        clusters = {}
        for kind in (_OFF, _CLEARED, _AGAIN, *_RULES):
            folder = stack.enter_context(temporary_folder(options))
            is_enabled = str(kind is not _OFF).lower()
            clusters[kind] = stack.enter_context(
                new_cluster(folder, options, brokers=1, fault_injection_enable=is_enabled)
            )
        return uvloop.run(_turns(clusters, turns, count))


def measure(options: Options) -> list[Figure]:
    rounds = []
    for number in range(options.rounds):
        tell(f"produce of 1 KB with and without fault rules, round {number + 1} of {options.rounds}")
        rounds.append(_round(options))
    cpu = [statistics.median(found[_OFF]) / 1_000 for found in rounds]
    return [
        Figure.of("produce of 1 KB, no fault injection: CPU of the broker", cpu, "µs"),
        *(
            Figure.of(f"  {kind}, more", [more_percent(found, kind, _OFF) for found in rounds], "%")
            for kind in (_CLEARED, _AGAIN, *_RULES)
        ),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
