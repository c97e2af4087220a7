"""A moment's patience with the offsets topic, which the first who asks for a coordinator has made.

That takes as long as fifty partitions on all brokers, and not all are ready at once. librdkafka's admin
client asks for a coordinator three times within 300 ms and then lets its caller wait for the full time-out;
and what a coordinator answers that has not heard of the topic yet it hands to its caller as an error. So
these answers wait until this broker knows the topic.

Called on the IO workers; the answer is given there, or on the purgatory's reaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.broker.coordinators.offsets_topic import OFFSETS_TOPIC
from barnabas.broker.handlers.metadata import Delayed
from barnabas.broker.handlers.services import Services

_CREATION_WAIT_MS: Final = 3_000
"""Clients ask again after a refusal, but time out no earlier than this."""


def is_there(services: Services) -> bool:
    """Whether this broker knows the offsets topic."""
    return OFFSETS_TOPIC in services.metadata.current.topics


def when_there(services: Services, answer: Callable[[], None]) -> None:
    """Answer as soon as this broker knows the offsets topic, or when it has waited long enough."""
    if is_there(services):
        answer()
        return
    waiting = Delayed(_CREATION_WAIT_MS, lambda: is_there(services), answer)
    services.topic_purgatory.try_complete_else_watch(waiting, [OFFSETS_TOPIC])
