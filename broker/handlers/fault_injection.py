"""Injects faults into requests by the rules of a `FaultTable`, in front of the dispatcher.

Without rules it is not there: the request handlers call the dispatcher itself. With rules each request is
decoded once more, unless no rule names its API. A fault either replaces the handling of a request, or
intercepts the answer after the request was handled.

A stalled request holds the later answers of its connection until its rule is removed; then the connection is
closed, so that its client goes on elsewhere. A delayed request or answer goes on then as without the rule.
Faults are not injected into AlterFaultRules and DescribeFaultRules, nor into requests of the client id
`FAULTS_CLIENT_ID`.

Any thread. Of requests that wait, stalled ones are held by their connection alone, delayed ones by their
timer too, so a lost connection leaves nothing behind for longer than the delay.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from barnabas.broker.base.purgatory import DelayedCall, Reaper
from barnabas.broker.handlers import api_versions
from barnabas.broker.handlers.api_request import ApiRequest, EncodedAnswer
from barnabas.broker.handlers.dispatcher import Dispatcher, decoded_request
from barnabas.broker.handlers.fault_table import EVERY_API, ActiveRule
from barnabas.broker.handlers.fetch import fetched_partitions, refusal_of_fetch
from barnabas.broker.handlers.metadata import refusal_of_metadata
from barnabas.broker.handlers.refusals import refusal_of
from barnabas.broker.handlers.registry import HANDLERS
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Buffers, Lane, Request
from barnabas.broker.security.authentication import State
from barnabas.common.fault_rules import FAULTS_CLIENT_ID
from barnabas.protocol import codec_kafka
from barnabas.protocol.codec_kafka import UnsupportedVersion
from barnabas.protocol.errors import BeyondBound, ErrorCode, MalformedFrame
from barnabas.protocol.ids import TopicId
from barnabas.protocol.messages.configs import ConfigResourceType
from barnabas.protocol.schema import ApiKey, wire_fields

logger = logging.getLogger(__name__)

_OWN: Final = frozenset({ApiKey.ALTER_FAULT_RULES, ApiKey.DESCRIBE_FAULT_RULES})
_BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
OF_BROKERS: Final = re.compile(
    r"broker-\d+-(coordinator|fetcher|shutdown|topics)|controller-(\d+|sentinel)|registration-probe"
)
"""The client ids of brokers and controllers."""
_ONE_BYTE_KEYS: Final = 128
_NATIVE_KEY_AT: Final = 6


class _Hit(NamedTuple):
    """A rule that hits a request, and what its action needs of the request, whose frame may be gone later."""

    active: ActiveRule
    error: EncodedAnswer | None
    """The answer with the rule's error code; None without one, or if the request expects no answer."""
    is_unknown: bool
    """The peer is not authenticated: its requests run on the network thread alone, and may not pause."""

    @property
    def reason(self) -> str:
        return f"fault rule {self.active.rule.name}: {self.active.rule.action}"


