"""Requests that wait in the topic purgatory until this broker can answer them.

- A broker that has just started knows no topics and no brokers until the controller's first update.
- The first FindCoordinator creates the internal topic, which takes a while. librdkafka's admin client asks
  three times within 300 ms, and then its caller waits for the full time-out. It also returns the error of a
  coordinator that does not know the topic yet. So answers wait until this broker knows the topic, and
  descriptions of groups wait until the groups are loaded. After `_TOPIC_WAIT_MS` the answer is a retriable
  error.

The answers are sent on the workers or on the purgatory's reaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.coordinators.internal_topic import InternalTopic
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services

_FIRST_UPDATE: Final = ""
"""The key of requests that wait for the controller's first update; no topic has this name."""
_FIRST_UPDATE_WAIT_MS: Final = 1_000
_TOPIC_WAIT_MS: Final = 3_000
"""Shorter than the request time-outs of clients, which retry after a refusal."""


def wake_requests(purgatory: Purgatory, topics: Iterable[str]) -> None:
    """Complete the requests that waited for an update of these topics, or for the first update."""
    purgatory.check_and_complete(_FIRST_UPDATE)
    for topic in topics:
        purgatory.check_and_complete(topic)


def after_first_update(services: Services, request: ApiRequest, answer: Callable[[], None]) -> None:
    """Answer, on a broker that has just started not before the controller's first update.

    Until then it knows no topics and no brokers, and a client would take topics for deleted. Without a
    controller it waits for a second at most.
    """
    if services.metadata.current.updates:
        answer()
        return
    request.answer_when(
        lambda: services.metadata.current.updates > 0,
        answer,
        purgatory=services.topic_purgatory,
        keys=[_FIRST_UPDATE],
        wait_ms=_FIRST_UPDATE_WAIT_MS,
    )


def when_known(
    services: Services,
    request: ApiRequest,
    topic: InternalTopic,
    answer: Callable[[], None],
    *,
    loaded: Collection[str] = (),
) -> None:
    """Answer when this broker knows an internal topic, and no group of ``loaded`` is being loaded here."""
    request.answer_when(
        lambda: topic.is_known and not services.groups.are_loading(loaded),
        answer,
        purgatory=services.topic_purgatory,
        keys=[topic.name],
        wait_ms=_TOPIC_WAIT_MS,
    )
