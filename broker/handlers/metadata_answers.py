"""What is told of many partitions, kept until the picture of the cluster changes.

A thousand clients ask the same when a leader dies, and an answer about 2,000 partitions takes milliseconds to
make. It is made once for each kind of question: the topics asked for, listener, version and flags.
Any thread; two that ask at the same time may both make it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from barnabas.broker.metadata_cache import MetadataCache
from barnabas.protocol.ids import BrokerId

_MAX_ANSWERS: Final = 16
"""An answer may take megabytes."""


class MetadataAnswers:
    """See the module. ``version`` is `MetadataCache.version`, read before the answer was made."""

    def __init__(self) -> None:
        self._kept: tuple[int, dict[Hashable, Any]] = (-1, {})
        self._moving: tuple[int, frozenset[str]] = (-1, frozenset())

    def find(self, version: int, question: Hashable) -> Any:
        """The answer to this question in this picture, or None."""
        kept_version, answers = self._kept
        return answers.get(question) if kept_version == version else None

    def keep(self, version: int, question: Hashable, answer: Any) -> None:
        kept_version, answers = self._kept
        if kept_version != version or len(answers) >= _MAX_ANSWERS:
            self._kept = (version, {question: answer})
        else:
            answers[question] = answer

    def moving(self, cache: MetadataCache) -> frozenset[str]:
        """The topics of which a partition has a leader that is dead or suspected, and no other yet.

        One without any leader (the controller has said so) may stay so for long: nobody waits for it.
        """
        version, current = cache.version, cache.current
        known_version, moving = self._moving
        if known_version != version:
            alive = current.brokers.keys() - cache.suspects
            moving = frozenset(
                name
                for name, topic in current.topics.items()
                if any(
                    partition.leader >= 0 and BrokerId(partition.leader) not in alive
                    for partition in topic.partitions.values()
                )
            )
            if cache.version == version:
                self._moving = (version, moving)
        return moving
