"""The rules of a connection, without a socket."""

from collections.abc import Callable
from random import Random

import pytest

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.network.pipeline import ENDED, Event, Phase, Pipeline
from barnabas.broker.network.request import Lane, Peer, Request
from barnabas.protocol.frames import Frame
from barnabas.protocol.invariants import InvariantViolation

PEER = Peer("peer#1", "peer", "PLAINTEXT", 0)
LIMITS = ConnectionLimits(max_in_flight=3, max_in_flight_bytes=100, max_unwritten_bytes=50)


def in_turn(view: memoryview) -> bool:
    return bytes(view).endswith(b"7")


class Driven(Pipeline):
    """A pipeline whose requests are run and answered by the test."""

    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        super().__init__(limits, in_turn)
        self.turns: list[Request] = []
        self.next_lane: Lane | None = None
        """The thread on which the last resumed request runs."""

    def received(self, *payloads: bytes, lane: Lane = Lane.NETWORK) -> list[Request]:
        requests = [
            Request(Frame(memoryview(payload)), PEER, lane, 0, self._answered, self.resumed)
            for payload in payloads
        ]
        self.receive(requests)
        return requests

    def _answered(self, request: Request, buffers: object, close_reason: str) -> None:
        if self.answer(request, buffers, close_reason):
            self.turns.append(request)

    def resumed(self, request: Request) -> None:
        self.next_lane = self.resume(request)

    def run_all(self) -> list[bytes]:
        """Run what may run, without answers; the payloads in their order."""
        ran = []
        lane = self.claim()
        while lane is not None:
            request = self.take()
            if request is not None:
                ran.append(bytes(request.frame.view))
            lane = self.finish(request)
        return ran

    def sent(self) -> list[bytes]:
        return [bytes(buffer) for buffer in self.take_sendable([])]


@pytest.fixture
def pipeline() -> Driven:
    return Driven()


def test_requests_run_in_order_one_at_a_time_without_waiting_for_answers(pipeline: Driven) -> None:
    pipeline.received(b"1", b"2")
    assert pipeline.claim() is Lane.NETWORK
    assert pipeline.claim() is None
    first = pipeline.take()
    pipeline.received(b"3")
    assert pipeline.claim() is None
    assert pipeline.finish(first) is Lane.NETWORK
    second = pipeline.take()
    assert pipeline.finish(second) is Lane.NETWORK
    assert pipeline.finish(pipeline.take()) is None
    assert pipeline.claim() is None


def test_answers_leave_in_the_order_of_the_requests(pipeline: Driven) -> None:
    first, second, third = pipeline.received(b"1", b"2", b"3")
    pipeline.run_all()
    third.respond((b"c",))
    second.respond_nothing()
    assert (pipeline.turns, pipeline.sent(), pipeline.is_idle) == ([], [], False)
    first.respond((b"a", b"A"))
    assert pipeline.turns == [first]
    assert (pipeline.sent(), pipeline.is_idle) == ([b"a", b"A", b"c"], True)
    assert first.buffers == (), "whoever still has the request would keep its answer in memory"


def test_what_is_pushed_leaves_after_the_answers_before_it(pipeline: Driven) -> None:
    first, second = pipeline.received(b"1", b"2")
    pipeline.run_all()
    assert pipeline.push((b"p", b"P"))
    assert pipeline.sent() == [b"p", b"P"]
    second.respond((b"b",))
    assert pipeline.push((b"q",))
    assert pipeline.sent() == [], "the answer that may have opened its subscription has not left"
    first.respond((b"a",))
    assert pipeline.sent() == [b"a", b"b", b"q"]
    assert pipeline.sent() == []
    pipeline.close("of a test")
    assert not pipeline.push((b"r",))


def test_a_request_in_turn_runs_when_all_earlier_ones_are_answered(pipeline: Driven) -> None:
    first, second, _ = pipeline.received(b"1", b"2", b"7")
    assert pipeline.run_all() == [b"1", b"2"]
    first.respond((b"a",))
    assert pipeline.claim() is None
    second.respond((b"b",))
    assert pipeline.run_all() == [b"7"], "answers that are not sent yet need no wait"


