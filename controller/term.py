"""`ControllerTerm`: the work of a controller between its election and its resignation.

It holds the context, the state machines and the channels of one controller epoch, and handles one event after
the other: change the context, write to ZooKeeper, send requests to the brokers. Any write may find that
another controller was elected (`ControllerMoved`) or that ZooKeeper is unreachable. Then the term is stopped
and never used again. Only the controller's event thread runs it; any thread may read `live_racks` and
`offline_partitions_count`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.controller import events
from barnabas.controller.channels import ControllerChannels
from barnabas.controller.context import ControllerContext, EpochLogger, PartitionState, Replica, ReplicaState
from barnabas.controller.events import Event, Signal
from barnabas.controller.leader_choice import ElectionKind
from barnabas.controller.partition_state import ElectionFigures, PartitionStateMachine
from barnabas.controller.preferred_leaders import LeaderElections
from barnabas.controller.reassignment import Reassignments
from barnabas.controller.replica_state import ReplicaStateMachine
from barnabas.controller.request_batch import RequestBatch
from barnabas.controller.state_znodes import Leadership
from barnabas.controller.topic_deletion import TopicDeletion
from barnabas.controller.topic_loading import TopicLoader
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Endpoint, TopicPartition
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.requests import Watch
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import BrokerRegistration

_FEW_REPLICAS: Final = 500
"""The ISRs of so many are written in some milliseconds."""
_STALE_EPOCHS: Final[Mapping[int, Event]] = {
    ErrorCode.STALE_CONTROLLER_EPOCH: Signal.REELECT,
    ErrorCode.STALE_BROKER_EPOCH: Signal.BROKER_CHANGE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSettings:
    inter_broker_listener_name: str
    delete_topic_enable: bool
    unclean_leader_election_enable: bool
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    request_timeout_ms: int
    security: ChannelSecurity = PLAINTEXT


class ControllerTerm:
    """`put` adds an event to the controller's queue, from any thread.

    ``is_dead`` returns whether this process already considers a registered broker dead.
    """

    def __init__(
        self,
        store: ClusterStore,
        writer: ControllerWriter,
        channels: ControllerChannels,
        settings: ControllerSettings,
        put: Callable[[Event], None],
        *,
        is_dead: Callable[[BrokerId, BrokerEpoch], bool] = lambda broker, broker_epoch: False,
        figures: ElectionFigures,
    ) -> None:
        self.epoch = writer.epoch
        self.log = EpochLogger("barnabas.controller", writer.epoch)
        self._state_change_log = EpochLogger("barnabas.state_change", writer.epoch)
        self.context = ControllerContext()
        self.live_racks: Mapping[BrokerId, str | None] = {}
        self.offline_partitions_count = 0
        self.store = store
        self.writer = writer
        self._channels = channels
        self.settings = settings
        self._put = put
        # The same watch each time, so that watches do not accumulate on the nodes of brokers.
        self.watch_brokers = self.watch(Signal.BROKER_CHANGE)
        self.is_dead = is_dead
        leadership = Leadership(self.context, store, writer)
        self.topics = TopicLoader(self.context, store, writer, leadership, put)
        self.batch = RequestBatch(self.context, settings.inter_broker_listener_name)
        self.partitions = PartitionStateMachine(
            self.context, leadership, self.batch, self._allows_unclean, figures
        )
        self.replicas = ReplicaStateMachine(self.context, leadership, self.batch)
        machines = self.partitions, self.replicas
        self.elections = LeaderElections(
            self.context, store, writer, self.partitions, self.watch(Signal.PREFERRED_LEADER_ELECTION)
        )
        self.reassignments = Reassignments(
            self.context, store, writer, *machines, self.flush, self.watch(Signal.PARTITION_REASSIGNMENT)
        )
        self.deletion = TopicDeletion(
            self.context, writer, *machines, self.batch, settings.delete_topic_enable
        )

    def stop(self) -> None:
        """Close the channels; idempotent."""
        self._channels.stop()

    def handle(self, event: Event) -> None:
        """Handle one event for an active controller, then send the requests that follow from it."""
        match event:
            case Signal.BROKER_CHANGE:
                self._brokers_changed()
            case Signal.TOPIC_CHANGE:
                self._topics_changed()
            case Signal.PARTITION_MODIFICATIONS:
                self._assignments_changed()
            case events.TopicConfigChange():
                # Brokers read the settings themselves; the controller needs only those of elections.
                self.topics.load_configs(event.topics)
                self.partitions.trigger_online()
            case Signal.UNCLEAN_LEADER_ELECTION_ENABLE:
                self.partitions.trigger_online()
            case Signal.TOPIC_DELETION:
                self._deletion_requested()
            case Signal.PREFERRED_LEADER_ELECTION:
                self.elections.take_request()
            case Signal.PARTITION_REASSIGNMENT:
                self.reassignments.take_request()
            case Signal.AUTO_PREFERRED_LEADER_ELECTION:
                self.elections.rebalance(self.settings.leader_imbalance_per_broker_percentage)
            case Signal.ISR_CHANGE_NOTIFICATION:
                self._isr_changed()
            case Signal.LOG_DIR_EVENT_NOTIFICATION:
                self._log_dirs_failed()
            case events.PreemptableEvent():
                event.act(self)
            case events.ChannelsFailed():
                raise event.error
            case events.LeaderAndIsrAnswered() if event.response.error_code in _STALE_EPOCHS:
                # The broker has another registration, or soon will, or another controller was elected. Read
                # the znodes again in case a watch was missed.
                self._put(_STALE_EPOCHS[event.response.error_code])
            case events.FromLink() if self.context.broker_epoch(event.broker) != event.broker_epoch:
                return
            case events.BrokerSuspected():
                self._suspected(event.broker)
            case events.BrokerReturned():
                self._returned(event.broker)
            case events.LinkFailed():
                self._link_failed(event.broker)
            case events.LeaderAndIsrAnswered():
                self._leader_and_isr_answered(event)
            case events.StopReplicaAnswered():
                self.deletion.answered(event)
            case _:
                raise TypeError(f"{event} is not for a controller term")
        # Whatever reads a state again may find an ISR that its leader has changed without a notification.
        self.reassignments.check_progress()
        self.flush()

    # Brokers

    def _brokers_changed(self) -> None:
        current = self.store.brokers(self.watch_brokers)
        registrations = self.context.registrations
        bounced = {
            b
            for b in current
            if b in registrations and current[b].broker_epoch != registrations[b].broker_epoch
        }
        dead = registrations.keys() - current.keys()
        new = current.keys() - registrations.keys()
        self._addresses_changed({b: current[b] for b in current.keys() & registrations.keys() - bounced})
        if not (bounced or dead or new):
            return
        self.log.info(
            "brokers: new %s, gone %s, restarted %s; now %s",
            sorted(new),
            sorted(dead),
            sorted(bounced),
            sorted(current),
        )
        for broker in dead | bounced:
            self.context.forget_broker(broker)
            self._channels.remove_broker(broker)
        if dead or bounced:
            self.on_broker_failure(dead | bounced)
        for broker in new | bounced:
            self.context.registrations[broker] = current[broker]
            if self.endpoint(broker) is None:
                self.context.suspected.add(broker)
            self.connect(broker)
        started = (new | bounced) - self.context.suspected
        if started:
            self.on_broker_startup(started)

    def _addresses_changed(self, present: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Tell all brokers of registrations that were changed in place; their broker epochs are the same."""
        changed = {b: new for b, new in present.items() if new != self.context.registrations[b]}
        if changed:
            self.log.info("brokers with other addresses: %s", sorted(changed))
            self.context.registrations.update(changed)
            self.batch.add_metadata(self.context.live_or_shutting_down, [])

    def _suspected(self, broker: BrokerId) -> None:
        if broker in self.context.suspected:
            return
        self.log.warning(
            "broker %d lost its connection and its port refuses: declared dead before its session ends",
            broker,
        )
        self.context.suspected.add(broker)
        self.on_broker_failure({broker})

    def _returned(self, broker: BrokerId) -> None:
        if broker not in self.context.suspected:
            return
        self.log.warning("broker %d answers again: it was wrongly suspected", broker)
        self.context.suspected.discard(broker)
        self.on_broker_startup({broker})

    def _link_failed(self, broker: BrokerId) -> None:
        if broker in self.context.suspected:
            return
        # Deletions may not have been sent either, so they are retried too.
        self.deletion.replicas_failed(self._deleted(self.context.replicas_on({broker})))
        self.on_broker_startup({broker})

    def on_broker_failure(self, brokers: Collection[BrokerId]) -> None:
        """Elect and announce leaders in place of these brokers, then remove the brokers from the ISRs.

        ``set_p`` is Kafka's name for the partitions that have lost their leader.
        """
        set_p = [
            tp
            for tp, state in self.context.leadership.items()
            if state.leader in brokers
            and not self.context.is_to_be_deleted(tp.topic)
            and self.context.partition_state(tp) is not PartitionState.NON_EXISTENT
        ]
        self.partitions.move(set_p, PartitionState.OFFLINE)
        self.partitions.trigger_online()
        affected = self.context.replicas_on(brokers)
        self.flush_before_isrs(affected)
        self.replicas.move(self.context.without_deleted(affected), ReplicaState.OFFLINE)
        self.deletion.replicas_failed(self._deleted(affected))
        self.deletion.resume()
        self.batch.add_metadata(self.context.live_or_shutting_down, [])

    def on_broker_startup(self, brokers: Collection[BrokerId]) -> None:
        """Send these brokers everything, add them to all brokers' metadata, and elect missing leaders.

        They set aside the logs of topics that are gone, or that cannot be read.
        """
        self.batch.add_metadata(self.context.live_or_shutting_down, [])
        self.batch.add_metadata(brokers, list(self.context.partitions()), is_full=True)
        self.replicas.move(
            self.context.without_deleted(self.context.replicas_on(brokers)), ReplicaState.ONLINE
        )
        self.partitions.trigger_online()
        self.deletion.retry(brokers)

    def shut_down(self, broker: BrokerId, broker_epoch: BrokerEpoch, done: events.ShutdownDone) -> None:
        registered = self.context.registrations.get(broker)
        if registered is None:
            done(ErrorCode.BROKER_NOT_AVAILABLE, [])
            return
        if registered.broker_epoch != broker_epoch:
            done(ErrorCode.STALE_BROKER_EPOCH, [])
            return
        self.log.info("broker %d is shutting down", broker)
        self.context.shutting_down.add(broker)
        movable = [
            tp
            for tp in self.context.partitions_on(broker)
            if len(self.context.replicas_of(tp)) > 1
            and tp in self.context.leadership
            and not self.context.is_to_be_deleted(tp.topic)
        ]
        led = [tp for tp in movable if self.context.leadership[tp].leader == broker]
        outcomes = self.partitions.move(led, PartitionState.ONLINE, ElectionKind.CONTROLLED_SHUTDOWN)
        self.flush()
        remaining = dict.fromkeys(tp for tp, code in outcomes.items() if code != ErrorCode.NONE)
        followed = [Replica(tp, broker) for tp in movable if tp not in remaining]
        self.replicas.move(followed, ReplicaState.OFFLINE)
        self.flush()
        if remaining:
            self.log.warning(
                "broker %d still leads %s, since no other replica can",
                broker,
                ", ".join(map(str, remaining)),
            )
        # Answer when all brokers know the new leaders. Until then the stopping broker must redirect clients,
        # and if it is the controller itself, only it can send these requests.
        self._channels.when_answered(lambda: done(ErrorCode.NONE, remaining))

    def elect(
        self,
        kind: ElectionKind,
        partitions: Collection[TopicPartition] | None,
        done: events.OutcomesDone,
    ) -> None:
        outcomes = self.elections.elect(kind, partitions)
        self.flush()
        # Then a client that asks any broker for the leaders gets the new ones.
        self._channels.when_answered(lambda: done(ErrorCode.NONE, outcomes))

    def endpoint(self, broker: BrokerId) -> Endpoint | None:
        """The address for requests to a registered broker; None, and it may not lead, without a listener."""
        return self.context.registrations[broker].endpoint(self.settings.inter_broker_listener_name)

    def connect(self, broker: BrokerId) -> None:
        registration, endpoint = self.context.registrations[broker], self.endpoint(broker)
        if endpoint is None:
            self.log.error(
                "broker %d may not lead: it has no listener %s for the controller's requests",
                broker,
                self.settings.inter_broker_listener_name,
            )
            return
        is_suspected = broker in self.context.suspected
        self._channels.add_broker(broker, registration.broker_epoch, endpoint, is_suspected=is_suspected)

    # Topics

    def _topics_changed(self) -> None:
        names = set(self.store.topics(self.watch(Signal.TOPIC_CHANGE)))
        for topic in self.context.assignments.keys() - names:
            self.topics.forget(topic)
        if self.context.unreadable_topics - names:
            self.context.unreadable_topics &= names
            self.batch.add_metadata(self.context.live_or_shutting_down, [])
        new = names - self.context.assignments.keys()
        if new:
            self._partitions_created(self.topics.load(new))

    def _partitions_created(self, partitions: Collection[TopicPartition]) -> None:
        """Elect leaders for partitions that are new in the context."""
        new = [tp for tp in partitions if tp not in self.context.leadership]
        # The partitions of a topic that was unreadable before may have a state already.
        existing = [tp for tp in partitions if tp in self.context.leadership]
        replicas = self.context.replicas_of_partitions(partitions)
        self.partitions.move(partitions, PartitionState.NEW)
        self.replicas.move(replicas, ReplicaState.NEW)
        self.partitions.move(new, PartitionState.ONLINE)
        self.partitions.move(existing, PartitionState.OFFLINE)
        self.partitions.trigger_online()
        self.replicas.begin(replicas)
        self.reassignments.resume(partitions)

    def _assignments_changed(self, also: Collection[str] = ()) -> None:
        added = self.topics.load_changed(also)
        if added:
            self._partitions_created(added)
        self.reassignments.write_ends()

    def _deletion_requested(self) -> None:
        requested = self.store.deletion_requests(self.watch(Signal.TOPIC_DELETION))
        if set(requested) - self.context.assignments.keys():
            # It may be a topic that was created a moment ago.
            self._topics_changed()
        # Or that was created in place of one that was removed by hand, whose logs must not be deleted.
        self._assignments_changed(requested)
        self.deletion.request(requested)
        self.deletion.resume()

    # Leadership

    def _isr_changed(self) -> None:
        changes = self.store.isr_changes(self.watch(Signal.ISR_CHANGE_NOTIFICATION))
        changed = dict.fromkeys(tp for partitions in changes.values() for tp in partitions)
        assigned = [tp for tp in changed if self.context.replicas_of(tp)]
        states = self.store.leadership(assigned)
        for tp, state in states.items():
            former = self.context.leadership.get(tp)
            if former is not None and state.partition_epoch <= former.partition_epoch:
                continue
            self.context.leadership[tp] = state
            self._state_change_log.info(
                "partition %s: isr %s -> %s, changed by its leader %d",
                tp,
                list(former.isr) if former else None,
                list(state.isr),
                state.leader,
            )
        self.batch.add_metadata_for_all(assigned)
        # A replica may have caught up just before its disk failed. Without new records it would not lag.
        if rejoined := self.context.failed_members(states):
            self.replicas.leave_isr(rejoined)
        self.writer.delete_notifications(changes)

    def _leader_and_isr_answered(self, event: events.LeaderAndIsrAnswered) -> None:
        failed: dict[Replica, None] = {}
        for error in event.response.partition_errors:
            replica = Replica(TopicPartition(error.topic_name, error.partition_index), event.broker)
            if error.error_code == ErrorCode.NONE or replica not in self.context.replica_states:
                continue
            name = ErrorCode(error.error_code).name if error.error_code in set(ErrorCode) else "?"
            self.log.error("replica %s: %s", replica, name)
            if error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed[replica] = None
        if any(
            replica not in self.context.failed_replicas
            or self.context.replica_state(replica) is ReplicaState.ONLINE
            for replica in failed
        ):
            self.on_replicas_become_offline(failed)
        known = self.context.failed_replicas
        if known and (taken := {Replica(tp, event.broker) for tp in event.succeeded()} & known):
            # They failed in an older role.
            self.context.failed_replicas = known - taken
            self.replicas.move(self.context.without_deleted(sorted(taken)), ReplicaState.ONLINE)
            self.partitions.trigger_online()

    def _log_dirs_failed(self) -> None:
        """Resend their roles to brokers that reported a failure; the answers name the failed replicas.

        Such a broker has lost a log dir, or lacked descriptors or memory for a role, which may succeed now.
        So the roles of failed replicas are sent too, and the deletions of replicas are retried.
        """
        failures = self.store.log_dir_failures(self.watch(Signal.LOG_DIR_EVENT_NOTIFICATION))
        live = self.context.live_or_shutting_down
        brokers = {broker for broker in failures.values() if broker in live}
        if brokers:
            self.log.warning(
                "brokers %s reported failed replicas; sending all roles again",
                sorted(brokers),
            )
        replicas = self.context.without_deleted(self.context.replicas_on(brokers))
        failed = self.context.failed_replicas.intersection(replicas)
        self.context.failed_replicas -= failed
        resent = [r for r in replicas if r in failed or self.context.replica_state(r) is ReplicaState.ONLINE]
        self.replicas.move(resent, ReplicaState.ONLINE)
        if failed:
            self.partitions.trigger_online()
        self.deletion.retry(brokers)
        self.writer.delete_notifications(failures)

    def on_replicas_become_offline(self, failed: Collection[Replica]) -> None:
        """The disk of these replicas failed, but their broker is alive: others must lead."""
        self.context.failed_replicas.update(failed)
        set_p = [
            replica.tp
            for replica in self.context.without_deleted(failed)
            if (state := self.context.leadership.get(replica.tp)) is not None
            and state.leader == replica.broker
        ]
        self.partitions.move(set_p, PartitionState.OFFLINE)
        self.partitions.trigger_online()
        # A deletion goes on: its own request was sent after the role that failed, and is answered too.
        self.replicas.move(self.context.without_deleted(failed), ReplicaState.OFFLINE)

    def _allows_unclean(self, topic: str) -> bool:
        """The topic's ``unclean.leader.election.enable``, else the brokers'."""
        config = self.context.topic_configs.get(topic)
        text = None if config is None else config.values.get("unclean.leader.election.enable")
        return (
            self.settings.unclean_leader_election_enable if text is None else text.strip().lower() == "true"
        )

    def _deleted(self, replicas: Iterable[Replica]) -> list[Replica]:
        return [replica for replica in replicas if self.context.is_to_be_deleted(replica.tp.topic)]

    def watch(self, event: Event) -> Watch:
        return lambda _: self._put(event)

    def flush_before_isrs(self, leaving: Collection[Replica]) -> None:
        """Send the new leaders now, unless the ISRs that these replicas leave will soon be written.

        Otherwise one request has both: producers with acks=all wait for both, on every connection to a leader
        that has lost a follower, and a client's request for the new leaders waits for its earlier produces.
        """
        if len(leaving) > _FEW_REPLICAS:
            self.flush()

    def flush(self) -> None:
        """Send the collected requests to the brokers."""
        batches = self.batch.take()
        for broker, batch in batches.items():
            self._channels.send(broker, batch)
        live = {
            broker: self.context.registrations[broker].rack for broker in sorted(self.context.live_brokers)
        }
        if batches or live != self.live_racks:
            self.live_racks = live
            self.offline_partitions_count = len(self.context.offline_partitions())
