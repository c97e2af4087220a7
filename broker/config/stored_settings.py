"""Topic settings of Kafka that have no effect here: accepted, checked, stored and shown.

Tools set them by themselves (MirrorMaker, Connect, Terraform, kafka-reassign-partitions) and fail if brokers
refuse them. Values that enable a missing feature, such as tiered storage, are refused. A setting that gets an
effect moves into `BrokerConfig`. Pure. Source: ``TopicConfig.java`` of Apache Kafka 3.9.
"""

from __future__ import annotations

import re
from typing import Final

from barnabas.protocol.settings import AlwaysFalse, Kind, Setting, TextList


class ReplicaList(TextList):
    """Replicas of a topic: nothing, all of them (``*``), or a list of ``partition:broker``."""

    def __init__(self) -> None:
        super().__init__("nothing, * or a comma separated list of partition:broker")

    def parse(self, text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
        if words != ("*",) and not all(re.fullmatch("[0-9]+:[0-9]+", word) for word in words):
            raise ValueError(text)
        return words


_never = AlwaysFalse("there is no tiered storage")


def _stored(name: str, kind: Kind, default: bool | tuple[str, ...], documentation: str) -> Setting:
    return Setting(kind, default, f"{documentation} Without effect so far.", name)


STORED_TOPIC_SETTINGS: Final[dict[str, Setting]] = {
    declared.name: declared
    for declared in (
        _stored(
            "leader.replication.throttled.replicas", ReplicaList(), (), "Leaders whose replication is slowed."
        ),
        _stored(
            "follower.replication.throttled.replicas",
            ReplicaList(),
            (),
            "Followers whose replication is slowed.",
        ),
        _stored("remote.storage.enable", _never, False, "Tiered storage, which does not exist here."),
        _stored("remote.log.copy.disable", _never, False, "Whether no more segments go to tiered storage."),
        _stored("remote.log.delete.on.disable", _never, False, "Whether disabling it deletes its data."),
    )
}
"""Topic-level name → declaration."""
