"""The admin client: topics, placement, offsets, groups and the state of the cluster.

Requests that change something go to the controller and follow it when it moves. A request whose answer was
lost is retried; if the change is already made (a topic exists exactly as requested, or no longer), the
call succeeds.

An admin client belongs to the event loop that it was started on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from barnabas.client.admin.configs import (
    Append,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    Subtract,
    alter_configs,
    describe_configs,
)
from barnabas.client.admin.features import (
    FeatureDescription,
    FeatureLevels,
    describe_features,
    update_features,
)
from barnabas.client.admin.groups import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    delete_group_offsets,
    delete_groups,
    describe_group,
    for_each,
    list_groups,
    offsets_of_group,
    remove_members,
)
from barnabas.client.admin.log_dirs import (
    BrokerLogDirs,
    BrokerReplicas,
    TopicPartitionReplica,
    alter_replica_log_dirs,
    describe_log_dirs,
    describe_replicas,
)
from barnabas.client.admin.peek import BatchSize, PeekAdmin
from barnabas.client.admin.placement import PartitionReassignment, PlacementAdmin
from barnabas.client.admin.topics import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
)
from barnabas.client.admin.transactions import (
    DEFAULT_MAX_TRANSACTION_TIMEOUT_MS,
    NO_DURATION,
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    abort_transaction,
    complete_transaction,
    describe_producers,
    describe_transaction,
    fence_producer,
    find_hanging_transactions,
    list_transactions,
    open_transaction_at,
)
from barnabas.client.arguments import check_mapping, check_member, check_text, several
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import CommitFailed, TopicErrors
from barnabas.client.isolation import IsolationLevel
from barnabas.client.metadata import Node, TopicInfo, nodes_of, topic_info
from barnabas.client.offsets import (
    ListedOffset,
    OffsetAndMetadata,
    OffsetSpecs,
    OffsetsToCommit,
    Partition,
    checked_offsets,
    checked_specs,
    list_offsets,
    partition_of,
    partitions_in,
)
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.protocol.messages.elections import ElectionType
from barnabas.protocol.messages.features import UpgradeType
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.protocol.messages.topics import (
    USE_DEFAULT,
)

if TYPE_CHECKING:
    from barnabas.client.producer.transactions import PreparedTransaction

__all__ = [
    "Admin",
    "Append",
    "BatchSize",
    "BrokerLogDirs",
    "BrokerReplicas",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "CreatedTopic",
    "ElectionType",
    "FeatureDescription",
    "FeatureLevels",
    "GroupDescription",
    "GroupListing",
    "HangingTransaction",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "PartitionReassignment",
    "ProducerIdAndEpoch",
    "ProducerState",
    "Subtract",
    "TopicPartitionReplica",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
]


class ClusterDescription(NamedTuple):
    """``controller_id`` is -1 while there is no controller."""

    cluster_id: str | None
    controller_id: BrokerId
    nodes: list[Node]


class Admin(PlacementAdmin, PeekAdmin):
    """Settings as in `AdminConfig`, by name, or as one ``config``; names replace those of the config."""

    async def create_topics(
        self,
        topics: Iterable[NewTopic] | NewTopic,
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> dict[str, CreatedTopic]:
        """Create topics and wait until each partition has a leader that every reachable broker reports.

        A topic of the same name that is still being deleted is waited for, for at most 10 s.
        Raises the topic's own error for a single topic, and TopicErrors if some of several topics failed.
        """
        new_topics = several("topics", topics, NewTopic)
        created, errors = await create_topics(
            self._open(),
            new_topics,
            self._created_before,
            self._timeout(timeout_ms),
            validate_only=validate_only,
        )
        _raise_errors(errors, created, len(new_topics))
        return created

    async def _created_before(self, new_topic: NewTopic) -> CreatedTopic | None:
        """The existing topic, if an attempt whose answer was lost may have created it."""
        resource = ConfigResource.topic(new_topic.name)
        try:
            info = (await self.describe_topics(new_topic.name))[new_topic.name]
            configs = (await self.describe_configs(resource))[resource]
        except ApiError:
            return None
        replicas = {partition.partition: partition.replicas for partition in info.partitions}
        overridden = {
            name: entry.value
            for name, entry in configs.items()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        factor = len(replicas[0])
        if new_topic.replica_assignment is not None:
            assignment = {index: tuple(brokers) for index, brokers in new_topic.replica_assignment.items()}
            is_same = assignment == replicas
        else:
            is_same = new_topic.num_partitions in (USE_DEFAULT, len(replicas)) and (
                new_topic.replication_factor in (USE_DEFAULT, factor)
            )
        if not is_same or overridden != dict(new_topic.configs):
            return None
        return CreatedTopic(new_topic.name, info.topic_id, len(replicas), factor)

    async def delete_topics(self, names: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        """Delete topics and wait until no broker's metadata has them. Raises as `create_topics`."""
        topic_names = several("names", names, str)
        errors = await delete_topics(self._open(), topic_names, self._timeout(timeout_ms))
        _raise_errors(errors, {name: None for name in topic_names if name not in errors}, len(topic_names))

    async def create_partitions(
        self,
        topics: Mapping[str, int | NewPartitions],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> None:
        """Raise topics to these numbers of partitions, and wait until each partition has a leader.

        Keys then map to other partitions. Raises as `create_topics`.
        """
        check_mapping("topics", topics, "topics to numbers of partitions, such as {'orders': 6}")
        growth = {
            name: more if isinstance(more, NewPartitions) else NewPartitions(more)
            for name, more in topics.items()
        }
        errors = await create_partitions(
            self._open(),
            growth,
            self._partition_count,
            self._timeout(timeout_ms),
            validate_only=validate_only,
        )
        _raise_errors(errors, {name: None for name in growth if name not in errors}, len(growth))

    async def _partition_count(self, topic: str) -> int:
        return len((await self.describe_topics(topic))[topic].partitions)

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource] | ConfigResource,
        names: Iterable[str] | str | None = None,
        *,
        include_documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """The settings of topics and brokers, all or the named ones, by resource and name.

        Raises a resource's own error for a single resource, and TopicErrors if some of several failed.
        """
        chosen = several("resources", resources, ConfigResource)
        configs, errors = await describe_configs(
            self._open(),
            chosen,
            None if names is None else several("names", names, str),
            documentation=include_documentation,
            timeout_ms=self._timeout(timeout_ms),
        )
        entries_by_name = {str(resource): entries for resource, entries in configs.items()}
        _raise_errors(
            {str(resource): error for resource, error in errors.items()}, entries_by_name, len(chosen)
        )
        return configs

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change settings one by one: a new value, None for the default, `Append` or `Subtract` for lists.

        The settings of one resource change together or not at all. Raises as `describe_configs`.
        """
        check_mapping("changes", changes, "resources to settings")
        several("changes", changes, ConfigResource)
        for settings in changes.values():
            check_mapping("changes of a resource", settings, "settings to values")
        errors = await alter_configs(
            self._open(), changes, validate_only=validate_only, timeout_ms=self._timeout(timeout_ms)
        )
        done = {str(resource): None for resource in changes if resource not in errors}
        _raise_errors({str(resource): error for resource, error in errors.items()}, done, len(changes))

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        response = await self._metadata(None)
        return sorted(
            topic.name or "" for topic in response.topics if include_internal or not topic.is_internal
        )

    async def describe_topics(self, names: Iterable[str] | str | None = None) -> dict[str, TopicInfo]:
        """Partitions, leaders, replicas and ISRs by topic; None asks for all topics.

        Raises as `create_topics`; for an unknown topic the text names topics with similar names.
        """
        topic_names = None if names is None else several("names", names, str)
        response = await self._metadata(topic_names)
        errors: dict[str, ApiError] = {}
        described: dict[str, TopicInfo] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                described[name] = topic_info(topic)
            elif topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                hint = did_you_mean(name, await self.list_topics(include_internal=True), at_most=3)
                errors[name] = api_error(topic.error_code, f"there is no topic {name!r}{hint}")
            else:
                errors[name] = api_error(topic.error_code, f"topic {name!r}")
        _raise_errors(errors, described, len(topic_names or ()))
        return described

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, its controller and its live brokers."""
        response = await self._metadata([])
        return ClusterDescription(
            response.cluster_id,
            BrokerId(response.controller_id),
            sorted(nodes_of(response).values()),
        )

    async def list_offsets(
        self,
        specs: OffsetSpecs,
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset of each partition: ``earliest``, ``latest``, or by time in ms.

        ``latest`` is the high watermark, or with ``isolation_level="read_committed"`` the last stable offset.
        """
        keyed = checked_specs("specs", specs)
        isolation = IsolationLevel.parse(isolation_level)
        return await list_offsets(self._open(), keyed, self._timeout(timeout_ms), isolation)

    async def describe_replicas(self, topics: Iterable[str] | str | None = None) -> list[BrokerReplicas]:
        """The replicas of every live broker: leader, ISR, high watermark, log end, size.

        All brokers are asked at once, so that one that does not answer costs one request time-out.
        """
        chosen = None if topics is None else several("topics", topics, str)
        return await describe_replicas(self._open(), chosen)

    async def describe_log_dirs(self, brokers: Collection[int] | int | None = None) -> list[BrokerLogDirs]:
        """The log dirs of these brokers, or of all live ones, with their logs and volumes.

        Raises BROKER_NOT_AVAILABLE for an id that no live broker has.
        """
        chosen = None if brokers is None else several("brokers", brokers, int)
        return await describe_log_dirs(self._open(), chosen)

    async def alter_replica_log_dirs(
        self, assignment: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, BarnabasError | None]:
        """Begin to move replicas to other log dirs (absolute paths) of their brokers; they serve meanwhile.

        Returns the error of each replica, or None. `describe_log_dirs` shows the progress. A move to the
        dir where the replica is ends one to another dir. REPLICA_NOT_AVAILABLE, or for an unknown partition
        UNKNOWN_TOPIC_OR_PARTITION: there is no such replica; if the broker gets it later, it is created in
        that dir.
        """
        check_mapping("assignment", assignment, "replicas to log dirs")
        return await alter_replica_log_dirs(self._open(), assignment)

    # Features

    async def describe_features(self) -> FeatureDescription:
        """The features that a broker supports, and the levels that the cluster uses."""
        return await describe_features(self._open())

    async def update_features(
        self,
        levels: Mapping[str, int],
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set the levels that the cluster uses, all of them or none; level 0 ends the use of a feature.

        A lower level needs one of the downgrade types. Raises INVALID_UPDATE_VERSION, as while a broker is
        registered that does not support the level. Brokers learn of the change within milliseconds.
        """
        check_mapping("levels", levels, "features to levels")
        check_member("upgrade_type", upgrade_type, UpgradeType)
        await update_features(
            self._open(),
            levels,
            upgrade_type,
            validate_only=validate_only,
            timeout_ms=self._timeout(timeout_ms),
        )

    # Groups

    async def list_groups(
        self, *, states: Iterable[str] | str = (), timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """The groups of all live brokers, by name; only those in these states, if any are given.

        Raises the last error of a broker that did not answer before the timeout.
        """
        chosen = several("states", states, str)
        return await list_groups(self._open(), chosen, self._timeout(timeout_ms))

    async def describe_groups(
        self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """State, members and assignments. Raises GROUP_ID_NOT_FOUND for a group that does not exist."""
        chosen = several("group_ids", group_ids, str)
        limit_ms = self._timeout(timeout_ms)
        return await for_each(chosen, lambda group_id: describe_group(self._open(), group_id, limit_ms))

    async def delete_groups(self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        """Delete groups and their offsets. If one cannot be deleted, the others are.

        Raises an ApiError such as NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND for a single group, and GroupErrors
        if some of several groups failed.
        """
        chosen = several("group_ids", group_ids, str)
        await delete_groups(self._open(), chosen, self._timeout(timeout_ms))

    async def remove_members(
        self, group_id: str, group_instance_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> None:
        """Remove static members that will not return. Raises UNKNOWN_MEMBER_ID."""
        check_text("group_id", group_id)
        chosen = several("group_instance_ids", group_instance_ids, str)
        await remove_members(self._open(), group_id, chosen, self._timeout(timeout_ms))

    async def group_offsets(
        self,
        group_id: str,
        partitions: Collection[Partition] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets of all partitions, or of these; None for a partition without one.

        With ``require_stable`` it waits for the end of transactions that commit offsets of the group.
        """
        check_text("group_id", group_id)
        chosen = None if partitions is None else partitions_in(partitions)
        return await offsets_of_group(self._open(), group_id).fetch(
            chosen, self._timeout(timeout_ms), require_stable=require_stable
        )

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: OffsetsToCommit,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Set the committed offsets of a group. Raises NON_EMPTY_GROUP while it has members."""
        check_text("group_id", group_id)
        chosen = checked_offsets(offsets)
        try:
            await offsets_of_group(self._open(), group_id).commit(chosen, self._timeout(timeout_ms))
        except CommitFailed as error:
            raise api_error(
                ErrorCode.NON_EMPTY_GROUP,
                f"group {group_id!r} has members, which commit offsets of their own: stop them first",
            ) from error

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> None:
        """Delete committed offsets. Raises GROUP_SUBSCRIBED_TO_TOPIC, GROUP_ID_NOT_FOUND and their kind."""
        check_text("group_id", group_id)
        chosen = partitions_in(partitions)
        await delete_group_offsets(self._open(), group_id, chosen, self._timeout(timeout_ms))

    # Transactions

    async def list_transactions(
        self,
        *,
        states: Iterable[str] | str = (),
        producer_ids: Iterable[int] | int = (),
        duration_ms: int = NO_DURATION,
        timeout_ms: int | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators, by name.

        Only those in these states, of these producers, with a transaction that is open for longer than
        ``duration_ms``. Raises InvalidConfiguration for a state that does not exist.
        """
        return await list_transactions(
            self._open(),
            several("states", states, str),
            several("producer_ids", producer_ids, int),
            duration_ms,
            self._timeout(timeout_ms),
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription]:
        """State, producer, age and partitions. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        chosen = several("transactional_ids", transactional_ids, str)
        limit_ms = self._timeout(timeout_ms)
        return await for_each(chosen, lambda name: describe_transaction(self._open(), name, limit_ms))

    async def describe_producers(
        self,
        partitions: Iterable[Partition],
        *,
        broker_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, list[ProducerState]]:
        """The producers of each partition by its leader, or as the replica on one broker knows them."""
        chosen = partitions_in(partitions)
        return await describe_producers(self._open(), chosen, broker_id, self._timeout(timeout_ms))

    async def find_hanging_transactions(
        self,
        partitions: Iterable[Partition] | None = None,
        *,
        broker_id: int | None = None,
        max_transaction_timeout_ms: int = DEFAULT_MAX_TRANSACTION_TIMEOUT_MS,
        timeout_ms: int | None = None,
    ) -> list[HangingTransaction]:
        """The open transactions of these partitions, or of all, that no coordinator will end.

        Candidates have no record younger than ``max_transaction_timeout_ms``: give the longest time-out that
        the brokers allow. With ``broker_id``, its replicas are asked in place of the leaders.
        """
        if partitions is None:
            topics = await self.describe_topics(await self.list_topics(include_internal=True) or None)
            partitions = [
                TopicPartition(name, info.partition)
                for name, topic in topics.items()
                for info in topic.partitions
                if broker_id is None or broker_id in info.replicas
            ]
        return await find_hanging_transactions(
            self._open(),
            partitions_in(partitions),
            broker_id,
            max_transaction_timeout_ms,
            self._timeout(timeout_ms),
        )

    async def abort_transaction(
        self,
        partition: TopicPartition,
        *,
        start_offset: int | None = None,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        coordinator_epoch: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """End a hanging transaction in one partition by an abort marker, which its coordinator does not see.

        The transaction begins at ``start_offset``, or belongs to a producer id and epoch. Raises
        INVALID_TXN_STATE without such a transaction, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        tp, limit_ms = partition_of(partition), self._timeout(timeout_ms)
        if start_offset is not None:
            producer = await open_transaction_at(self._open(), tp, start_offset, limit_ms)
            producer_id, producer_epoch = producer.producer_id, producer.producer_epoch
            coordinator_epoch = producer.coordinator_epoch or 0
        if producer_id is None or producer_epoch is None:
            raise ValueError("expected a start_offset, or a producer_id and a producer_epoch")
        await abort_transaction(self._open(), tp, producer_id, producer_epoch, coordinator_epoch, limit_ms)

    async def fence_producers(
        self, transactional_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, ProducerIdAndEpoch]:
        """Fence the producers with these ids, which aborts their transactions, prepared ones included.

        Returns the new producer id and epoch of each.
        """
        chosen = several("transactional_ids", transactional_ids, str)
        limit_ms = self._timeout(timeout_ms)
        return await for_each(chosen, lambda name: fence_producer(self._open(), name, limit_ms))

    async def complete_transaction(
        self, transaction: PreparedTransaction | str, *, commit: bool = True, timeout_ms: int | None = None
    ) -> None:
        """Commit or abort a prepared transaction, given by itself or by its transactional id.

        Raises INVALID_TXN_STATE if it is not prepared, TRANSACTIONAL_ID_NOT_FOUND.
        """
        await complete_transaction(
            self._open(), transaction, commit=commit, timeout_ms=self._timeout(timeout_ms)
        )

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        requested = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return await self._open().ask_any(MetadataRequest(topics=requested, allow_auto_topic_creation=False))


def _raise_errors(errors: dict[str, ApiError], results: Mapping[str, object], count: int) -> None:
    if errors and count == 1:
        raise next(iter(errors.values()))
    if errors:
        raise TopicErrors(errors, results)
