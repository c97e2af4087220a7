"""Lets requests wait a moment for the offsets topic, which the first FindCoordinator creates.

Creating fifty partitions on all brokers takes a while, and not all brokers are ready at once. librdkafka's
admin client asks for a coordinator three times within 300 ms, and then its caller waits for the full timeout.
It also returns the error of a coordinator that does not know the topic yet. So these answers wait until this
broker knows the topic, and descriptions of groups wait until the groups are loaded.

Called on the IO workers; the answer is sent there, or on the purgatory's reaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from barnabas.broker.coordinators.internal_topic import OFFSETS_TOPIC
from barnabas.broker.handlers.api_request import DelayedAnswer
from barnabas.broker.handlers.services import Services

_WAIT_MS: Final = 3_000
"""Clients ask again after a refusal, but time out no earlier than this."""


def is_there(services: Services) -> bool:
    """Whether this broker knows the offsets topic."""
    return services.groups.topic.is_known


def when_there(services: Services, answer: Callable[[], None]) -> None:
    """Answer as soon as this broker knows the offsets topic, or when it has waited long enough."""
    _when(services, lambda: is_there(services), answer)


def when_loaded(services: Services, group_ids: Collection[str], answer: Callable[[], None]) -> None:
    """As `when_there`, and when none of the groups is being loaded here."""
    _when(services, lambda: is_there(services) and not services.groups.are_loading(group_ids), answer)


def _when(services: Services, is_due: Callable[[], bool], answer: Callable[[], None]) -> None:
    if is_due():
        answer()
    else:
        waiting = DelayedAnswer(_WAIT_MS, is_due, answer)
        services.topic_purgatory.try_complete_else_watch(waiting, [OFFSETS_TOPIC])