def test_a_request_that_has_begun_may_wait_for_its_turn(pipeline: Driven) -> None:
    first, second, _ = pipeline.received(b"1", b"2", b"3")
    ran: list[str] = []
    assert pipeline.claim() is Lane.NETWORK
    for request in (first, second):
        assert pipeline.take() is request
        request.run_in_turn(lambda: ran.append("ran"))
        pipeline.finish(request)
    assert (ran, pipeline.claim()) == (["ran"], None)
    first.respond((b"a",))
    assert pipeline.claim() is Lane.NETWORK, "an answer that is not sent yet needs no wait"
    assert pipeline.take() is second
    assert second.rest is not None
    second.rest = None
    assert pipeline.finish(second) is Lane.NETWORK


def test_what_is_parked_is_cancelled_with_its_connection(pipeline: Driven) -> None:
    answered, waiting, late = pipeline.received(b"1", b"2", b"3")
    pipeline.run_all()
    cancelled: list[str] = []
    answered.park(lambda: cancelled.append("answered"))
    waiting.park(lambda: cancelled.append("waiting"))
    answered.respond((b"a",))
    abandoned: list[Request] = []
    pipeline.lose(ENDED, abandoned)
    for request in abandoned:
        request.abandon()
        request.abandon()
    assert cancelled == ["waiting"]
    late.park(lambda: cancelled.append("parked when the connection was gone"))
    assert len(cancelled) == 2


def test_a_request_that_is_answered_before_it_is_parked_keeps_no_cycle(pipeline: Driven) -> None:
    (request,) = pipeline.received(b"1")
    pipeline.run_all()
    request.respond((b"a",))
    request.park(lambda: None)
    assert request.cancel is None


def test_the_rest_of_a_request_runs_without_its_frame(pipeline: Driven) -> None:
    pipeline.received(b"1")
    pipeline.run_all()
    (request,) = pipeline.received(b"2")
    pipeline.claim()
    pipeline.take()
    request.release_frame()
    request.continue_in(Lane.GENERAL, lambda: None)
    assert pipeline.finish(request) is Lane.GENERAL


def test_a_request_in_turn_runs_at_once_when_its_peer_has_ended(pipeline: Driven) -> None:
    """A later request may be a produce with acks=0."""
    pipeline.received(b"1", b"7", b"3")
    assert pipeline.run_all() == [b"1"]
    pipeline.peer_ends()
    assert pipeline.run_all() == [b"7", b"3"]


def test_a_request_that_continues_in_another_lane_is_the_next_one(pipeline: Driven) -> None:
    pipeline.received(b"1", b"2")
    assert pipeline.claim() is Lane.NETWORK
    request = pipeline.take()
    assert request is not None
    rest: list[str] = []
    request.continue_in(Lane.RECORDS, lambda: rest.append("ran"))
    assert pipeline.finish(request) is Lane.RECORDS
    assert pipeline.take() is request
    request.rest = None
    request.continue_in(Lane.RECORDS, lambda: rest.append("ran in its lane"))
    assert rest == ["ran in its lane"]
    assert pipeline.finish(request) is Lane.NETWORK


def pause_first(pipeline: Driven) -> Request:
    """Run the first of two requests until it pauses."""
    pipeline.received(b"1", b"2")
    pipeline.claim()
    request = pipeline.take()
    assert request is not None
    request.pause(lambda: None)
    return request


def test_later_requests_wait_for_one_that_has_paused(pipeline: Driven) -> None:
    request = pause_first(pipeline)
    assert pipeline.finish(request) is None
    pipeline.received(b"3")
    assert pipeline.claim() is None
    request.resume()
    assert pipeline.next_lane is Lane.GENERAL
    assert pipeline.take() is request
    request.rest = None
    assert pipeline.finish(request) is Lane.NETWORK
    assert pipeline.run_all() == []


