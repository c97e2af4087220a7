"""`Reign`: the work of a controller between its election and its resignation.

It holds the context, the state machines and the channels of one controller epoch, and handles one event after
the other: change the context, write to ZooKeeper, send requests to the brokers. Any write may find that
another controller was elected (`ControllerMoved`) or that ZooKeeper is unreachable. Then the reign is stopped
and never used again. Only the controller's event thread runs it; `live_brokers` and
`offline_partitions_count` may be read by any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from barnabas.controller import events
from barnabas.controller.channels import BrokerChannels
from barnabas.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from barnabas.controller.events import Event
from barnabas.controller.partition_state import (
    ElectionKind,
    PartitionStateMachine,
)
from barnabas.controller.reign_store import ReignStore, ReignWriter, Watch
from barnabas.controller.replica_state import ReplicaStateMachine
from barnabas.controller.request_batch import RequestBatch
from barnabas.controller.topic_deletion import TopicDeletion
from barnabas.controller.topic_loading import TopicLoader
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, Endpoint, TopicId, TopicPartition

log = logging.getLogger("barnabas.controller")
state_change_log = logging.getLogger("barnabas.state_change")


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSettings:
    """What of a broker's settings concerns its controller."""

    inter_broker_listener_name: str
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    request_timeout_ms: int = 30_000


