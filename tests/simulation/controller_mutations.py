"""Known mistakes of controllers, elections and moves, and with created and deleted topics; see `planted`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.stray_logs import StrayLogs
from barnabas.broker.replication import delayed_fetch as fetch_wait
from barnabas.broker.replication.become_leader_or_follower import RoleChanges
from barnabas.broker.replication.fence import RequestOrder
from barnabas.controller import controller, events, partition_state, replica_state, topic_admin
from barnabas.controller.context import ControllerContext, Replica
from barnabas.controller.controller import Controller
from barnabas.controller.leader_choice import Election
from barnabas.controller.reassignment import Reassignments
from barnabas.controller.replica_state import ReplicaStateMachine
from barnabas.controller.request_batch import BrokerBatch
from barnabas.controller.term import ControllerTerm
from barnabas.controller.topic_deletion import TopicDeletion
from barnabas.controller.topic_loading import TopicLoader
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import NO_BROKER, NO_TOPIC_ID, BrokerId, ControllerEpoch, TopicPartition
from barnabas.zookeeper import controller_writer
from barnabas.zookeeper.controller_writer import ControllerWriter, StateUpdates
from barnabas.zookeeper.requests import read_leadership
from barnabas.zookeeper.znodes import LeadershipState, ReplicaAssignment
from tests.simulation.planted import SetAttr, found_in, of_compiled_code

_ANY_VERSION: Final = -1


@found_in("usual", 104)
def writes_are_not_bound_to_the_epoch(setattr_: SetAttr) -> None:
    """Kafka before KAFKA-6082: a controller that is replaced while it handles an event keeps writing."""
    make = ControllerWriter.__init__

    def unbound(self: ControllerWriter, session: Any, epoch: ControllerEpoch, epoch_version: int) -> None:
        make(self, session, epoch, _ANY_VERSION)

    setattr_(ControllerWriter, "__init__", unbound)


@found_in("usual", 2)
def a_restart_is_not_noticed(setattr_: SetAttr) -> None:
    """The czxid is ignored: a broker that restarts before the controller reads counts as never away."""
    changed = ControllerTerm._brokers_changed

    def blind(self: ControllerTerm) -> None:
        known = self.context.registrations
        for broker, registration in self.store.brokers().items():
            if broker in known:
                known[broker] = registration
        changed(self)

    setattr_(ControllerTerm, "_brokers_changed", blind)


@found_in("races", 161)
def the_isr_is_written_from_memory(setattr_: SetAttr) -> None:
    """A leaving broker is removed from the remembered ISR, although the leader may have changed it since."""
    update = ControllerWriter.update_leadership

    def overwriting(self: ControllerWriter, states: dict[TopicPartition, LeadershipState]) -> StateUpdates:
        current = read_leadership(self._session, states)
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
            update_leadership = staticmethod(lambda states: overwriting(writer, states))

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


@found_in("usual", 39)
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
        watch = term.watch_brokers
        term.watch_brokers = lambda _: None
        try:
            changed(self)
        finally:
            term.watch_brokers = watch

    setattr_(ControllerTerm, "_brokers_changed", forgetting)


@found_in("usual", 73)
def a_controller_resigns_after_a_late_expiry(setattr_: SetAttr) -> None:
    """Found in this code: a controller elected again in its next session resigned, and there was no other."""
    handle = Controller._handle

    def hearing(self: Controller, event: events.Event) -> None:
        if event is events.Signal.EXPIRE:
            self._resign("the ZooKeeper session has expired")
        else:
            handle(self, event)

    setattr_(Controller, "_handle", hearing)


@found_in("lost answers", 67)
def a_lost_answer_is_a_refusal(setattr_: SetAttr) -> None:
    """The controller does not recognize its own write when it retries after a lost answer."""
    setattr_(controller_writer, "read_leadership", lambda session, partitions: {})


@found_in("usual", 71)
def a_returning_broker_gets_no_requests(setattr_: SetAttr) -> None:
    """A broker that was wrongly suspected gets no requests when it returns."""
    setattr_(ControllerTerm, "_returned", lambda self, broker: self.context.suspected.discard(broker))


@found_in("moves", 8)
def a_preferred_replica_leads_out_of_sync(setattr_: SetAttr) -> None:
    """It is elected because it is alive."""

    def elect(
        replicas: Sequence[BrokerId], isr: Sequence[BrokerId], live: Collection[BrokerId]
    ) -> Election | None:
        return Election(replicas[0], tuple({*isr, replicas[0]})) if replicas[0] in live else None

    setattr_(partition_state, "elect_preferred", elect)


@found_in("moves", 2)
def a_target_counts_as_in_sync(setattr_: SetAttr) -> None:
    """The ISR becomes the target, also of replicas that have not caught up."""
    elect = partition_state.elect_for_reassignment

    def trusting(assignment: ReplicaAssignment, leader: BrokerId, isr: Any, live: Any) -> Election | None:
        election = elect(assignment, leader, isr, live)
        if election is None or not assignment.is_changing:
            return election
        return Election(election.leader, tuple(dict.fromkeys((*election.isr, *assignment.target))))

    setattr_(partition_state, "elect_for_reassignment", trusting)


@found_in("moves", 4)
def a_reassignment_ends_with_its_controller(setattr_: SetAttr) -> None:
    """The next controller does not go on."""
    setattr_(Reassignments, "resume", lambda self, partitions: None)


@found_in("deaths", 567)
def a_reassignment_waits_for_its_leaders_notification(setattr_: SetAttr) -> None:
    """Found in this code: an election reads the ISR, but nothing compares that with the target."""
    handle, isr_changed = ControllerTerm.handle, ControllerTerm._isr_changed
    started, is_in_sync = ControllerTerm.on_broker_startup, Reassignments._is_target_in_sync
    looks_at_all, told = False, set()

    def handling(self: ControllerTerm, event: events.Event) -> None:
        nonlocal looks_at_all
        is_stop = isinstance(event, events.StopReplicaAnswered)
        looks_at_all = is_stop or event is events.Signal.PARTITION_MODIFICATIONS
        told.clear()
        handle(self, event)

    def starting(self: ControllerTerm, brokers: Collection[BrokerId]) -> None:
        nonlocal looks_at_all
        looks_at_all = True
        started(self, brokers)

    def hearing(self: ControllerTerm) -> None:
        before = dict(self.context.leadership)
        isr_changed(self)
        told.update(tp for tp, state in self.context.leadership.items() if before.get(tp) is not state)

    def deaf(self: Reassignments, tp: TopicPartition) -> bool:
        return (looks_at_all or tp in told) and is_in_sync(self, tp)

    setattr_(ControllerTerm, "handle", handling)
    setattr_(ControllerTerm, "on_broker_startup", starting)
    setattr_(ControllerTerm, "_isr_changed", hearing)
    setattr_(Reassignments, "_is_target_in_sync", deaf)


@found_in("usual", 36)
def absence_is_taken_for_deletion(setattr_: SetAttr) -> None:
    """A log that a full LeaderAndIsr does not name is deleted, not set aside as a stray."""

    def deleting(self: LogManager, name: TopicPartition, now_ms: int) -> Path | None:
        self.delete(name, now_ms)
        return None

    setattr_(LogManager, "set_aside", deleting)


@found_in("usual", 36)
def a_topic_id_is_overwritten(setattr_: SetAttr) -> None:
    """A topic that is created again continues the log of the old one, in its folder."""

    def overwriting(self: Log, topic_id: Any) -> None:
        self._topic_id = topic_id

    provide = RoleChanges._provide

    def trusting(self: RoleChanges, name: TopicPartition, topic: Any, **flags: Any) -> Any:
        known = self._logs.get(name)
        if known is not None:
            known.assign_topic_id(topic.topic_id)
        return provide(self, name, topic, **flags)

    setattr_(Log, "assign_topic_id", overwriting)
    setattr_(RoleChanges, "_provide", trusting)


@found_in("usual", 36)
def a_stray_of_any_topic_is_taken_up(setattr_: SetAttr) -> None:
    """A log that was set aside is given to the next topic of that name."""

    def find(self: StrayLogs, partition: TopicPartition, topic_id: Any) -> Any:
        return next((stray for stray in self._strays.values() if stray.partition == partition), None)

    setattr_(StrayLogs, "_find", find)
    setattr_(Log, "assign_topic_id", lambda self, topic_id: setattr(self, "_topic_id", topic_id))


@found_in("usual", 9)
def growth_reassigns_all_partitions(setattr_: SetAttr) -> None:
    """The existing partitions get new replicas too."""
    added = topic_admin.added_partitions

    def dealing(name: str, current: Mapping[int, Any], *arguments: Any) -> dict[int, Any]:
        fresh = added(name, current, *arguments)
        (replicas,) = fresh.values()
        return fresh | dict.fromkeys(current, replicas)

    setattr_(topic_admin, "added_partitions", dealing)


@found_in("usual", 5)
def deletions_are_not_resumed(setattr_: SetAttr) -> None:
    """The next controller waits for another request to delete."""
    fail_over = controller.on_controller_failover

    def forgetting(term: Any) -> None:
        request, term.deletion.request = term.deletion.request, lambda topics: None
        try:
            fail_over(term)
        finally:
            term.deletion.request = request

    setattr_(controller, "on_controller_failover", forgetting)


@found_in("usual", 5)
def the_request_to_delete_goes_first(setattr_: SetAttr) -> None:
    """The request is removed before the topic: if the controller dies in between, the topic stays."""

    def hasty(self: ControllerWriter, topic: str) -> None:
        self.clear_deletion_requests([topic])
        self._delete_tree(f"/brokers/topics/{topic}")

    setattr_(ControllerWriter, "delete_topic", hasty)


@found_in("usual", 11)
def a_failed_deletion_counts(setattr_: SetAttr) -> None:
    """A broker that could not remove its replica is not asked again."""
    setattr_(TopicDeletion, "replicas_failed", lambda self, replicas: self.replicas_deleted(replicas))


@found_in("usual", 11)
def stop_replica_names_no_topic_id(setattr_: SetAttr) -> None:
    """As in Kafka, a request to delete applies to any topic of that name."""
    stop = RoleChanges.stop_replicas

    def nameless(self: RoleChanges, request: Any) -> Any:
        for topic in request.topic_states:
            topic.topic_id = NO_TOPIC_ID
        return stop(self, request)

    setattr_(RoleChanges, "stop_replicas", nameless)


@found_in("usual", 36)
def a_recreated_topic_counts_as_the_old_one(setattr_: SetAttr) -> None:
    """Found in this code: a topic removed and created again between two reads never got a leader."""
    setattr_(TopicLoader, "_is_another", lambda self, topic, found: False)


@found_in("usual", 36)
def a_log_of_another_topic_is_kept(setattr_: SetAttr) -> None:
    """Found in this code: a broker with a log of the old topic refused the new one until it restarted."""
    provide = RoleChanges._provide

    def refusing(self: RoleChanges, name: TopicPartition, topic: Any, **flags: Any) -> Any:
        known = self._logs.get(name)
        if known is not None and known.topic_id not in (None, topic.topic_id):
            raise api_error(ErrorCode.INCONSISTENT_TOPIC_ID, f"{name} has id {known.topic_id} here")
        return provide(self, name, topic, **flags)

    setattr_(RoleChanges, "_provide", refusing)


@found_in("topics", 4)
def requests_are_merged_over_topic_ids(setattr_: SetAttr) -> None:
    """Found in this code: a waiting request about the old topic was sent for the new one."""
    setattr_(BrokerBatch, "_is_another", lambda self, topic, later: False)


@found_in("topics", 11)
@of_compiled_code
def followers_fetch_by_name(setattr_: SetAttr) -> None:
    """Found in this code, as in Kafka before KIP-516: a leader of the old topic served the new one."""
    setattr_(fetch_wait, "find", lambda partition_of, item: partition_of(item.partition))


@found_in("settings", 4001061)
def a_failed_replica_may_rejoin(setattr_: SetAttr) -> None:
    """Found in this code: a leader adds a replica whose disk has failed; without records it never lags."""

    def none(self: ControllerContext, states: Mapping[TopicPartition, LeadershipState]) -> list[Replica]:
        return []

    setattr_(ControllerContext, "failed_members", none)


@found_in("deaths", 4401247)
def a_cancelled_reassignment_trusts_a_remembered_isr(setattr_: SetAttr) -> None:
    """Found in this code: an added replica that its leader has not reported stays in the ISR alone."""
    leave = Reassignments._leave_isrs

    def trusting(self: Reassignments, changes: Mapping[TopicPartition, ReplicaAssignment]) -> Any:
        states = {tp: self._context.leadership.get(tp) for tp in changes}
        known = {tp: {state.leader, *state.isr} - {NO_BROKER} for tp, state in states.items() if state}
        return leave(self, {tp: changes[tp] for tp in known if not known[tp] <= {*changes[tp].replicas}})

    setattr_(Reassignments, "_leave_isrs", trusting)