class FaultInjection:
    """``install`` is called with the function that processes requests from now on."""

    def __init__(
        self,
        services: Services,
        dispatcher: Dispatcher,
        reaper: Reaper,
        install: Callable[[Callable[[Request], None]], None],
    ) -> None:
        self._services = services
        self._plain = dispatcher
        self._reaper = reaper
        self._install = install
        self._table = services.faults
        self._apis: frozenset[int] = EVERY_API
        self._lock = threading.Lock()
        # By the rule that holds them; guarded by the lock. A delayed request goes on once: the removal of its
        # rule or its timer takes it out.
        self._stalled: dict[ActiveRule, weakref.WeakSet[Request]] = {}
        self._delayed: dict[ActiveRule, dict[DelayedCall, Callable[[], None]]] = {}
        self._table.on_change = self._changed

    def _changed(self, removed: Sequence[ActiveRule]) -> None:
        with self._lock:
            rules = self._table.rules
            self._apis = frozenset().union(*(active.apis for active in rules)) - _OWN
            self._install(self if rules else self._plain)
            stalled = [request for each in removed for request in self._stalled.pop(each, ())]
            delayed = [waiting for each in removed for waiting in self._delayed.pop(each, {}).items()]
        for request in stalled:
            request.close_connection("its fault rule was removed")
        for timer, go_on in delayed:
            timer.force_complete()
            go_on()

    # ---- one request

    def __call__(self, request: Request) -> None:
        view = request.frame.view
        key = view[1 if view[0] == 0 else _NATIVE_KEY_AT] if len(view) > _NATIVE_KEY_AT else -1
        # A larger key takes two bytes in the native codec.
        if key < _ONE_BYTE_KEYS and key not in self._apis:
            self._plain(request)
            return
        try:
            hit = self._find(request)
        except BeyondBound:
            if request.lane is Lane.NETWORK:
                request.continue_in(Lane.GENERAL, lambda: self(request))
            else:
                self._plain(request)
        except (MalformedFrame, UnsupportedVersion):
            self._plain(request)
        else:
            if hit is None:
                self._plain(request)
            elif not request.answered:
                self._begin(request, hit)

    def _find(self, request: Request) -> _Hit | None:
        """Decodes the request. Raises MalformedFrame or UnsupportedVersion."""
        session = request.peer.session
        is_unknown = request.received_ns >= session.expires_at_ns
        if is_unknown and (session.authenticator is None or session.authenticator.state is State.RAW_TOKENS):
            return None
        decoded = decoded_request(request, not is_unknown)
        api = decoded.api_key
        if api in _OWN or decoded.client_id == FAULTS_CLIENT_ID or (is_unknown and api not in _BEFORE_LOGIN):
            return None
        active = self._table.find(
            api,
            decoded.client_id,
            self._is_of_broker(decoded, is_unknown),
            lambda: named_topics(self._services, decoded),
        )
        if active is None:
            return None
        request.kind = (api, decoded.api_version, False)
        return _Hit(active, self._error(decoded, active.rule.error_code), is_unknown)

    def _is_of_broker(self, decoded: ApiRequest, is_unknown: bool) -> bool:
        """By the API, or the protocol and the principal; by the client id while no principal is known."""
        brokers = self._services.brokers
        if HANDLERS[decoded.api_key].inter_broker_only:
            return True
        if decoded.api_version is not None:
            return False
        if is_unknown or not brokers.registered:
            return OF_BROKERS.fullmatch(decoded.client_id) is not None
        return brokers.is_registered(decoded.raw.peer.session)

    def _error(self, decoded: ApiRequest, code: ErrorCode | None) -> EncodedAnswer | None:
        if (
            code is None
            or decoded.api_key is ApiKey.FETCH_PROGRESS
            or (decoded.api_key is ApiKey.PRODUCE and decoded.body.acks == 0)
        ):
            return None
        if (
            decoded.api_key is ApiKey.API_VERSIONS
            and code is ErrorCode.UNSUPPORTED_VERSION
            and decoded.api_version is not None
        ):
            # Clients read this code in version 0 only (KIP-511).
            answer = codec_kafka.encode_response(
                ApiKey.API_VERSIONS, 0, decoded.correlation_id, api_versions.unsupported()
            )
            return EncodedAnswer(answer, {code: 1})
        make = _REFUSALS.get(decoded.api_key)
        refusal = refusal_of(decoded, code) if make is None else make(self._services, decoded, code)
        return decoded.encoded(refusal)

    def _begin(self, request: Request, hit: _Hit) -> None:
        rule = hit.active.rule
        if rule.hits_answers or (rule.delay_ms and hit.is_unknown):
            self._intercept(request, hit)
            self._plain(request)
        elif rule.delay_ms:
            request.pause(lambda: self._act(request, hit))
            self._delay(hit, request.resume)
        else:
            self._act(request, hit)

    def _intercept(self, request: Request, hit: _Hit) -> None:
        def answered(buffers: Buffers, close_reason: str) -> None:
            if close_reason:
                request.close_connection(close_reason, buffers)
            elif hit.active.rule.delay_ms:
                self._delay(hit, lambda: self._act(request, hit, buffers))
            else:
                self._act(request, hit, buffers)

        request.intercept_answer(answered)

    def _act(self, request: Request, hit: _Hit, answer: Buffers | None = None) -> None:
        """Act instead of the handler, or on its answer. A delay alone and a removed rule change nothing."""
        rule = hit.active.rule
        if hit.active.is_removed or not (rule.drop or rule.disconnect or rule.truncate or rule.error):
            if answer is None:
                self._plain(request)
            else:
                request.respond(answer)
        elif rule.drop:
            if answer is None:
                request.drop_frame()
            self._stall(request, hit)
        elif hit.error is not None:
            request.errors = hit.error.errors
            request.respond(hit.error.buffers)
        else:
            # As Kafka tells an error to a client that expects no answer.
            request.close_connection(hit.reason, _first_half(answer or ()) if rule.truncate else ())

    # ---- requests that wait

    def _stall(self, request: Request, hit: _Hit) -> None:
        with self._lock:
            is_removed = hit.active.is_removed
            if not is_removed:
                self._stalled.setdefault(hit.active, weakref.WeakSet()).add(request)
        if is_removed:
            request.close_connection("its fault rule was removed")

    def _delay(self, hit: _Hit, go_on: Callable[[], None]) -> None:
        def expired() -> None:
            with self._lock:
                is_waiting = self._delayed.get(hit.active, {}).pop(timer, None) is not None
            if is_waiting:
                go_on()

        with self._lock:
            is_removed = hit.active.is_removed
            if not is_removed:
                # It may expire at once, and then waits for the lock.
                timer = self._reaper.call_at(self._reaper.clock_ms() + hit.active.rule.delay_ms, expired)
                self._delayed.setdefault(hit.active, {})[timer] = go_on
        if is_removed:
            go_on()