class Reign:
    """`put` hands an event to the controller's queue, from any thread.

    ``is_dead`` returns whether this broker already considers a registered broker dead.
    """

    def __init__(
        self,
        store: ReignStore,
        writer: ReignWriter,
        channels: BrokerChannels,
        settings: ControllerSettings,
        put: Callable[[Event], None],
        *,
        is_dead: Callable[[BrokerId, BrokerEpoch], bool] = lambda broker, broker_epoch: False,
    ) -> None:
        self.epoch = writer.epoch
        self.context = ControllerContext()
        self.live_brokers: tuple[BrokerId, ...] = ()
        self.offline_partitions_count = 0
        self._store = store
        self._writer = writer
        self._channels = channels
        self._settings = settings
        self._put = put
        self._is_dead = is_dead
        # Registrations that got everything again because they refused the topic with that id.
        self._sent_all_for: set[tuple[BrokerId, BrokerEpoch, TopicId]] = set()
        self._topics = TopicLoader(self.context, store, writer, lambda: put(events.AssignmentChange()))
        self._batch = RequestBatch(self.context, settings.inter_broker_listener_name)
        self._partitions = PartitionStateMachine(
            self.context, store, writer, self._batch, self._allows_unclean
        )
        self._replicas = ReplicaStateMachine(self.context, store, writer, self._batch)
        self._deletion = TopicDeletion(
            self.context,
            writer,
            self._partitions,
            self._replicas,
            self._batch,
            is_enabled=settings.delete_topic_enable,
        )

    def start(self) -> None:
        """Take over: watch and load everything, announce, and give every partition a live leader.

        Reassignments and preferred elections under way will be resumed here too, before the deletions.
        """
        self.context.registrations = self._store.brokers(self._watch(events.BrokerChange()))
        # The former controller may still be registered, although this reign began with its death.
        self.context.suspected = {
            broker
            for broker, registration in self.context.registrations.items()
            if self._is_dead(broker, registration.broker_epoch) or self._endpoint(broker) is None
        }
        changes = self._store.isr_changes(self._watch(events.IsrChangeNotified()))
        # Every broker is sent its roles below, and the answers name the lost replicas.
        failures = self._store.log_dir_failures(self._watch(events.LogDirFailureNotified()))
        requested = self._store.deletion_requests(self._watch(events.DeletionRequested()))
        self._topics.load(self._store.topics(self._watch(events.TopicChange())))
        self._writer.delete_isr_changes(changes)
        self._writer.delete_log_dir_failures(failures)
        log.info(
            "[controller epoch %d] loaded brokers %s (dead: %s) and %d partitions of %d topics",
            self.epoch,
            sorted(self.context.registrations),
            sorted(self.context.suspected) or "none",
            sum(map(len, self.context.assignments.values())),
            len(self.context.assignments),
        )
        for broker in self.context.registrations:
            self._connect(broker)
        self._replicas.startup()
        self._partitions.startup()
        self._deletion.request(requested)
        live = self.context.live_or_shutting_down
        self._batch.add_metadata(live, [])
        self._flush()
        # Treat all brokers as new. A broker may still host replicas whose StopReplica it never got, or wait
        # for the first request to its new registration.
        self._bring_up(live)
        kept = self._kept(self.context.replicas())
        self._replicas.move([one for one in kept if one.broker not in live], ReplicaState.OFFLINE)
        # Brokers that restarted while there was no controller leave the ISRs, and rejoin by fetching.
        bounced = self._kept(
            Replica(tp, broker)
            for tp, state in self.context.leadership.items()
            for broker in self.context.bounced(state)
        )
        self._replicas.leave_isr(bounced)
        self._replicas.move(bounced, ReplicaState.ONLINE)
        self._deletion.resume()
        self._flush()

    def stop(self) -> None:
        """Let go of everything; idempotent."""
        self._channels.stop()

    def handle(self, event: Event) -> None:
        """Handle one event that is meant for an active controller."""
        match event:
            case events.BrokerChange():
                self._brokers_changed()
            case events.TopicChange():
                self._topics_changed()
            case events.AssignmentChange():
                self._assignments_changed()
            case events.TopicConfigChange():
                self._topic_configs_changed(event.topics)
            case events.UncleanElectionChange():
                self._settings = replace(self._settings, unclean_leader_election_enable=event.is_enabled)
                self._elect_leaderless()
            case events.DeletionRequested():
                self._deletion_requested()
            case events.IsrChangeNotified():
                self._isr_changed()
            case events.LogDirFailureNotified():
                self._log_dirs_failed()
            case events.ControlledShutdown():
                self._shut_down(event)
            case events.BrokerSuspected():
                self._suspected(event)
            case events.BrokerReturned():
                self._returned(event)
            case events.LinkFailed():
                self._link_failed(event)
            case events.ChannelsFailed():
                raise event.error
            case events.LeaderAndIsrAnswered():
                self._leader_and_isr_answered(event)
            case events.StopReplicaAnswered():
                self._stop_replica_answered(event)
            case _:
                raise TypeError(f"{event} is not for a reign")

    # Brokers

    def _brokers_changed(self) -> None:
        current = self._store.brokers(self._watch(events.BrokerChange()))
        known = self.context.registrations
        bounced = {b for b in current if b in known and current[b].broker_epoch != known[b].broker_epoch}
        dead = known.keys() - current.keys()
        fresh = current.keys() - known.keys()
        if not (bounced or dead or fresh):
            return
        log.info(
            "[controller epoch %d] brokers: new %s, gone %s, restarted %s; now %s",
            self.epoch,
            sorted(fresh),
            sorted(dead),
            sorted(bounced),
            sorted(current),
        )
        for broker in dead | bounced:
            self.context.forget_broker(broker)
            self._channels.remove_broker(broker)
        if dead or bounced:
            self._bring_down(dead | bounced)
        for broker in fresh | bounced:
            self.context.registrations[broker] = current[broker]
            if self._endpoint(broker) is None:
                self.context.suspected.add(broker)
            self._connect(broker)
        up = (fresh | bounced) - self.context.suspected
        if up:
            self._bring_up(up)

    def _suspected(self, event: events.BrokerSuspected) -> None:
        broker = event.broker
        if self.context.broker_epoch(broker) != event.broker_epoch or broker in self.context.suspected:
            return
        log.warning(
            "[controller epoch %d] broker %d lost its connection and its port refuses: "
            "taken for dead before its session ends",
            self.epoch,
            broker,
        )
        self.context.suspected.add(broker)
        self._bring_down({broker})

    def _returned(self, event: events.BrokerReturned) -> None:
        broker = event.broker
        if self.context.broker_epoch(broker) != event.broker_epoch or broker not in self.context.suspected:
            return
        log.warning("[controller epoch %d] broker %d is back, it was wrongly suspected", self.epoch, broker)
        self.context.suspected.discard(broker)
        self._bring_up({broker})

    def _link_failed(self, event: events.LinkFailed) -> None:
        broker = event.broker
        if self.context.broker_epoch(broker) != event.broker_epoch or broker in self.context.suspected:
            return
        # Deletions may not have been sent: they are retried, as all other requests.
        deleted = [one for one in self.context.replicas_on({broker}) if self._is_deleted(one)]
        self._deletion.replicas_failed(deleted)
        self._bring_up({broker})

    def _bring_down(self, brokers: Collection[BrokerId]) -> None:
        """Elect and announce leaders in place of these brokers, then remove the brokers from the ISRs."""
        leaderless = [
            tp
            for tp, state in self.context.leadership.items()
            if state.leader in brokers
            and not self.context.is_to_be_deleted(tp.topic)
            and self.context.partition_state(tp) is not PartitionState.NON_EXISTENT
        ]
        self._partitions.move(leaderless, PartitionState.OFFLINE)
        self._partitions.trigger_online()
        self._flush()
        affected = self.context.replicas_on(brokers)
        self._replicas.move(self._kept(affected), ReplicaState.OFFLINE)
        self._deletion.replicas_failed([one for one in affected if self._is_deleted(one)])
        self._deletion.resume()
        self._batch.add_metadata(self.context.live_or_shutting_down, [])
        self._flush()

    def _bring_up(self, brokers: Collection[BrokerId]) -> None:
        """Send these brokers everything, and their return to all brokers; elect leaders for leaderless
        partitions."""
        self._batch.add_metadata(self.context.live_or_shutting_down, [])
        self._batch.add_metadata(brokers, list(self.context.partitions()), is_full=True)
        affected = self.context.replicas_on(brokers)
        self._replicas.move(self._kept(affected), ReplicaState.ONLINE)
        self._partitions.trigger_online()
        for broker in brokers:
            if self._knows_all_of(broker):
                self._batch.mark_full(broker)
        self._deletion.brokers_returned({one.tp.topic for one in affected})
        self._deletion.resume()
        self._flush()

    def _knows_all_of(self, broker: BrokerId) -> bool:
        """Whether the batch names all that the broker may host, so that the rest may be taken for deleted."""
        return not self.context.unreadable_topics and all(
            tp in self.context.leadership
            for tp in self.context.partitions_on(broker)
            if not self.context.is_to_be_deleted(tp.topic)
        )

    def _shut_down(self, event: events.ControlledShutdown) -> None:
        broker = event.broker
        registered = self.context.registrations.get(broker)
        if registered is None:
            event.done(ErrorCode.BROKER_NOT_AVAILABLE, [])
            return
        if registered.broker_epoch != event.broker_epoch:
            event.done(ErrorCode.STALE_BROKER_EPOCH, [])
            return
        log.info("[controller epoch %d] broker %d is shutting down", self.epoch, broker)
        self.context.shutting_down.add(broker)
        movable = [
            tp
            for tp in self.context.partitions_on(broker)
            if len(self.context.replicas_of(tp)) > 1
            and tp in self.context.leadership
            and not self.context.is_to_be_deleted(tp.topic)
        ]
        led = [tp for tp in movable if self.context.leadership[tp].leader == broker]
        self._partitions.move(led, PartitionState.ONLINE, ElectionKind.CONTROLLED_SHUTDOWN)
        self._flush()
        remaining = [tp for tp in led if self.context.leadership[tp].leader == broker]
        followed = [Replica(tp, broker) for tp in movable if tp not in set(remaining)]
        self._replicas.move(followed, ReplicaState.OFFLINE)
        self._flush()
        if remaining:
            log.warning(
                "[controller epoch %d] broker %d still leads %s, since no other replica can",
                self.epoch,
                broker,
                ", ".join(map(str, remaining)),
            )
        # Answer when all brokers know the new leaders. Until then the stopping broker must redirect clients,
        # and if it is the controller itself, only it can send these requests.
        self._channels.when_told(lambda: event.done(ErrorCode.NONE, remaining))

    def _endpoint(self, broker: BrokerId) -> Endpoint | None:
        """The address for requests to a registered broker; None, and it may not lead, without a listener."""
        return self.context.registrations[broker].endpoint(self._settings.inter_broker_listener_name)

    def _connect(self, broker: BrokerId) -> None:
        registration, endpoint = self.context.registrations[broker], self._endpoint(broker)
        if endpoint is None:
            log.error(
                "broker %d may not lead: it has no listener %s for the controller's requests",
                broker,
                self._settings.inter_broker_listener_name,
            )
            return
        is_suspected = broker in self.context.suspected
        self._channels.add_broker(broker, registration.broker_epoch, endpoint, is_suspected=is_suspected)

    # Topics

    def _topics_changed(self) -> None:
        were_all_readable = not self.context.unreadable_topics
        names = set(self._store.topics(self._watch(events.TopicChange())))
        for topic in self.context.assignments.keys() - names:
            log.warning("topic %s was removed from ZooKeeper by hand", topic)
            self.context.forget_topic(topic)
        self.context.unreadable_topics &= names
        fresh = names - self.context.assignments.keys()
        if fresh:
            self._bring_into_being(self._topics.load(fresh))
        self._tell_all_if_readable(were_all_readable)

    def _bring_into_being(self, partitions: Collection[TopicPartition]) -> None:
        """Elect leaders for partitions that were just taken into the context, and tell everybody."""
        new = [tp for tp in partitions if tp not in self.context.leadership]
        # Of a topic that was unreadable before, partitions may have their state already.
        known = [tp for tp in partitions if tp in self.context.leadership]
        replicas = self.context.replicas_of_partitions(partitions)
        self._partitions.move(partitions, PartitionState.NEW)
        self._replicas.move(replicas, ReplicaState.NEW)
        self._partitions.move(new, PartitionState.ONLINE)
        self._partitions.move(known, PartitionState.OFFLINE)
        self._partitions.trigger_online()
        live = self.context.live_or_shutting_down
        self._replicas.move([one for one in replicas if one.broker in live], ReplicaState.ONLINE)
        self._replicas.move([one for one in replicas if one.broker not in live], ReplicaState.OFFLINE)
        self._flush()

    def _assignments_changed(self) -> None:
        were_all_readable = not self.context.unreadable_topics
        added = self._topics.load_added()
        if added:
            self._bring_into_being(added)
        self._tell_all_if_readable(were_all_readable)

    def _tell_all_if_readable(self, were_all_readable: bool) -> None:
        """Once all topics are readable, send full requests; see `_knows_all_of`."""
        if not were_all_readable and not self.context.unreadable_topics:
            self._bring_up(self.context.live_or_shutting_down)

    def _topic_configs_changed(self, topics: Collection[str]) -> None:
        """Brokers read the settings themselves; the controller needs those that affect elections."""
        self._topics.load_configs(topics)
        self._elect_leaderless()

    def _elect_leaderless(self) -> None:
        self._partitions.trigger_online()
        self._flush()

    def _deletion_requested(self) -> None:
        requested = self._store.deletion_requests(self._watch(events.DeletionRequested()))
        if set(requested) - self.context.assignments.keys():
            # It may be a topic that was created a moment ago.
            self._topics_changed()
        self._deletion.request(requested)
        self._deletion.resume()
        self._flush()

    def _stop_replica_answered(self, event: events.StopReplicaAnswered) -> None:
        if self.context.broker_epoch(event.broker) != event.broker_epoch:
            return
        failed_ones = {
            TopicPartition(error.topic_name, error.partition_index)
            for error in event.response.partition_errors
            if error.error_code != ErrorCode.NONE
        }
        gone: list[Replica] = []
        failed: list[Replica] = []
        for topic in event.request.topic_states:
            if topic.topic_id != self.context.topic_ids.get(topic.topic_name, NO_TOPIC_ID):
                # A request that was sent twice, about an earlier topic of this name.
                continue
            for stopped in topic.partition_states:
                if not stopped.delete_partition:
                    continue
                tp = TopicPartition(topic.topic_name, stopped.partition_index)
                is_failed = event.response.error_code != ErrorCode.NONE or tp in failed_ones
                (failed if is_failed else gone).append(Replica(tp, event.broker))
        if not gone and not failed:
            return
        self._deletion.replicas_gone(gone)
        self._deletion.replicas_failed(failed)
        self._deletion.resume()
        self._flush()

    # Leadership

    def _isr_changed(self) -> None:
        changes = self._store.isr_changes(self._watch(events.IsrChangeNotified()))
        named = {tp for partitions in changes.values() for tp in partitions}
        known = [tp for tp in named if self.context.replicas_of(tp)]
        for tp, state in self._store.partition_states(known).items():
            former = self.context.leadership.get(tp)
            if former is not None and state.partition_epoch <= former.partition_epoch:
                continue
            self.context.leadership[tp] = state
            state_change_log.info(
                "[controller epoch %d] partition %s: isr %s -> %s, said by its leader %d",
                self.epoch,
                tp,
                list(former.isr) if former else None,
                list(state.isr),
                state.leader,
            )
        self._batch.add_metadata_for_all(known)
        self._flush()
        self._writer.delete_isr_changes(changes)

    def _leader_and_isr_answered(self, event: events.LeaderAndIsrAnswered) -> None:
        code = event.response.error_code
        if code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._put(events.ControllerChange())
            return
        if code == ErrorCode.STALE_BROKER_EPOCH:
            # The broker has another registration, or soon will. Read the brokers again in case a watch was
            # missed.
            self._put(events.BrokerChange())
            return
        if self.context.broker_epoch(event.broker) != event.broker_epoch:
            return
        failed = set()
        refused: set[tuple[BrokerId, BrokerEpoch, TopicId]] = set()
        for error in event.response.partition_errors:
            replica = Replica(TopicPartition(error.topic_name, error.partition_index), event.broker)
            if error.error_code == ErrorCode.NONE or replica not in self.context.replica_states:
                continue
            name = ErrorCode(error.error_code).name if error.error_code in set(ErrorCode) else "?"
            log.error("[controller epoch %d] replica %s: %s", self.epoch, replica, name)
            if error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed.add(replica)
            if error.error_code == ErrorCode.INCONSISTENT_TOPIC_ID:
                refused.add((event.broker, event.broker_epoch, self.context.topic_ids[replica.tp.topic]))
        if any(
            replica not in self.context.failed_replicas
            or self.context.replica_state(replica) is ReplicaState.ONLINE
            for replica in failed
        ):
            self._replicas_failed(failed)
        if (
            refused - self._sent_all_for
            and event.broker in self.context.live_brokers
            and self._knows_all_of(event.broker)
        ):
            # It has a log of a topic that was removed by hand; a full request makes it set the log aside.
            # If it still refuses the topic after that, another full request would not help.
            self._sent_all_for |= refused
            self._bring_up({event.broker})

    def _log_dirs_failed(self) -> None:
        """Resend their roles to brokers that reported a failure; the answers name the lost replicas.

        Such a broker has lost a log dir, or could not take a role for lack of descriptors or memory, which
        may succeed now. Failed replicas are also sent.
        """
        failures = self._store.log_dir_failures(self._watch(events.LogDirFailureNotified()))
        live = self.context.live_or_shutting_down
        brokers = {broker for broker in failures.values() if broker in live}
        if brokers:
            log.warning(
                "[controller epoch %d] brokers %s reported failed replicas; sending all roles again",
                self.epoch,
                sorted(brokers),
            )
        replicas = self._kept(self.context.replicas_on(brokers))
        failed = self.context.failed_replicas.intersection(replicas)
        self.context.failed_replicas -= failed
        asked = [
            replica
            for replica in replicas
            if replica in failed or self.context.replica_state(replica) is ReplicaState.ONLINE
        ]
        self._replicas.move(asked, ReplicaState.ONLINE)
        if failed:
            self._partitions.trigger_online()
        self._flush()
        self._writer.delete_log_dir_failures(failures)

    def _replicas_failed(self, failed: set[Replica]) -> None:
        """The disk of these replicas failed though their broker lives: others must lead."""
        self.context.failed_replicas |= failed
        leaderless = [
            one.tp
            for one in self._kept(failed)
            if (state := self.context.leadership.get(one.tp)) is not None and state.leader == one.broker
        ]
        self._partitions.move(leaderless, PartitionState.OFFLINE)
        self._partitions.trigger_online()
        self._replicas.move(self._kept(failed), ReplicaState.OFFLINE)
        self._deletion.replicas_failed([one for one in failed if self._is_deleted(one)])
        self._flush()

    def _allows_unclean(self, topic: str) -> bool:
        config = self.context.topic_configs.get(topic)
        text = None if config is None else config.values.get("unclean.leader.election.enable")
        if text is None:
            return self._settings.unclean_leader_election_enable
        return text.strip().lower() == "true"

    def _is_deleted(self, replica: Replica) -> bool:
        return self.context.is_to_be_deleted(replica.tp.topic)

    def _kept(self, replicas: Iterable[Replica]) -> list[Replica]:
        """Those whose topic is not being deleted."""
        return [replica for replica in replicas if not self._is_deleted(replica)]

    def _watch(self, event: Event) -> Watch:
        return lambda _: self._put(event)

    def _flush(self) -> None:
        """Tell the brokers what this event has changed."""
        for broker, batch in self._batch.take().items():
            self._channels.send(broker, batch)
        self.live_brokers = tuple(sorted(self.context.live_brokers))
        self.offline_partitions_count = len(self.context.offline_partitions())