def test_a_request_that_resumes_while_its_peer_is_slow_runs_later(pipeline: Driven) -> None:
    request = pause_first(pipeline)
    pipeline.finish(request)
    pipeline.peer_is_slow = True
    request.resume()
    assert pipeline.next_lane is None
    assert pipeline.claim() is None
    pipeline.peer_is_slow = False
    assert pipeline.claim() is Lane.GENERAL
    assert pipeline.take() is request


def test_a_paused_request_of_a_lost_connection_is_dropped_when_it_resumes(pipeline: Driven) -> None:
    request = pause_first(pipeline)
    pipeline.finish(request)
    pipeline.lose("reset", [])
    request.resume()
    assert pipeline.next_lane is Lane.GENERAL
    while pipeline.next_lane is not None:
        assert pipeline.take() is None
        pipeline.next_lane = pipeline.finish(None)
    assert not pipeline.pending


@pytest.mark.parametrize("pauses_late", [False, True])
def test_a_paused_request_holds_no_memory_when_its_connection_is_lost(
    pauses_late: bool, pipeline: Driven
) -> None:
    given_back: list[int] = []
    frame = Frame(memoryview(b"1"))
    request = Request(frame, PEER, Lane.GENERAL, 0, lambda *_: None, pipeline.resumed, given_back.append)
    pipeline.receive([request])
    pipeline.claim()
    pipeline.take()
    steps: list[Callable[[], object]] = [
        lambda: request.pause(lambda: None),
        lambda: (pipeline.lose("reset", []), request.abandon()),
    ]
    for step in reversed(steps) if pauses_late else steps:
        step()
    assert request.rest is None
    assert given_back == [1]
    assert pipeline.finish(request) is None
    request.resume()
    assert pipeline.next_lane is None


def test_a_half_closed_connection_is_not_closed_before_its_paused_request_has_run(pipeline: Driven) -> None:
    request = pause_first(pipeline)
    pipeline.finish(request)
    pipeline.peer_ends()
    assert pipeline.due_close() == ""
    request.resume()
    request.rest = None
    assert pipeline.finish(pipeline.take()) is Lane.NETWORK
    pipeline.finish(pipeline.take())
    assert pipeline.due_close() == ENDED


@pytest.mark.parametrize(
    ("sizes", "may_read", "runs"),
    [([1, 1], True, 2), ([1, 1, 1], False, 3), ([99], True, 1), ([100], False, 1), ([1] * 5, False, 3)],
)
def test_requests_in_flight_are_bounded(
    sizes: list[int], may_read: bool, runs: int, pipeline: Driven
) -> None:
    requests = pipeline.received(*[bytes(size) for size in sizes])
    assert pipeline.may_read is may_read
    assert len(pipeline.run_all()) == runs
    for request in requests[:runs]:
        request.respond_nothing()
    pipeline.take_sendable([])
    assert pipeline.may_read
    assert len(pipeline.run_all()) == len(sizes) - runs


@pytest.mark.parametrize(("unsent_bytes", "runs"), [(50, [b"2"]), (51, [])])
def test_nothing_runs_while_too_much_is_unsent(
    unsent_bytes: int, runs: list[bytes], pipeline: Driven
) -> None:
    [request] = pipeline.received(b"1")
    pipeline.run_all()
    request.respond((bytes(unsent_bytes),))
    pipeline.received(b"2")
    assert pipeline.run_all() == runs
    pipeline.take_sendable([])
    assert [*runs, *pipeline.run_all()] == [b"2"]


def test_a_second_answer_is_a_bug_unless_the_request_has_failed(pipeline: Driven) -> None:
    answered, failed, failed_late = pipeline.received(b"1", b"2", b"3")
    pipeline.run_all()
    answered.respond((b"once",))
    with pytest.raises(InvariantViolation, match="answered twice"):
        answered.respond((b"twice",))
    failed_late.respond((b"before",))
    failed_late.fail("a bug")
    failed.fail("a bug")
    failed.respond((b"late",))
    failed.close_connection("late")
    assert pipeline.turns == [answered]
    assert pipeline.sent() == [b"once"]
    assert pipeline.due_close() == "a bug"