_REFUSALS: Final[Mapping[ApiKey, Callable[[Services, ApiRequest, ErrorCode], Any]]] = {
    ApiKey.FETCH: refusal_of_fetch,
    ApiKey.METADATA: refusal_of_metadata,
}


def _first_half(buffers: Buffers) -> Buffers:
    left = sum(map(len, buffers)) // 2
    first = []
    for buffer in buffers:
        first.append(buffer[:left])
        left -= len(first[-1])
    return [buffer for buffer in first if len(buffer)]


# ---- the topics that a request names


def named_topics(services: Services, request: ApiRequest) -> Collection[str]:
    """The names of the topics that a request names by name or id; of a fetch, also those of its session."""
    if request.api_key is ApiKey.FETCH:
        return {item.partition.topic for item in fetched_partitions(services, request)}
    names = services.metadata.current.topic_names
    return {
        names.get(TopicId(topic), "") if isinstance(topic, uuid.UUID) else topic
        for topic in _topics_in(request.body)
    }


def _topics_in(body: Any) -> Iterator[str | uuid.UUID]:
    """The names and ids in the lists of topics of a request, and in lists within its other lists."""
    for field, wire, _ in wire_fields(type(body)):
        if not wire.is_array:
            continue
        entries = getattr(body, field) or ()
        if field == "resources":
            yield from (
                each.resource_name for each in entries if each.resource_type == ConfigResourceType.TOPIC.value
            )
        elif "topic" in field:
            for entry in entries:
                yield from _names_in(entry)
        elif wire.struct is not None:
            for entry in entries:
                yield from _topics_in(entry)


def _names_in(topic: Any) -> Iterator[str | uuid.UUID]:
    if isinstance(topic, str):
        yield topic
        return
    for field in ("name", "topic", "topic_name", "topic_id"):
        if name := getattr(topic, field, None):
            yield name
