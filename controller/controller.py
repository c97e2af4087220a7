"""`Controller`: the part of every broker that runs for election and, once elected, controls the cluster.

One thread takes events from one queue; nothing else changes the controller's state. While this broker is the
controller, a `ControllerTerm` handles them. The term ends when ``/controller`` is no longer ours, when a
write finds another controller epoch, when the ZooKeeper session expires, or when ZooKeeper cannot be reached.
This broker runs for election again when ZooKeeper is back or the node is gone.

An unforeseen error also ends the term, but not the broker. The broker deletes ``/controller``, so that
another broker can be elected, and pauses before it runs for election again, longer each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kazoo.exceptions import KazooException

from barnabas.common.backoff import doubled
from barnabas.common.threads import LoopThread, make_thread
from barnabas.controller import events
from barnabas.controller.channels import ControllerChannels
from barnabas.controller.events import (
    Event,
    EventQueue,
    EventQueueFull,
    FromChannel,
    OutcomesDone,
    PreemptableEvent,
    ReassignmentsDone,
    ShutdownDone,
    Signal,
)
from barnabas.controller.failover import on_controller_failover
from barnabas.controller.failure_detector import FailureDetector
from barnabas.controller.leader_choice import ElectionKind
from barnabas.controller.partition_state import ElectionFigures
from barnabas.controller.sentinel import ControllerSentinel, Target
from barnabas.controller.term import ControllerSettings, ControllerTerm
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import NO_BROKER, BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import ControllerMoved, SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.session import SessionEvent, Threads
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import ControllerNode

log = logging.getLogger("barnabas.controller")

_RETRY_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_FIRST_REBALANCE_S: Final = 5.0
"""The time from an election to the first rebalance of leaders."""
_PROMPT_S: Final = 1.0
"""After a later answer of ZooKeeper this broker doubts its own connections."""
_DOUBT_S: Final = 1.0
"""In this time the sentinel finds out whether it can connect again; its reports from before are dropped."""
_FORGET_FAILURES_S: Final = 120.0
"""After this time without an unforeseen error, the next pause is the shortest again."""


MakeChannels = Callable[[ControllerEpoch, Callable[[Event], None]], ControllerChannels]
"""Makes and starts the channels of a term; the second argument queues an event."""


class Controller:
    """`on_fatal` is called from the event thread.

    ``was_reached``: whether this process has been connected to a registration of a broker (see
    `FailureDetector`).
    """

    def __init__(
        self,
        broker_id: BrokerId,
        store: ClusterStore,
        *,
        settings: ControllerSettings,
        on_fatal: Callable[[BaseException], None],
        make_channels: MakeChannels | None = None,
        threads: Threads | None = None,
        was_reached: Callable[[BrokerId, BrokerEpoch], bool] = lambda broker, broker_epoch: False,
    ) -> None:
        self.broker_id = broker_id
        self._store = store
        self._settings = settings
        self._make_channels = make_channels or self._real_channels
        self._queue = EventQueue()
        self._term: ControllerTerm | None = None
        self._writer: ControllerWriter | None = None
        self.epoch = ControllerEpoch(0)
        """The epoch of this broker's present or last term; 0 before the first."""
        self.active_broker_id = NO_BROKER
        """The last known controller; -1 for no controller."""
        self._must_retry = False
        self._is_registered = True
        self._threads = threads or Threads()
        self.elections = ElectionFigures(self._threads.now_s)
        # Unforeseen errors in a row, the time of the last one, and the end of the pause before an election.
        self._failures = 0
        self._failed_at_s = -_FORGET_FAILURES_S
        self._paused_until_s = 0.0
        self._rebalance_due_s = 0.0
        self._doubts_until_s = 0.0
        self.detector = FailureDetector(self._threads.now_s, was_reached)
        self._sentinel = ControllerSentinel(
            lambda node: self._queue.put(events.ControllerGone(node)), self.detector, settings.security
        )
        self._thread = make_thread("controller-events", self._run, on_fatal, log)

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller and has taken over."""
        return self._term is not None

    @property
    def offline_partitions_count(self) -> int:
        """Partitions without a live leader; 0 while another broker is the controller."""
        term = self._term
        return 0 if term is None else term.offline_partitions_count

    @property
    def queued_events(self) -> int:
        return len(self._queue)

    @property
    def topics_to_delete_count(self) -> int:
        """Topics whose deletion is not complete; 0 while another broker is the controller."""
        term = self._term
        return 0 if term is None else len(term.context.topics_to_delete)

    @property
    def live_racks(self) -> Mapping[BrokerId, str | None]:
        """The brokers that may get new partitions, with their racks. Raises NOT_CONTROLLER."""
        return self._active()[0].live_racks

    @property
    def writer(self) -> ControllerWriter:
        """The controller's writes, fenced by the epoch. Raises NOT_CONTROLLER."""
        return self._active()[1]

    def start(self, links: LoopThread | None = None) -> None:
        """Run for election, now and whenever there is no controller. The broker must be registered.

        The process of another controller is watched on the loop of ``links``; a simulation has none.
        """
        self._store.session.add_listener(self._session_changed)
        self._queue.put(Signal.REELECT)
        if links is not None:
            self._sentinel.start(links)
        self._threads.start(self._thread)

    def stop(self) -> None:
        """Resign and end the thread. Idempotent."""
        self._store.session.remove_listener(self._session_changed)
        dropped_events = self._queue.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._sentinel.stop()
        for event in dropped_events:
            _refuse(event)

    def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch, done: ShutdownDone) -> None:
        """Move a broker's leaderships away.

        `done` is called once, on the event thread or at once on this one, with NONE and the partitions that
        it still leads, or with NOT_CONTROLLER, STALE_BROKER_EPOCH or BROKER_NOT_AVAILABLE.
        """
        self._ask("ControlledShutdown", lambda term: term.shut_down(broker, broker_epoch, done), done)

    def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, is_unclean: bool, done: OutcomesDone
    ) -> None:
        """Elect the preferred replicas of these partitions, or if `is_unclean` any live ones.

        With None, of all partitions that need it. `done` is called once all brokers know the leaders, on any
        thread, with NONE and the outcomes, or with NOT_CONTROLLER or REQUEST_TIMED_OUT.
        """
        kind = ElectionKind.UNCLEAN if is_unclean else ElectionKind.PREFERRED
        self._ask("ElectLeaders", lambda term: term.elect(kind, partitions, done), done)

    def alter_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        done: OutcomesDone,
        *,
        may_change_factor: bool = True,
    ) -> None:
        """Begin reassignments to these replicas, or cancel those with None; `done` is called as above.

        Unless ``may_change_factor``, the number of a partition's replicas must stay (KIP-860).
        """

        def alter(term: ControllerTerm) -> None:
            outcomes = term.reassignments.alter(targets, may_change_factor=may_change_factor)
            done(ErrorCode.NONE, outcomes)

        self._ask("AlterReassignments", alter, done)

    def list_reassignments(self, done: ReassignmentsDone) -> None:
        """The reassignments under way; `done` is called as above."""
        self._ask(
            "ListReassignments", lambda term: done(ErrorCode.NONE, term.reassignments.under_way()), done
        )

    def _ask(
        self, name: str, act: Callable[[ControllerTerm], None], done: Callable[[ErrorCode, Any], None]
    ) -> None:
        event = PreemptableEvent(name, act, done)
        if not self.is_active or self._queue.is_closed:
            event.refuse(ErrorCode.NOT_CONTROLLER)
            return
        try:
            self._queue.put(event)
        except EventQueueFull as error:
            log.error("%s refused: %s", event, error)
            event.refuse(ErrorCode.REQUEST_TIMED_OUT)

    def topic_configs_changed(self, topics: Collection[str]) -> None:
        """The settings of these topics were changed in ZooKeeper; the controller reads them again."""
        self._queue.put(events.TopicConfigChange(frozenset(topics)))

    def set_unclean_leader_election(self, is_enabled: bool) -> None:
        """Change ``unclean.leader.election.enable`` for topics without an override. Any thread."""
        if self._settings.unclean_leader_election_enable != is_enabled:
            self._settings = replace(self._settings, unclean_leader_election_enable=is_enabled)
            self._queue.put(Signal.UNCLEAN_LEADER_ELECTION_ENABLE)

    def _active(self) -> tuple[ControllerTerm, ControllerWriter]:
        term, writer = self._term, self._writer
        if term is None or writer is None:
            raise api_error(
                ErrorCode.NOT_CONTROLLER,
                f"broker {self.broker_id} is not the controller, broker {self.active_broker_id} is",
            )
        return term, writer

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._is_registered = False
            self._queue.put(Signal.EXPIRE)
        elif event in (SessionEvent.RESUMED, SessionEvent.RENEWED):
            # The broker has registered again before this listener is called.
            self._is_registered = True
            self._queue.put(Signal.REELECT)

    def _run(self) -> None:
        try:
            while not self._queue.is_closed:
                self.step(self._timeout_s())
            self._resign("the broker stops", give_back=True)
        except Exception:
            self._end_term()
            raise

    def step(self, timeout_s: float | None) -> bool:
        """Wait for an event and handle it, or run for election again; False if there was nothing to do.

        The event thread runs this; a simulation calls it without the thread.
        """
        event: Event | None
        if self._is_rebalance_due():
            event = Signal.AUTO_PREFERRED_LEADER_ELECTION
        else:
            event = self._queue.take(timeout_s)
        if event is None and self._must_retry and not self._queue.is_closed:
            event = Signal.REELECT
        if event is None:
            return False
        self.process(event)
        return True

    def _timeout_s(self) -> float | None:
        """The longest time to wait for an event; 0 if a rebalance is due."""
        if self._must_retry:
            return _RETRY_S
        if self._term is None or not self._settings.auto_leader_rebalance_enable:
            return None
        return max(0.0, self._rebalance_due_s - self._threads.now_s())

    def _is_rebalance_due(self) -> bool:
        """Whether it is time to compare the leaders with the preferred ones; sets the next time."""
        is_due = self._timeout_s() == 0.0
        if is_due:
            interval_s = self._settings.leader_imbalance_check_interval_seconds
            self._rebalance_due_s = self._threads.now_s() + interval_s
        return is_due

    def process(self, event: Event) -> None:
        """Handle one event, on the event thread (or in a test in its place)."""
        began_s = self._threads.now_s()
        try:
            self._handle(event)
        except ControllerMoved as error:
            self._resign(str(error))
            _refuse(event)
            self._queue.put(Signal.REELECT)
        except (ZooKeeperUnavailable, SessionLost, MalformedZnode) as error:
            self._resign(str(error))
            _refuse(event)
            self._must_retry = True
        except Exception as error:
            pause_s = self._note_failure()
            log.critical(
                "%s failed by an unforeseen error (number %d in a row); resigning and pausing for %.0f s: %r",
                event if isinstance(event, Signal | PreemptableEvent) else type(event).__name__,
                self._failures,
                pause_s,
                error,
                exc_info=True,
            )
            self._resign(repr(error), give_back=True)
            _refuse(event)
            self._must_retry = True
        finally:
            if self._term is None:
                self._doubt_if_late(began_s)

    def _note_failure(self) -> float:
        """Set the pause before the next election, twice as long each time; returns it."""
        now_s = self._threads.now_s()
        if now_s - self._failed_at_s > _FORGET_FAILURES_S:
            self._failures = 0
        pause_s = doubled(_RETRY_S, self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        self._failed_at_s, self._paused_until_s = now_s, now_s + pause_s
        return pause_s

    def _handle(self, event: Event) -> None:
        match event:
            case Signal.REELECT:
                self._check_controller()
            case events.ControllerGone():
                self._take_over_from(event.node)
            case Signal.EXPIRE:
                self._resign("the ZooKeeper session has expired")
                # This event may come late, after an election won in the next session: read ``/controller``.
                self._queue.put(Signal.REELECT)
            case PreemptableEvent() if self._term is None:
                _refuse(event)
            case _ if self._term is not None and self._is_of_this_term(event):
                self._term.settings = self._settings
                self._term.handle(event)

    def _is_of_this_term(self, event: Event) -> bool:
        return not isinstance(event, FromChannel) or event.controller_epoch == self.epoch

    def _check_controller(self) -> None:
        self._must_retry = False
        # The same watch object each time, so that watches do not accumulate while nothing happens.
        node = self._store.election.current(self._controller_changed)
        self.active_broker_id = NO_BROKER if node is None else node.broker_id
        is_ours = node is not None and node.session_id == self._store.session.session_id
        if self._term is not None and not is_ours:
            self._resign(
                "/controller was deleted" if node is None else f"broker {node.broker_id} is the controller"
            )
        if self._term is not None and self._writer is not None:
            # The node is ours, but the epoch may have been deleted or written by hand.
            self._writer.check()
        # Only this process can hold the registration now, so an earlier run has left the node.
        is_left = node is not None and not is_ours and node.broker_id == self.broker_id
        self._sentinel.watch(None if node is None or is_ours or is_left else self._watch_target(node))
        if node is not None and is_left and self._is_registered:
            self._queue.put(events.ControllerGone(node))
        if self._term is None and (node is None or is_ours) and self._may_run():
            # If another broker wins, its node fires our watch, and the event calls this again.
            writer = self._store.election.run(self.broker_id)
            if writer is not None:
                self._begin_term(writer)

    def _may_run(self) -> bool:
        if self._threads.now_s() < self._paused_until_s:
            self._must_retry = True
            return False
        return self._is_registered

    def _take_over_from(self, dead: ControllerNode) -> None:
        """Replace a controller that the sentinel reports dead, unless another broker was faster.

        It takes one transaction, so that the next controller knows of the death; see `ControllerTerm.start`.
        """
        if self._term is not None or not self._may_run():
            return
        asked_s = self._threads.now_s()
        if asked_s < self._doubts_until_s:
            return
        writer = self._store.election.depose(
            dead, self.broker_id, may_write=lambda: not self._doubt_if_late(asked_s)
        )
        if writer is None:
            self._check_controller()
            return
        log.warning("took /controller over from broker %d, which is dead", dead.broker_id)
        self._begin_term(writer)
        # The watch was on the dead controller's node.
        self._queue.put(Signal.REELECT)

    def _doubt_if_late(self, asked_s: float) -> bool:
        """Drop all evidence of deaths if ZooKeeper, asked at this time, answered late or not at all.

        Then this broker itself may be cut off, and all others look dead to it. Otherwise it would depose a
        healthy controller as soon as it is connected again.
        """
        now_s = self._threads.now_s()
        if now_s - asked_s <= _PROMPT_S:
            return False
        log.warning("ZooKeeper took %.1f s to answer: doubting all evidence of deaths", now_s - asked_s)
        self.detector.forget_evidence()
        self._doubts_until_s = now_s + _DOUBT_S
        return True

    def _controller_changed(self, _: object) -> None:
        self._queue.put(Signal.REELECT)

    def _watch_target(self, node: ControllerNode) -> Target | None:
        """The controller's process, or None if its address is unknown."""
        registration = self._store.brokers().get(node.broker_id)
        if registration is None:
            return None
        endpoint = registration.endpoint(self._settings.inter_broker_listener_name)
        return None if endpoint is None else Target(node, registration.broker_epoch, endpoint)

    def _begin_term(self, writer: ControllerWriter) -> None:
        self.epoch = writer.epoch
        self.active_broker_id = self.broker_id
        log.info("broker %d is elected controller with epoch %d", self.broker_id, writer.epoch)
        self._writer = writer
        channels = self._make_channels(writer.epoch, self._queue.put)
        term = ControllerTerm(
            self._store,
            writer,
            channels,
            self._settings,
            self._queue.put,
            is_dead=self.detector.is_dead,
            figures=self.elections,
        )
        try:
            on_controller_failover(term)
        except BaseException:
            term.stop()
            raise
        self._term = term
        self._rebalance_due_s = self._threads.now_s() + _FIRST_REBALANCE_S
        log.info("[controller epoch %d] broker %d has taken over", writer.epoch, self.broker_id)

    def _resign(self, why: str, *, give_back: bool = False) -> None:
        writer = self._writer
        if self._end_term():
            log.warning("broker %d resigns as controller of epoch %d: %s", self.broker_id, self.epoch, why)
        if give_back and writer is not None and self._store.session.is_connected:
            try:
                writer.resign()
            except (ControllerMoved, ZooKeeperUnavailable, SessionLost) as error:
                log.info("/controller was not given back: %s", error)
            except KazooException as error:
                log.error("/controller was not given back: %r", error)

    def _end_term(self) -> bool:
        term, self._term, self._writer = self._term, None, None
        if term is not None:
            term.stop()
        return term is not None

    def _real_channels(self, epoch: ControllerEpoch, report: Callable[[Event], None]) -> ControllerChannels:
        return ControllerChannels(
            self.broker_id,
            epoch,
            request_timeout_ms=self._settings.request_timeout_ms,
            report=report,
            detector=self.detector,
            security=self._settings.security,
        )


def _refuse(event: Event) -> None:
    if isinstance(event, PreemptableEvent):
        event.refuse(ErrorCode.NOT_CONTROLLER)
