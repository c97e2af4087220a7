"""LeaderAndIsr and StopReplica on the broker: the roles of its replicas.

`RoleChanges` applies the controller's requests: roles, deletions, settings. It also drops replicas whose disk
failed. It alone changes the table of partitions, under one lock; readers of the table take none. Requests of
an older controller, or for an earlier broker epoch, are refused as a whole. An older state of one partition
is refused for that partition. Waiting requests are woken after every change, outside the lock. It runs on the
IO workers that handle the controller's requests, and on the thread of the disk failures.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import Final

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_dir import for_each
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import CorruptLog, StorageCallFailed
from barnabas.broker.replication.failures import DiskFailures, FailedReplicas
from barnabas.broker.replication.fence import Fence
from barnabas.broker.replication.fetcher_thread import FetcherManager, FollowedLeader
from barnabas.broker.replication.partition import Partition, Role
from barnabas.broker.replication.slow_disks import SlowDisks
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError, api_error
from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    NO_CONTROLLER_EPOCH,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages import inter_broker as wire

logger = logging.getLogger(__name__)
state_change_logger = logging.getLogger("barnabas.state_change")


_SYNCS_AT_ONCE: Final = 16


class UnconfirmedController(LocalError):
    """A request claims a controller epoch that is not known, and that ZooKeeper does not confirm now.

    The answer is no error code: a real controller sends the request again.
    """


class RoleChanges:
    """``role_changed`` is called for each partition after a change, without the lock."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        fetchers: FetcherManager,
        disk_failures: DiskFailures,
        fence: Fence,
        *,
        topic_settings: TopicConfigs,
        max_lag_ms: float,
        now_ms: Callable[[], float],
        role_changed: Callable[[TopicPartition], None],
    ) -> None:
        self.broker_id = broker_id
        self.partitions: dict[TopicPartition, Partition] = {}
        self.failed = FailedReplicas(now_ms)
        self.controller_epoch = NO_CONTROLLER_EPOCH
        """The newest controller epoch that this broker knows."""
        self.broker_epoch = NO_BROKER_EPOCH
        """Requests for an earlier broker epoch are refused."""
        self.inter_broker_listener = ""
        """The listener of this broker's connections to others."""
        self.is_elected: Callable[[int], bool] = lambda epoch: True
        """Whether ZooKeeper confirms that a controller of an epoch was elected; it may wait."""
        self._logs = logs
        self._fetchers = fetchers
        self._disk_failures = disk_failures
        self._slow_disks = SlowDisks()
        self._fence = fence
        self._topic_settings = topic_settings
        self._max_lag_ms = max_lag_ms
        self._now_ms = now_ms
        self._role_changed = role_changed
        self._lock = threading.Lock()
        self._high_watermarks = logs.load_high_watermarks()
        disk_failures.drop_lost = self.drop_lost

    def registered(
        self, broker_epoch: BrokerEpoch, controller_epoch: ControllerEpoch = NO_CONTROLLER_EPOCH
    ) -> None:
        """This broker has registered: requests for an earlier registration are refused from now on.

        So are requests of controllers older than the one in ZooKeeper.
        """
        with self._lock:
            self.broker_epoch = broker_epoch
            self.controller_epoch = max(self.controller_epoch, controller_epoch)

    def registration_lost(self, reason: str) -> None:
        """Refuse writes, and all requests for the registration that is gone."""
        lost_epoch = self.broker_epoch
        self.broker_epoch = BrokerEpoch(lost_epoch + 1)
        self._fence.registration_lost(reason, lost_epoch)

    def registered_epoch(self) -> BrokerEpoch | None:
        """The broker epoch of the registration, once the controller has sent its roles; None before."""
        return None if self._fence.loss is not None else self.broker_epoch

    def unclaimed_high_watermarks(self) -> dict[TopicPartition, Offset]:
        """The saved high watermarks of replicas that have no role yet."""
        return {tp: Offset(mark) for tp, mark in self._high_watermarks.items()}

    # LeaderAndIsr.

    def become_leader_or_follower(self, request: wire.LeaderAndIsrRequest) -> list[wire.PartitionError]:
        """Take the roles that the controller gives; returns the errors per partition.

        Raises STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH for the request as a whole.
        """
        with self._lock:
            self._check_epochs(request.controller_epoch, request.broker_epoch)
            endpoints = {
                BrokerId(broker.broker_id): endpoint
                for broker in request.live_brokers
                if (endpoint := self._endpoint_of(broker)) is not None
            }
            given = {
                TopicPartition(topic.topic_name, state.partition_index): (topic, state)
                for topic in request.topic_states
                for state in topic.partition_states
            }
            named = dict.fromkeys(given) | dict.fromkeys(self._take_settings(request.topic_states))
            failures = self._create_missing(given)
            errors = []
            follow: dict[TopicPartition, FollowedLeader] = {}
            leading: list[TopicPartition] = []
            for tp, (_, state) in given.items():
                try:
                    if tp in failures:
                        raise failures[tp]
                    role = self._take_role(self.partitions[tp], state, request, endpoints)
                except ApiError as error:
                    self._keep_role(tp, error)
                    errors.append(_partition_error(tp, error.code))
                    continue
                except Exception as error:  # noqa: BLE001 - any error fails only this replica
                    self._fail(tp, error, f"the role of leader epoch {state.leader_epoch}")
                    errors.append(_partition_error(tp, ErrorCode.KAFKA_STORAGE_ERROR))
                    continue
                if role is not Role.NONE:
                    self.failed.clear(tp)
                if isinstance(role, FollowedLeader):
                    follow[tp] = role
                elif role is Role.LEADER:
                    leading.append(tp)
            if request.is_full:
                named |= dict.fromkeys(self._set_strays_aside(given))
            self._fetchers.unfollow(leading)
            self._fetchers.follow(follow)
        for tp in named:
            self._role_changed(tp)
        return errors

    def _endpoint_of(self, broker: wire.LiveBroker) -> Endpoint | None:
        """The address at which this broker reaches another; the controller may use another listener."""
        if not broker.endpoints:
            return Endpoint(broker.host, broker.port)
        for listener in broker.endpoints:
            if listener.listener == self.inter_broker_listener:
                return Endpoint(listener.host, listener.port)
        return None

    def _create_missing(
        self, given: Mapping[TopicPartition, tuple[wire.LeaderAndIsrTopic, wire.LeaderAndIsrPartition]]
    ) -> dict[TopicPartition, Exception]:
        """Give each partition a log with its topic id, before any takes a role; returns the failures.

        No record may be on disk before its topic's id. The disk commits many ids about as fast as one, so
        the threads wait for it side by side.
        """
        failures: dict[TopicPartition, Exception] = {}

        def attempt(tp: TopicPartition, work: Callable[[], object]) -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the caller reports it and fails only this replica
                failures[tp] = error

        for tp, (topic, state) in given.items():
            attempt(tp, partial(self._provide, tp, topic, is_new=state.is_new))
        without_id = [
            (tp, partial(self.partitions[tp].log.assign_topic_id, TopicId(topic.topic_id)))
            for tp, (topic, _) in given.items()
            if tp not in failures and self.partitions[tp].log.topic_id is None
        ]
        for_each(without_id, lambda named: attempt(*named), _SYNCS_AT_ONCE, "topic-id")
        return failures

    def _keep_role(self, tp: TopicPartition, error: ApiError) -> None:
        logger.warning("%s keeps its role: %s", tp, error)
        self._disk_failures.note(error)
        if isinstance(error, StorageCallFailed):
            self._disk_failures.note_refused_role()

    def _fail(self, tp: TopicPartition, error: Exception, what: str) -> None:
        self.failed.note(tp, error, what, is_retried=True)
        self._release(tp, ErrorCode.KAFKA_STORAGE_ERROR)

    def fail_follower(self, partition: Partition, leader_epoch: LeaderEpoch, error: Exception) -> None:
        """Put a follower of that epoch out of service: its leader's answer could not be applied."""
        tp = partition.partition
        with self._lock:
            if self.partitions.get(tp) is not partition or partition.leader_epoch != leader_epoch:
                return
            self._fail(tp, error, f"following in leader epoch {leader_epoch}")
        self._role_changed(tp)

    def hand_over(self, tp: TopicPartition, since: LeaderEpoch, damage: CorruptLog) -> bool:
        """Take the damaged log of a leadership offline, so that another member of the ISR leads.

        False, and nothing is done, if no other member is sure to stay in the ISR: no other could lead then.
        """
        partition = self.partitions.get(tp)
        if partition is None or not partition.is_leader or partition.leading_since != since:
            # The controller has decided already.
            return True
        if not partition.isr.certain - {self.broker_id}:
            return False
        self._logs.fail_log(damage, partition.log)
        return True

    def _take_role(
        self,
        partition: Partition,
        state: wire.LeaderAndIsrPartition,
        request: wire.LeaderAndIsrRequest,
        endpoints: Mapping[BrokerId, Endpoint],
    ) -> FollowedLeader | Role:
        """Lead, or follow the leader returned; `Role.NONE` if there is no change.

        The leader of a known epoch may have a new address. Raises STALE_CONTROLLER_EPOCH for an older state,
        which changes nothing, or KAFKA_STORAGE_ERROR.
        """
        leads = state.leader == self.broker_id
        is_new = partition.make_leader(state, self._now_ms()) if leads else partition.make_follower(state)
        leader = BrokerId(state.leader)
        followed = FollowedLeader(leader, endpoints.get(leader), LeaderEpoch(state.leader_epoch))
        if not is_new:
            return Role.NONE if leads or followed.endpoint is None else followed
        state_change_logger.info(
            "broker %d: %s is %s at leader epoch %d "
            "(leader %d, ISR %s, controller %d epoch %d, log end %d, high watermark %d)",
            self.broker_id,
            partition.partition,
            partition.role.value,
            state.leader_epoch,
            state.leader,
            state.isr,
            request.controller_id,
            request.controller_epoch,
            # A leader may have appended since.
            partition.leader_epoch_start_offset if leads else partition.log_end_offset,
            partition.high_watermark,
        )
        return Role.LEADER if leads else followed

    def _provide(self, tp: TopicPartition, topic: wire.LeaderAndIsrTopic, *, is_new: bool) -> None:
        topic_id = TopicId(topic.topic_id)
        partition = self.partitions.get(tp)
        log = partition.log if partition is not None else self._logs.get_or_open(tp, wall_clock_ms())
        if log is not None and not _is_of(log, topic_id):
            logger.warning("%s now has topic id %s, not %s", tp, topic_id, log.topic_id)
            self._set_aside(tp)
            partition = None
        if partition is not None:
            return
        settings = self._topic_settings.of(tp.topic)
        log = self._logs.get_or_create_without_id(tp, topic_id, wall_clock_ms(), is_new=is_new)
        self.partitions[tp] = Partition(
            tp,
            self.broker_id,
            log,
            high_watermark=Offset(self._high_watermarks.pop(tp, 0)),
            max_lag_ms=self._max_lag_ms,
            min_insync_replicas=settings.min_insync_replicas,
            is_min_isr_strict=settings.is_min_isr_strict,
            slow_disks=self._slow_disks,
        )

    def _set_strays_aside(self, named: Container[TopicPartition]) -> list[TopicPartition]:
        """Set aside the logs that a full request omits, because the controller does not know their topics."""
        strays = [tp for log in self._logs.all_logs() if (tp := log.topic_partition) not in named]
        for tp in strays:
            self._attempt(tp, "setting it aside", partial(self._set_aside, tp))
        return strays

    def _attempt(self, tp: TopicPartition, what: str, change: Callable[[], None]) -> ErrorCode:
        """Change one replica; any error fails only this replica."""
        try:
            change()
        except ApiError as error:
            logger.warning("%s: %s failed: %s", tp, what, error)
            self._disk_failures.note(error)
            return error.code
        except Exception as error:  # noqa: BLE001 - see above
            self._fail(tp, error, what)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _set_aside(self, tp: TopicPartition) -> None:
        """Release a replica; its log is kept in case the topic is created again. Raises LogDirFailure."""
        self._release(tp)
        self.partitions.pop(tp, None)
        self._high_watermarks.pop(tp, None)
        self.failed.clear(tp)
        folder = self._logs.set_aside(tp, wall_clock_ms())
        state_change_logger.warning(
            "broker %d: %s is no longer hosted; kept as %s", self.broker_id, tp, folder
        )

    # Settings

    def settings_changed(self, topics: Collection[str] | None) -> None:
        """Apply the changed settings of these topics, or with None of all topics."""
        with self._lock:
            partitions = self._apply_settings(topics)
        for tp in partitions:
            self._role_changed(tp)

    def _take_settings(self, topics: Iterable[wire.LeaderAndIsrTopic]) -> list[TopicPartition]:
        """Put the settings that come with roles into force; returns the replicas of changed topics.

        All replicas of a topic, also those without a new role: a later notification of the same change finds
        the settings known and changes nothing.
        """
        changed = set()
        for topic in topics:
            overrides = {config.name: config.value for config in topic.configs}
            if self._topic_settings.update(topic.topic_name, overrides, topic.config_zxid):
                changed.add(topic.topic_name)
        return self._apply_settings(changed) if changed else []

    def _apply_settings(self, topics: Collection[str] | None) -> list[TopicPartition]:
        """Returns the replicas of these topics, or with None all replicas, which have these settings now."""
        self._logs.update_config(topics)
        partitions = [tp for tp in self.partitions if topics is None or tp.topic in topics]
        for tp in partitions:
            settings = self._topic_settings.of(tp.topic)
            self.partitions[tp].min_insync_replicas = settings.min_insync_replicas
        return partitions

    # StopReplica.

    def stop_replicas(self, request: wire.StopReplicaRequest) -> list[wire.PartitionError]:
        """Release replicas, and delete their logs if the controller requests it.

        Raises as `become_leader_or_follower`.
        """
        with self._lock:
            self._check_epochs(request.controller_epoch, request.broker_epoch)
            stopped = []
            errors = []
            for topic in request.topic_states:
                topic_id = None if topic.topic_id == NO_TOPIC_ID else TopicId(topic.topic_id)
                for state in topic.partition_states:
                    tp = TopicPartition(topic.topic_name, state.partition_index)
                    partition = self.partitions.get(tp)
                    if partition is not None and not _is_of(partition.log, topic_id):
                        partition = None
                    # A negative epoch matches every epoch: the topic is being deleted.
                    if partition is not None and 0 <= state.leader_epoch < partition.told_epoch:
                        code = ErrorCode.FENCED_LEADER_EPOCH
                    else:
                        code = self._try_remove(tp, topic_id, state.delete_partition)
                        stopped.append(tp)
                    if code != ErrorCode.NONE:
                        errors.append(_partition_error(tp, code))
        for tp in stopped:
            self._role_changed(tp)
        return errors

    def _try_remove(self, tp: TopicPartition, topic_id: TopicId | None, delete: bool) -> ErrorCode:
        code = self._attempt(tp, "stopping it", partial(self._remove, tp, topic_id, delete))
        if code != ErrorCode.NONE:
            return code
        if delete:
            # A stopped replica stays failed, because the controller stops it after the failure.
            self.failed.clear(tp)
        state_change_logger.info("broker %d: %s %s", self.broker_id, tp, "deleted" if delete else "stopped")
        return ErrorCode.NONE

    def _remove(self, tp: TopicPartition, topic_id: TopicId | None, delete: bool) -> None:
        """Remove the replica of this topic id, but not of a later topic with the same name."""
        log = self._logs.get(tp)
        is_meant = log is None or _is_of(log, topic_id)
        if is_meant:
            self._release(tp)
        if delete:
            if is_meant:
                self.partitions.pop(tp, None)
                self._high_watermarks.pop(tp, None)
            self._logs.delete(tp, wall_clock_ms(), topic_id)

    def _release(self, tp: TopicPartition, refusal: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        self._fetchers.unfollow([tp])
        partition = self.partitions.get(tp)
        if partition is not None:
            partition.set_offline(refusal)

    # Lost disks.

    def drop_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Take away the roles of replicas whose disk has failed, and the replicas from the table."""
        lost = list(partitions)
        with self._lock:
            self._fetchers.unfollow(lost)
            for tp in lost:
                partition = self.partitions.pop(tp, None)
                if partition is not None:
                    partition.set_offline(ErrorCode.KAFKA_STORAGE_ERROR)
                state_change_logger.info("broker %d: %s is offline, its disk failed", self.broker_id, tp)
        for tp in lost:
            self._role_changed(tp)

    def check_epochs(self, controller_epoch: int, broker_epoch: int) -> None:
        """Raises STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH or UnconfirmedController."""
        # Anybody may claim a high epoch, and then the real controller would be refused until a restart.
        if controller_epoch > self.controller_epoch and not self.is_elected(controller_epoch):
            raise UnconfirmedController(f"ZooKeeper does not confirm controller epoch {controller_epoch}")
        with self._lock:
            self._check_epochs(controller_epoch, broker_epoch)

    def _check_epochs(self, controller_epoch: int, broker_epoch: int) -> None:
        if controller_epoch < self.controller_epoch:
            raise api_error(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {controller_epoch} is older than {self.controller_epoch}",
            )
        if broker_epoch < self.broker_epoch:
            raise api_error(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker epoch {broker_epoch} is older than {self.broker_epoch}",
            )
        self.controller_epoch = ControllerEpoch(controller_epoch)


def _is_of(log: Log, topic_id: TopicId | None) -> bool:
    """Whether a log belongs to that topic, if both ids are known; else True."""
    return topic_id is None or log.topic_id in (None, topic_id)


def _partition_error(tp: TopicPartition, code: ErrorCode) -> wire.PartitionError:
    return wire.PartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=code)
