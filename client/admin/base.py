"""The base of all parts of the admin client. It belongs to the event loop of the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack

from barnabas.client.arguments import limit_ms
from barnabas.client.ask import Answered, Route, ToController, ask
from barnabas.client.client import Client
from barnabas.client.cluster import Cluster
from barnabas.client.config import AdminConfig, AdminSettings
from barnabas.client.errors import ClientClosed, TopicErrors
from barnabas.common.backoff import Retries
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, api_error
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")


class AdminBase(Client):
    """Settings as in `AdminConfig`, by name, or as one ``config``; names replace those of the config."""

    def __init__(self, config: AdminConfig | None = None, **settings: Unpack[AdminSettings]) -> None:
        self.config = AdminConfig.given(config, settings)

    def _make_cluster(self) -> Cluster:
        return Cluster(self.config)

    @property
    def is_kafka(self) -> bool:
        """Whether Kafka's protocol is spoken, as with brokers of other software; False before the start."""
        return self._cluster is not None and self._cluster.is_kafka

    def _timeout(self, timeout_ms: int | None) -> int:
        return limit_ms(timeout_ms, self.config.default_api_timeout_ms)

    def _open(self) -> Cluster:
        if self._cluster is None:
            raise ClientClosed("the admin client is not started; use `async with Admin(…)`")
        self._check_loop()
        return self._cluster

    async def _ask(self, route: Route, request: RequestOf[R], timeout_ms: int | None) -> Answered[R]:
        return await ask(route, request, self.config.make_retries(self._timeout(timeout_ms)))

    async def _ask_controller(
        self, request: RequestOf[R], timeout_ms: int | None, retries: Retries | None = None
    ) -> Answered[R]:
        """Raises only the error of the whole answer, if it has one."""
        timed: Any = request
        # So that the broker answers before the client gives up.
        timed.timeout_ms = min(self._timeout(timeout_ms), self.config.request_timeout_ms) * 9 // 10
        route = ToController(self._open())
        answered = await ask(route, request, retries or self.config.make_retries(self._timeout(timeout_ms)))
        answer, text = answered.response, "the controller refused the request"
        if hasattr(answer, "error_code") and (error := error_of(answer, text)):
            raise error
        return answered


def error_of(result: Any, text: str) -> ApiError | None:
    """The error of one topic, resource or partition in an answer; the broker's own text comes first."""
    if result.error_code == ErrorCode.NONE:
        return None
    return api_error(result.error_code, getattr(result, "error_message", None) or text)


def raise_errors(
    outcomes: Mapping[Any, object], count: int, of_several: Callable[..., BarnabasError] = TopicErrors
) -> None:
    """Raise the one error of a call about one thing, else the error ``of_several`` if any of them failed."""
    errors = {name: error for name, error in outcomes.items() if isinstance(error, BarnabasError)}
    if errors and count == 1:
        raise next(iter(errors.values()))
    if errors:
        raise of_several(errors, {name: result for name, result in outcomes.items() if name not in errors})
