"""Settings of topics that change while records are written, as steps of a random history.

A change is what `AlterConfigs` carries out: a transaction of the broker that a client asks. Its answer may be
lost, and a broker may lose its connection while it reads what has changed. Brokers apply retention meanwhile.
"""

import random
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from barnabas.protocol.errors import ApiError
from barnabas.zookeeper.configs import ALL_BROKERS, Entity
from tests.simulation.broker import SimBroker
from tests.simulation.disk import BATCH_BYTES
from tests.simulation.world import World

SETTINGS_WORK: Final = {
    "change_settings": 8.0,
    "change_defaults": 2.0,
    "apply_retention": 6.0,
    "break_reading": 4.0,
}
_LARGE: Final = 1 << 20
OF_TOPICS: Final[Mapping[str, tuple[int, ...]]] = {
    "min.insync.replicas": (1, 2, 3),
    "segment.bytes": (BATCH_BYTES, 3 * BATCH_BYTES, _LARGE),
    "segment.ms": (1, 500, _LARGE),
    "retention.ms": (-1, 0, 500, 3_000),
    "retention.bytes": (-1, 0, 2 * BATCH_BYTES, 6 * BATCH_BYTES),
    "max.message.bytes": (BATCH_BYTES, _LARGE),
}
OF_BROKERS: Final[Mapping[str, tuple[int, ...]]] = {
    "min.insync.replicas": (1, 2, 3),
    "log.segment.bytes": (3 * BATCH_BYTES, _LARGE),
    "log.retention.ms": (-1, 3_000, _LARGE),
}


class SettingsChaos:
    """The steps; mixed into a history."""

    of_topics: ClassVar = OF_TOPICS
    of_brokers: ClassVar = OF_BROKERS
    random: random.Random
    world: World
    trace: list[str]

    @abstractmethod
    def _any(self) -> SimBroker: ...

    @abstractmethod
    def _may_fall(self, broker: SimBroker) -> bool: ...

    def change_settings(self) -> None:
        names = [self.world.tp.topic, *(() if self.world.topics is None else self.world.topics.names())]
        self._change(Entity.topic(self.random.choice(names)), self.of_topics)

    def change_defaults(self) -> None:
        self._change(ALL_BROKERS, self.of_brokers)

    def _change(self, entity: Entity, choices: Mapping[str, tuple[int, ...]]) -> None:
        name = self.random.choice(list(choices))
        value = self.random.choice((None, *choices[name]))

        def edit(values: Mapping[str, str]) -> dict[str, str]:
            kept = {other: text for other, text in values.items() if other != name}
            return kept if value is None else {**kept, name: str(value)}

        host = self.random.choice(list(self.world.hosts.values()))
        if host.can_act:
            client: Any = host.member.client
            if self.random.random() < 0.15 and self._may_fall(host):
                client.break_after(self.random.randint(0, 3), is_last_done=self.random.random() < 0.6)
            try:
                host.member.store.configs.change(entity, edit)
                outcome = "done"
            except ApiError as error:
                outcome = error.code.name
            client.heal()
            self.trace[-1] = f"{self.trace[-1]} {entity.name} {name}={value} at {host.id}: {outcome}"
            if outcome == "done":
                assert self.world.settings is not None
                self.world.settings.expect(entity, name, value)

    def apply_retention(self) -> None:
        broker = self._any()
        if broker.can_act and not broker.disk.has_failed:
            assert self.world.settings is not None
            self.world.settings.retain(broker)

    def break_reading(self) -> None:
        """The connection of a broker breaks while it reads changed settings."""
        due = [host for host in self.world.hosts.values() if host.can_act and host.member.must_read_settings]
        host = self.random.choice(due) if due else None
        if host is not None and self._may_fall(host):
            client: Any = host.member.client
            client.break_after(
                self.random.randint(0, 4), is_last_done=True, waits_away=self.random.choice((0, 3))
            )
            host.member.read_settings()
            client.heal()
