"""Topic settings without a default of the broker: the throttled replicas, and settings without effect.

Tools set the latter by themselves (MirrorMaker, Connect, Terraform) and fail if brokers refuse them: they are
checked, stored and shown. Values that enable a missing feature, such as tiered storage, are refused. Pure.
Source: ``TopicConfig.java`` and ``QuotaConfig.java`` of Apache Kafka 3.9.
"""

from __future__ import annotations

import re
from typing import Final

from barnabas.common.settings import AlwaysFalse, Kind, Setting, TextList


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


THROTTLED_REPLICAS: Final[dict[str, Setting]] = {
    declared.name: declared
    for declared in (
        Setting(
            ReplicaList(),
            (),
            "Leaders that send to replicas out of sync at leader.replication.throttled.rate.",
            "leader.replication.throttled.replicas",
        ),
        Setting(
            ReplicaList(),
            (),
            "Replicas that are fetched at follower.replication.throttled.rate while they are not in sync.",
            "follower.replication.throttled.replicas",
        ),
    )
}
"""Topic-level name → declaration."""

STORED_TOPIC_SETTINGS: Final[dict[str, Setting]] = {
    declared.name: declared
    for declared in (
        _stored("remote.storage.enable", _never, False, "Tiered storage, which does not exist here."),
        _stored("remote.log.copy.disable", _never, False, "Whether no more segments go to tiered storage."),
        _stored("remote.log.delete.on.disable", _never, False, "Whether disabling it deletes its data."),
    )
}
TOPIC_ONLY_SETTINGS: Final = THROTTLED_REPLICAS | STORED_TOPIC_SETTINGS