def test_a_refused_request_is_closed_in_its_turn_and_nothing_runs_after_it(pipeline: Driven) -> None:
    first, second, third = pipeline.received(b"1", b"2", b"3")
    assert pipeline.claim() is not None
    pipeline.finish(pipeline.take())
    second.close_connection("too late")
    pipeline.take()
    assert pipeline.finish(second) is None
    assert not pipeline.may_read
    assert pipeline.due_close() == ""
    first.respond((b"a",))
    assert pipeline.sent() == [b"a"]
    assert pipeline.due_close() == "too late"
    assert list(pipeline.pending) == [third]


def test_a_draining_connection_closes_when_all_is_answered_and_sent(pipeline: Driven) -> None:
    [request] = pipeline.received(b"1")
    pipeline.drain("stopping")
    assert not pipeline.may_read
    assert pipeline.run_all() == [b"1"]
    request.respond((b"a",))
    assert pipeline.due_close() == ""
    pipeline.take_sendable([])
    assert pipeline.due_close() == "stopping"
    pipeline.close("stopping")
    assert (pipeline.due_close(), pipeline.lose("lost", [])) == ("", "stopping")


def test_a_request_may_be_answered_before_it_closes_the_connection(pipeline: Driven) -> None:
    first, second, _ = pipeline.received(b"1", b"2", b"3")
    pipeline.run_all()
    second.close_connection("refused", [b"why", b"not"])
    assert pipeline.sent() == []
    assert pipeline.due_close() == ""
    first.respond([b"answer"])
    assert pipeline.sent() == [b"answer", b"why", b"not"]
    assert pipeline.due_close() == "refused"
    assert pipeline.sent() == [], "it is sent once"


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_refusal_ends_a_half_closed_connection_at_once(ends_first: bool, pipeline: Driven) -> None:
    first, second = pipeline.received(b"1", b"2")
    if ends_first:
        pipeline.peer_ends()
    assert pipeline.claim() is not None
    pipeline.finish(pipeline.take())
    second.close_connection("refused")
    if not ends_first:
        assert pipeline.due_close() == ""
        pipeline.peer_ends()
    assert pipeline.due_close() == ENDED
    first.respond_nothing()
    pipeline.take_sendable([])
    assert pipeline.due_close() == "refused"


@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_lost_connection_drops_what_has_not_run(is_claimed: bool, pipeline: Driven) -> None:
    ran, _, _ = pipeline.received(b"1", b"2", b"3")
    assert pipeline.claim() is not None
    assert pipeline.finish(pipeline.take()) is not None
    if not is_claimed:
        pipeline.peer_is_slow = True
        pipeline.finish(None)
    assert pipeline.lose("reset", []) == "reset"
    if is_claimed:
        # The queue has counted them, so a worker takes each.
        assert pipeline.take() is None
        assert pipeline.finish(None) is not None
        assert pipeline.take() is None
        assert pipeline.finish(None) is None
    assert not pipeline.pending
    ran.respond((b"late",))
    assert (pipeline.turns, pipeline.sent()) == ([], [])


def test_a_muted_connection_reads_nothing_and_begins_nothing(pipeline: Driven) -> None:
    first, second = pipeline.received(b"1", b"2")
    pipeline.claim()
    pipeline.finish(pipeline.take())
    pipeline.take()
    pipeline.finish(second)
    pipeline.received(b"3")
    second.respond((b"b",))
    pipeline.is_muted = True
    assert not pipeline.may_read
    assert pipeline.run_all() == []
    # A request that has run is answered.
    first.respond((b"a",))
    assert pipeline.sent() == [b"a", b"b"]
    pipeline.is_muted = False
    assert pipeline.may_read
    assert pipeline.run_all() == [b"3"]


def test_a_muted_connection_is_not_idle(pipeline: Driven) -> None:
    pipeline.is_muted = True
    assert not pipeline.is_idle
    pipeline.is_muted = False
    assert pipeline.is_idle


