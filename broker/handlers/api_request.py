"""A decoded request on its way through a handler, and its one answer, now or later."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, ParamSpec, TypeVarTuple

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.purgatory import DelayedCall, Purgatory
from barnabas.broker.base.slow_work import SlowWork
from barnabas.broker.network.request import Request
from barnabas.broker.security.client_quotas import ClientQuotas
from barnabas.common.workers import WorkRefused
from barnabas.protocol import codec_kafka, codec_msgpack, schema
from barnabas.protocol.answer_codes import error_counts
from barnabas.protocol.errors import ErrorCode, MessageTooComplex, Unencodable, api_error
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.schema import ApiKey, Buffer

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger(__name__)

MAX_CLIENT_ID_SHOWN: Final = 64


class EncodedAnswer(NamedTuple):
    """The bytes of an answer, and the counts of its error codes; None if requests are not measured.

    The counts are not changed: answers that are kept share them.
    """

    buffers: list[Buffer]
    errors: Mapping[int, int] | None


@dataclass(slots=True, eq=False)
class ApiRequest:
    """One decoded request. `respond` may be called later and on any thread, but exactly once.

    ``api_version`` is its version of Kafka's wire protocol, None for the native one. ``raw`` ends it in other
    ways than by an encoded response.
    """

    raw: Request
    api_key: ApiKey
    correlation_id: int
    client_id: str
    body: Any
    api_version: int | None
    quotas: ClientQuotas | None = None
    """The quotas that its answer is charged to; None without quotas, and for requests of brokers."""
    is_charged_for_time: bool = False
    """Whether it was charged for the time of threads, or is exempt from that."""
    mutes_until_ms: float = 0.0
    """Until when its changes of topics mute the connection; the answer may wait for a part of that."""
    amendments: tuple[Callable[[Any], None], ...] = ()
    """Change the answer before it is encoded: entries that the principal may not change or see."""

    def take_body(self) -> Any:
        """The body, which has no records. Neither it nor its frame stays with the request any longer.

        For answers that may wait for longer than the connection lasts: only the waiting request is kept.
        """
        body, self.body = self.body, None
        self.raw.drop_frame()
        return body

    def is_since(self, version: int) -> bool:
        """Whether the request is native, or of this or a later version of Kafka's protocol."""
        return self.api_version is None or self.api_version >= version

    def __str__(self) -> str:
        name = self.client_id[:MAX_CLIENT_ID_SHOWN]
        return f"{self.api_key.name} from {name!r} at {self.raw.peer.connection_id}"

    def respond(self, body: Any) -> None:
        """Answer with an instance of the API's response class, in the codec of the request.

        If it cannot be encoded (a value may be too long for this version), the connection is closed: a thread
        that answers many requests must not fail at one of them.
        """
        if self.quotas is not None and self.throttle_ms() and hasattr(body, "throttle_time_ms"):
            # Others may share the body.
            body = schema.replace(body, throttle_time_ms=self.raw.throttle_ms)
        answer = self.encoded(body)
        if answer is not None:
            self.raw.errors = answer.errors
            self.raw.respond(answer.buffers)

    def encoded(self, body: Any) -> EncodedAnswer | None:
        """An answer's bytes; None if it cannot be encoded, and then the connection is closed."""
        version = self.api_version
        try:
            for amend in self.amendments:
                amend(body)
            errors = error_counts(body) if self.raw.started_ns else None
            if version is None:
                return EncodedAnswer(codec_msgpack.encode_response(self.correlation_id, body), errors)
            buffers = codec_kafka.encode_response(self.api_key, version, self.correlation_id, body)
            return EncodedAnswer(buffers, errors)
        except (Unencodable, MessageTooComplex) as error:
            logger.error("the answer to %s cannot be sent: %s", self, error)
            self.raw.close_connection(f"its answer cannot be sent: {error}")
        except InvariantViolation:
            raise
        except Exception as error:  # noqa: BLE001 - any error closes the connection, loudly
            self._failed(error)
        return None

    def answering(self, answer: Callable[P, None]) -> Callable[P, None]:
        """Make an answer that fails close the connection, also if it runs later, among other answers.

        A handler that answers before it returns does not need this: `RequestHandlerPool.run` does the same.
        """

        def contained(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                answer(*args, **kwargs)
            except InvariantViolation:
                raise
            except Exception as error:  # noqa: BLE001 - any error closes the connection, loudly
                self._failed(error)

        return contained

    def _failed(self, error: Exception) -> None:
        logger.critical("%s cannot be answered", self, exc_info=error)
        self.raw.fail(f"its answer failed: {error!r}")

    def answer_when(
        self,
        is_due: Callable[[], bool],
        answer: Callable[[], None],
        *,
        purgatory: Purgatory,
        keys: Iterable[str],
        wait_ms: int,
        on_deadline: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer as soon as a condition holds. It is checked at events on the keys of the purgatory.

        At the deadline ``on_deadline`` runs first, then the answer.
        """
        deadline_ms = monotonic_ms() + max(0, wait_ms)
        delayed = DelayedCall(deadline_ms, is_due, self.answering(answer), on_deadline)
        # Before it can complete, because its answer may wait for another event.
        self.raw.park(delayed.cancel)
        purgatory.try_complete_else_watch(delayed, keys)

    def run_slowly(self, slow_work: SlowWork, work: Callable[[*Ts], None], *args: *Ts) -> None:
        """Do work that blocks on the slow-work thread; if it fails, the connection is closed.

        If the connection is lost before it begins, it is dropped.
        """

        @functools.wraps(work)
        def run() -> None:
            if not self.raw.is_abandoned:
                work(*args)

        def failed(error: Exception) -> None:
            self.raw.fail(f"{self} failed: {error!r}")

        try:
            slow_work.submit(failed, run)
        except WorkRefused as error:
            self.raw.close_connection(str(error))

    # Quotas. Only requests that have some call these.

    def throttle_ms(self) -> int:
        """For how long the connection is muted after the answer; charges the time of threads until now."""
        quotas, raw = self.quotas, self.raw
        if self.mutes_until_ms:
            self.throttle(math.ceil(self.mutes_until_ms - monotonic_ms()))
        if quotas is not None and quotas.requests.is_active and not self.is_charged_for_time:
            self.is_charged_for_time = True
            user, name = raw.peer.session.principal.name, self.client_id
            busy_ns = raw.busy_ns(time.monotonic_ns())
            self.throttle(quotas.charge_request(user, name, busy_ns, monotonic_ms()))
            raw.charge_sent = lambda ns: quotas.note_request(user, name, ns, monotonic_ms())
        return raw.throttle_ms

    def throttle(self, throttle_ms: int) -> None:
        """Mute the connection after the answer for this time at least."""
        self.raw.throttle_ms = max(self.raw.throttle_ms, throttle_ms)

    def charge_produced(self) -> None:
        """Charge the bytes of the request, as Kafka does."""
        if self.quotas is not None:
            user = self.raw.peer.session.principal.name
            self.throttle(
                self.quotas.charge_produced(user, self.client_id, self.raw.size_bytes, monotonic_ms())
            )

    def charge_creation(self, partitions: int) -> None:
        """Charge partitions that a request creates by naming their topic. As in Kafka, it is not muted."""
        if self.quotas is not None:
            user = self.raw.peer.session.principal.name
            self.quotas.charge_mutation(user, self.client_id, partitions, monotonic_ms(), is_strict=False)

    def charge_mutation(self, strict_since: int) -> Callable[[int], None]:
        """A function that charges partitions that are to be created or deleted.

        It raises THROTTLING_QUOTA_EXCEEDED if the client must wait, and knows that error by its version.
        """
        is_strict = self.is_since(strict_since)

        def charge(partitions: int) -> None:
            if self.quotas is None:
                return
            user, now_ms = self.raw.peer.session.principal.name, monotonic_ms()
            mutation = self.quotas.charge_mutation(
                user, self.client_id, partitions, now_ms, is_strict=is_strict
            )
            if mutation.throttle_ms:
                self.mutes_until_ms = now_ms + mutation.throttle_ms
            if not mutation.is_accepted:
                raise api_error(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
                )

        return charge

    def charge_fetched(self, size_bytes: int) -> bool:
        """Charge an answer of records; False if it must be sent without them, and then it is not charged."""
        if self.quotas is None:
            return True
        user, now_ms = self.raw.peer.session.principal.name, monotonic_ms()
        self.throttle(self.quotas.charge_fetched(user, self.client_id, size_bytes, now_ms))
        if not self.throttle_ms():
            return True
        self.quotas.give_back_fetched(user, self.client_id, size_bytes, now_ms)
        return False

    def most_fetched_bytes(self, max_bytes: int) -> int:
        """The most that an answer of records may have: more could never be sent."""
        if self.quotas is None:
            return max_bytes
        user = self.raw.peer.session.principal.name
        most = self.quotas.most_fetched_bytes(user, self.client_id, monotonic_ms())
        return max_bytes if most is None else min(max_bytes, most)

    def respond_with(self, answer: EncodedAnswer) -> None:
        """Answer with the result of `encoded` for another request of the same Kafka protocol version."""
        self.raw.errors = answer.errors
        self.raw.respond(codec_kafka.for_another_request(answer.buffers, self.correlation_id))
