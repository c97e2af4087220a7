"""Known mistakes of a controller, its writer and its elections; see `tests.simulation.mutations`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from barnabas.broker.handlers.services import RequestOrder
from barnabas.controller import events, partition_state, replica_state
from barnabas.controller.controller import Controller
from barnabas.controller.replica_state import ReplicaStateMachine
from barnabas.controller.term import ControllerTerm
from barnabas.protocol.ids import ControllerEpoch, TopicPartition
from barnabas.zookeeper import controller_writer
from barnabas.zookeeper.controller_writer import ControllerWriter, StateUpdates
from barnabas.zookeeper.requests import read_partition_states
from barnabas.zookeeper.znodes import LeadershipState
from tests.simulation.planted import SetAttr, found_in

_ANY_VERSION: Final = -1


@found_in("usual", 104)
def writes_are_not_bound_to_the_epoch(setattr_: SetAttr) -> None:
    """A controller that is deposed while it handles an event keeps writing."""
    make = ControllerWriter.__init__

    def unbound(self: ControllerWriter, session: Any, epoch: ControllerEpoch, epoch_version: int) -> None:
        make(self, session, epoch, _ANY_VERSION)

    setattr_(ControllerWriter, "__init__", unbound)


@found_in("usual", 0)
def a_restart_is_not_noticed(setattr_: SetAttr) -> None:
    """The czxid is ignored: a broker that restarts before the controller reads counts as never away."""
    changed = ControllerTerm._brokers_changed

    def blind(self: ControllerTerm) -> None:
        known = self.context.registrations
        for broker, registration in self._store.brokers().items():
            if broker in known:
                known[broker] = registration
        changed(self)

    setattr_(ControllerTerm, "_brokers_changed", blind)


@found_in("races", 161)
def the_isr_is_written_from_memory(setattr_: SetAttr) -> None:
    """A leaving broker is removed from the remembered ISR, although the leader may have changed it since."""
    update = ControllerWriter.update_partition_states

    def overwriting(self: ControllerWriter, states: dict[TopicPartition, LeadershipState]) -> StateUpdates:
        current = read_partition_states(self._session, states)
        forced = {
            tp: replace(state, partition_epoch=current[tp].partition_epoch if tp in current else 0)
            for tp, state in states.items()
        }
        return update(self, forced)

    leave = ReplicaStateMachine.leave_isr

    def leaving(self: ReplicaStateMachine, *arguments: Any) -> Any:
        leadership: Any = self._leadership
        writer = leadership._writer

        class Overwriting:
            epoch = writer.epoch
            update_partition_states = staticmethod(lambda states: overwriting(writer, states))

        leadership._writer = Overwriting()
        try:
            return leave(self, *arguments)
        finally:
            leadership._writer = writer

    setattr_(ReplicaStateMachine, "leave_isr", leaving)


@found_in("usual", 0)
def the_last_member_is_dropped(setattr_: SetAttr) -> None:
    """An ISR may become empty, so the next broker that returns may lead."""
    without = replica_state.without_replicas

    def dropping(replicas: Any, leader: Any, isr: Any, no_leader: Any) -> Any:
        led, left = without(replicas, leader, isr, no_leader)
        return led, tuple(member for member in left if member not in replicas)

    setattr_(replica_state, "without_replicas", dropping)


@found_in("old words", 28)
def late_requests_are_carried_out(setattr_: SetAttr) -> None:
    setattr_(RequestOrder, "is_late", lambda self, controller_epoch, sequence: False)


@found_in("usual", 14)
def any_live_replica_is_elected(setattr_: SetAttr) -> None:
    """Any live replica may be elected, in sync or not, as in an unclean election."""
    elect = partition_state.elect_offline
    setattr_(
        partition_state,
        "elect_offline",
        lambda *arguments, **named: elect(*arguments, **{**named, "allow_unclean": True}),
    )


@found_in("usual", 0)
def the_leader_epoch_stays(setattr_: SetAttr) -> None:
    """A new leader keeps the epoch, so its records look like records of the former leader."""
    with_leader = LeadershipState.with_leader
    setattr_(
        LeadershipState,
        "with_leader",
        lambda self, *arguments: replace(with_leader(self, *arguments), leader_epoch=self.leader_epoch),
    )


@found_in("usual", 5)
def registrations_are_watched_once(setattr_: SetAttr) -> None:
    """The controller notices the first change of the registrations and no later one."""
    changed = ControllerTerm._brokers_changed

    def forgetting(self: ControllerTerm) -> None:
        term: Any = self
        watch = term._watch_brokers
        term._watch_brokers = lambda _: None
        try:
            changed(self)
        finally:
            term._watch_brokers = watch

    setattr_(ControllerTerm, "_brokers_changed", forgetting)


@found_in("usual", 54)
def a_controller_resigns_after_a_late_expiry(setattr_: SetAttr) -> None:
    """Found in this code: a controller elected again in its next session resigned, and there was no other."""
    handle = Controller._handle

    def hearing(self: Controller, event: events.Event) -> None:
        if isinstance(event, events.SessionExpired):
            self._resign("the ZooKeeper session has expired")
        else:
            handle(self, event)

    setattr_(Controller, "_handle", hearing)


@found_in("lost answers", 67)
def a_lost_answer_is_a_refusal(setattr_: SetAttr) -> None:
    """The controller does not recognize its own write when it retries after a lost answer."""
    setattr_(controller_writer, "read_partition_states", lambda session, partitions: {})


@found_in("usual", 25)
def a_returning_broker_gets_no_requests(setattr_: SetAttr) -> None:
    """A broker that was wrongly suspected gets no requests when it returns."""
    setattr_(ControllerTerm, "_returned", lambda self, broker: self.context.suspected.discard(broker))