def test_a_request_that_has_begun_continues_though_its_connection_is_muted(pipeline: Driven) -> None:
    pipeline.received(b"1", b"2")
    pipeline.claim()
    request = pipeline.take()
    assert request is not None
    request.continue_in(Lane.RECORDS, lambda: None)
    pipeline.is_muted = True
    assert pipeline.finish(request) is Lane.RECORDS
    pipeline.take()
    request.rest = None
    assert pipeline.finish(request) is None


@pytest.mark.parametrize("ends", [Driven.peer_ends, lambda pipeline: pipeline.drain("stopping")])
def test_a_mute_holds_up_no_connection_that_is_to_close(
    ends: Callable[[Driven], object], pipeline: Driven
) -> None:
    pipeline.received(b"1", b"2")
    pipeline.is_muted = True
    assert pipeline.run_all() == []
    ends(pipeline)
    assert pipeline.run_all() == [b"1", b"2"]


AFTER = {
    # PEER_ENDS, DRAIN, REFUSE, CLOSE, LOSE; "-" for an event that would be a bug
    "OPEN": "HALF_CLOSED DRAINING REFUSING CLOSING CLOSED",
    "DRAINING": "HALF_CLOSED DRAINING REFUSING CLOSING CLOSED",
    "HALF_CLOSED": "HALF_CLOSED HALF_CLOSED ABANDONED CLOSING CLOSED",
    "REFUSING": "ABANDONED REFUSING REFUSING CLOSING CLOSED",
    "ABANDONED": "ABANDONED ABANDONED ABANDONED CLOSING CLOSED",
    "CLOSING": "CLOSING CLOSING CLOSING CLOSING CLOSED",
    "CLOSED": "- - CLOSED - -",
}


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_has_its_events(phase: Phase) -> None:
    for event, after in zip(Event, AFTER[phase.name].split(), strict=True):
        pipeline = Pipeline(LIMITS, in_turn)
        pipeline.phase = phase
        if after == "-":
            with pytest.raises(InvariantViolation, match=f"{event.name} in phase {phase.name}"):
                pipeline._move(event)
            assert pipeline.phase is phase
        else:
            pipeline._move(event)
            assert pipeline.phase.name == after


@pytest.mark.parametrize("seed", range(50))
def test_any_schedule_runs_and_answers_each_request_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    pipeline = Driven()
    sent: list[bytes] = []
    ran: list[Request] = []
    unanswered: list[Request] = []
    running: Request | None = None
    received = 0
    for _ in range(2_000):
        step = random.choice(["receive", "run", "answer", "send", "peer", "mute"])
        if step == "receive" and pipeline.may_read and received < 300:
            count = random.randint(1, 4)
            pipeline.received(*[b"%d" % number for number in range(received, received + count)])
            received += count
        elif step == "run" and running is not None:
            assert not (in_turn(running.frame.view) and unanswered)
            unanswered.append(running)
            ran.append(running)
            running = pipeline.take() if pipeline.finish(running) is not None else None
        elif step == "run" and pipeline.claim() is not None:
            running = pipeline.take()
        elif step == "answer" and unanswered:
            request = unanswered.pop(random.randrange(len(unanswered)))
            request.respond((bytes(request.frame.view),))
        elif step == "send":
            sent += pipeline.sent()
        elif step == "peer":
            pipeline.peer_is_slow = random.choice([True, False, False])
        elif step == "mute":
            pipeline.is_muted = random.choice([True, False, False])
        waiting = len(ran) + (running is not None) - len(sent)
        assert waiting <= LIMITS.max_in_flight
        assert sent == [b"%d" % number for number in range(len(sent))]
    pipeline.peer_is_slow = pipeline.is_muted = False
    while len(sent) < received:
        if running is None and pipeline.claim() is not None:
            running = pipeline.take()
        while running is not None:
            assert not (in_turn(running.frame.view) and unanswered)
            unanswered.append(running)
            running = pipeline.take() if pipeline.finish(running) is not None else None
        for request in unanswered:
            request.respond((bytes(request.frame.view),))
        unanswered.clear()
        sent += pipeline.sent()
    assert sent == [b"%d" % number for number in range(received)]
    assert pipeline.is_idle
    assert pipeline.may_read
