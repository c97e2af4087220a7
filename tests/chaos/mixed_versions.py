"""Brokers of an earlier version beside those of this one, which change places under load and faults."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import broker_command
from benchmarks.earlier import NoRevision, Tree, resolved, unpacked

from .operated_nemesis import MovingNemesis
from .operations import InternalTopic
from .random_faults import Choice
from .runs import Run

EARLIER: Final = "b6f0657880caf8e8a5c2720cb468462131ce86b3"
"""The version from which a cluster can be upgraded broker by broker, and to which it can go back."""


class Versions:
    """The version that each broker is started with next: the earlier one at first."""

    def __init__(self, earlier: Tree) -> None:
        self._earlier = earlier
        self.new: set[int] = set()
        """The brokers that start with this version."""

    def command(self, settings_file: Path) -> list[str]:
        """Of `LocalCluster`: the command that runs the broker with these settings."""
        if int(settings_file.parent.name.removeprefix("broker-")) in self.new:
            return broker_command(settings_file)
        return self._earlier.broker_command(settings_file)


def unpack_earlier(folder: Path) -> Tree:
    """The earlier version's files. Without the history nothing provides them: the test is skipped.

    A clone has it; a source archive or a shallow clone has not.
    """
    try:
        return unpacked(resolved(EARLIER), folder / "earlier")
    except NoRevision as error:
        pytest.skip(str(error))


class UpgradingNemesis(MovingNemesis):
    """Each start of a broker draws its version; in the end the cluster is upgraded broker by broker."""

    def __init__(
        self,
        cluster: LocalCluster,
        run: Run,
        settle: Callable[[], None],
        topic: str,
        internal: Sequence[InternalTopic],
        versions: Versions,
    ) -> None:
        super().__init__(cluster, run, settle, topic, internal)
        self._versions = versions

    def run(self, duration_s: float) -> None:
        super().run(duration_s)
        earlier = [id for id in self._cluster.broker_ids if id not in self._versions.new]
        for broker_id in self._chance.sample(earlier, len(earlier)):
            self._say(f"upgrade broker {broker_id} for good")
            self._stop(broker_id)
            self._versions.new.add(broker_id)
            super()._start(broker_id)
            self.heal()

    def _choices(self) -> list[Choice]:
        found = super()._choices()
        if self._zookeeper.state == "running":
            for broker in self._cluster.brokers:
                if broker.state == "running":
                    restart = (f"restart broker {broker.id}", lambda id=broker.id: self._restart(id))
                    found += [restart] * 2
        return found

    def _restart(self, broker_id: int) -> None:
        self._stop(broker_id)
        self._start(broker_id)

    def _start(self, broker_id: int) -> None:
        if is_new := self._chance.random() < 0.5:
            self._versions.new.add(broker_id)
        else:
            self._versions.new.discard(broker_id)
        self._say(f"  broker {broker_id} runs {'this' if is_new else 'the earlier'} version")
        super()._start(broker_id)
