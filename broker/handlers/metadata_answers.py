"""A cache of Metadata answers with many partitions, valid until the metadata changes.

When a leader dies, a thousand clients send the same request, and an answer with 2,000 partitions takes
milliseconds to build. It is built once for the same topics, listener, version and flags. Any thread; two
threads at the same time may both build it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from barnabas.broker.metadata_cache import MetadataCache
from barnabas.protocol.ids import BrokerId

_MAX_ANSWERS: Final = 16
"""An answer may take megabytes."""


class MetadataAnswers:
    """``version`` is `MetadataCache.version`, read before the answer was built."""

    def __init__(self) -> None:
        self._kept: tuple[int, dict[Hashable, Any]] = (-1, {})
        self._moving: tuple[int, frozenset[str]] = (-1, frozenset())

    def find(self, version: int, question: Hashable) -> Any:
        """The answer to this question at this version, or None."""
        kept_version, answers = self._kept
        return answers.get(question) if kept_version == version else None

    def keep(self, version: int, question: Hashable, answer: Any) -> None:
        kept_version, answers = self._kept
        if kept_version != version or len(answers) >= _MAX_ANSWERS:
            self._kept = (version, {question: answer})
        else:
            answers[question] = answer

    def moving(self, cache: MetadataCache) -> frozenset[str]:
        """The topics with a partition whose leader is dead or suspect and not yet replaced.

        Requests do not wait for a partition that the controller reports as leaderless: that may last.
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
