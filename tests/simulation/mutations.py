"""Known mistakes of replicas and of their logs, each put into the code on purpose; see `planted`.

Those without a kind of random histories need one of their own, in `test_histories`.
"""

from typing import Any

from barnabas.broker.compaction import choice, cleaning
from barnabas.broker.compaction.batch_filter import GONE
from barnabas.broker.compaction.group_output import GroupOutput
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.log import batch_scan, log, recovery
from barnabas.broker.log.epoch_cache import EpochCache, EpochEndOffset
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.broker.replication import fetched_answer, rules
from barnabas.broker.replication import fetcher_state as following
from barnabas.broker.replication import partition as partition_module
from barnabas.broker.replication.become_leader_or_follower import RoleChanges
from barnabas.broker.replication.fetch_sessions import FetchSession
from barnabas.broker.replication.fetcher_state import FollowedPartition, FollowedPartitions, LeaderFetches
from barnabas.broker.replication.followers import FollowerStates, PendingIsr
from barnabas.broker.replication.isr_changes import IsrChanges
from barnabas.broker.replication.partition import Isolation, Partition, PartitionRead, Role
from barnabas.common.backoff import Pause
from barnabas.controller import replica_state
from barnabas.controller.context import ControllerContext
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_BROKER_EPOCH, LeaderEpoch
from barnabas.protocol.record_batch import parse_header
from barnabas.zookeeper import controller_writer, paths, store, znodes
from barnabas.zookeeper.errors import LeadershipConflict
from barnabas.zookeeper.requests import Transaction
from tests.simulation.planted import SetAttr, found_in, of_compiled_code


@found_in("usual", 4)
@of_compiled_code
def followers_cut_to_their_high_watermark(setattr_: SetAttr) -> None:
    """Kafka before KIP-101: a new follower truncates to its high watermark, which may be stale."""
    make_follower = Partition.make_follower

    def cutting(self: Partition, state: Any) -> bool:
        is_news = make_follower(self, state)
        if is_news:
            self.log.truncate_to(self.high_watermark)
        return is_news

    setattr_(Partition, "make_follower", cutting)
    no_history_is_compared(setattr_)


@found_in("usual", 0)
@of_compiled_code
def no_history_is_compared(setattr_: SetAttr) -> None:
    setattr_(rules, "diverges", lambda *_: False)


def an_epoch_without_records_ends_at_the_next(setattr_: SetAttr) -> None:
    """Kafka before KIP-279: an epoch that the leader lacks ends where its next epoch begins."""
    end_offset_for = EpochCache.end_offset_for

    def answer(self: EpochCache, epoch: int, log_end_offset: int) -> EpochEndOffset:
        found = end_offset_for(self, epoch, log_end_offset)
        return found if found.epoch < 0 else EpochEndOffset(LeaderEpoch(epoch), found.end_offset)

    setattr_(EpochCache, "end_offset_for", answer)


@found_in("doors", 366)
@of_compiled_code
def a_joining_replica_is_not_waited_for(setattr_: SetAttr) -> None:
    setattr_(PendingIsr, "maximal", PendingIsr.in_sync_replicas)


@found_in("usual", 2)
@of_compiled_code
def a_leaving_replica_is_not_waited_for(setattr_: SetAttr) -> None:
    setattr_(PendingIsr, "maximal", PendingIsr.proposed)


@found_in("rebirths", 72)
@of_compiled_code
def broker_epochs_of_fetches_are_not_checked(setattr_: SetAttr) -> None:
    """Kafka before KIP-903: a fetch with an old broker epoch counts."""
    fetched = Partition.follower_fetched

    def credulous(self: Partition, follower: Any, **arguments: Any) -> Any:
        present = arguments["registered_broker_epoch"]
        return fetched(self, follower, **{**arguments, "broker_epoch": present})

    setattr_(Partition, "follower_fetched", credulous)


@found_in("rebirths", 3)
def an_expansion_is_written_for_any_registration(setattr_: SetAttr) -> None:
    """Found in this code: a joining replica may lose its disk between the proposal and the write."""
    update = store.ClusterStore.update_isr
    setattr_(
        store.ClusterStore,
        "update_isr",
        lambda self, *args, **named: update(self, *args, **{**named, "joining": {}}),
    )


def an_isr_is_written_in_any_session(setattr_: SetAttr) -> None:
    """Found in this code: a leader without its registration removed others from the ISR."""
    update = store.ClusterStore.update_isr
    setattr_(
        store.ClusterStore,
        "update_isr",
        lambda self, *args, **named: update(self, *args, **{**named, "broker_epoch": NO_BROKER_EPOCH}),
    )


def older_states_of_the_controller_are_taken(setattr_: SetAttr) -> None:
    setattr_(Partition, "_is_news", lambda self, state: True)


@of_compiled_code
def a_replaced_controller_is_obeyed(setattr_: SetAttr) -> None:
    setattr_(RoleChanges, "_check_epochs", lambda self, controller_epoch, broker_epoch: None)
    older_states_of_the_controller_are_taken(setattr_)


def a_conflict_reverts_the_change(setattr_: SetAttr) -> None:
    """An earlier try may have written the change, and the controller may rely on it."""
    change = IsrChanges._change

    def abandoning(self: IsrChanges, partition: Any, pending: Any) -> None:
        update = self._store.update_isr

        def watched(*args: Any, **kwargs: Any) -> int:
            try:
                return update(*args, **kwargs)
            except LeadershipConflict:
                partition._followers.isr = pending.committed
                raise

        self._store.update_isr = watched
        try:
            change(self, partition, pending)
        finally:
            self._store.update_isr = update

    setattr_(IsrChanges, "_change", abandoning)


@of_compiled_code
def followers_join_below_the_start_of_the_epoch(setattr_: SetAttr) -> None:
    setattr_(
        rules,
        "may_join_isr",
        lambda follower, *, high_watermark, **_: follower.log_end_offset >= high_watermark,
    )


@found_in("usual", 50)
def the_state_is_written_without_comparing(setattr_: SetAttr) -> None:
    write = store._set_state
    setattr_(store, "_set_state", lambda path, data, version, *rest: write(path, data, -1, *rest))
    setattr_(
        controller_writer,
        "_set_state",
        lambda tp, state: Transaction().set(paths.leadership(tp), znodes.encode_leadership(state)),
    )


@found_in("usual", 196)
@of_compiled_code
def an_epoch_without_records_is_kept(setattr_: SetAttr) -> None:
    """Found in this code: the follower never stopped comparing epochs with its leader."""
    truncate = Partition._truncate

    def keeping(self: Partition, offset: Any) -> None:
        if offset < self.log.log_end_offset:
            truncate(self, offset)

    setattr_(Partition, "_truncate", keeping)


@found_in("usual", 280)
def a_follower_below_the_log_start_gets_no_log_start(setattr_: SetAttr) -> None:
    """Found in this code: the follower kept fetching at a deleted offset."""
    failed = PartitionRead.failed
    setattr_(PartitionRead, "failed", lambda error, log_start_offset=-1: failed(error))


@of_compiled_code
def a_log_below_the_leaders_log_start_is_kept(setattr_: SetAttr) -> None:
    """Found in this code: no batch of the leader could ever continue the follower's log."""
    setattr_(partition_module, "first_base_offset", lambda records, log_end_offset: log_end_offset)


@found_in("usual", 0)
@of_compiled_code
def the_leaders_own_append_is_acknowledged(setattr_: SetAttr) -> None:
    def eager(self: Partition, appended: Any) -> Any:
        return ErrorCode.NONE if self.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    setattr_(Partition, "acknowledgement", eager)


@found_in("usual", 13)
@of_compiled_code
def an_append_of_an_earlier_leadership_is_acknowledged(setattr_: SetAttr) -> None:
    """The high watermark passes the offset, perhaps with records of another leader."""

    def forgetful(self: Partition, appended: Any) -> Any:
        return None if self.high_watermark <= appended.last_offset else ErrorCode.NONE

    setattr_(Partition, "acknowledgement", forgetful)


@found_in("usual", 241)
def a_new_leader_reports_its_stale_high_watermark(setattr_: SetAttr) -> None:
    setattr_(Partition, "latest_offset", lambda self, epoch, isolation: self.high_watermark)


@of_compiled_code
def followers_ends_outlive_a_missed_epoch(setattr_: SetAttr) -> None:
    """Found in this code: a leader kept its followers' log ends across an epoch of another leader."""
    begin_epoch = FollowerStates.begin_epoch

    def trusting(self: FollowerStates, *args: Any, knows_ends: bool, **kwargs: Any) -> None:
        begin_epoch(self, *args, knows_ends=bool(self._states), **kwargs)

    setattr_(FollowerStates, "begin_epoch", trusting)


@found_in("usual", 7)
def broker_epochs_of_the_isr_are_not_compared(setattr_: SetAttr) -> None:
    """As in Kafka: a broker that restarts between two controllers stays in the ISR, even if it lost data."""
    setattr_(ControllerContext, "bounced", lambda self, state: set())


@found_in("racks", 8)
def one_of_a_lost_isr_is_kept(setattr_: SetAttr) -> None:
    """As in Kafka: if all members go at once, only the one with the highest id may lead afterwards."""
    without = replica_state.without_replicas

    def one_by_one(replicas: Any, leader: Any, isr: Any, no_leader: Any) -> Any:
        for replica in sorted(replicas):
            leader, isr = without({replica}, leader, isr, no_leader)
        return leader, isr

    setattr_(replica_state, "without_replicas", one_by_one)


@of_compiled_code
def without_zookeeper_no_confirmation_is_required(setattr_: SetAttr) -> None:
    setattr_(FollowerStates, "are_witnesses", lambda *_: True)


@of_compiled_code
def any_fetch_confirms_the_leader(setattr_: SetAttr) -> None:
    """However old the fetch is."""
    are_witnesses = FollowerStates.are_witnesses
    setattr_(FollowerStates, "are_witnesses", lambda self, now_ms: are_witnesses(self, now_ms - 1e12))


@found_in("groups", 14)
@of_compiled_code
def a_leader_needs_no_proof(setattr_: SetAttr) -> None:
    """While ZooKeeper answers, it serves acks=1 and coordinates however long its followers are silent."""
    setattr_(Partition, "is_proven", lambda *_: True)


def a_deposed_leader_keeps_its_role(setattr_: SetAttr) -> None:
    """It waits for a LeaderAndIsr, although ZooKeeper has another leader."""
    setattr_(Partition, "learn_leader", lambda *_: False)


def only_followers_prove_a_leader(setattr_: SetAttr) -> None:
    """ZooKeeper is not asked, so a leader with silent followers serves only acks=all."""
    setattr_(IsrChanges, "confirm", lambda *_: None)


@found_in("usual", 54)
def an_ended_registration_continues(setattr_: SetAttr) -> None:
    """Found in this code: a broker kept a registration that it had fenced, and got no roles any more."""
    register = store.register_broker

    def register_whatever_was(session: Any, registration: Any, *, probe: Any, **_: Any) -> Any:
        return register(session, registration, probe=probe)

    setattr_(store, "register_broker", register_whatever_was)


@found_in("strict", 19)
def a_new_leader_commits_below_min_isr(setattr_: SetAttr) -> None:
    """The strict rule is only applied to later appends and fetches."""
    make_leader = Partition.make_leader

    def generous(self: Partition, *arguments: Any) -> bool:
        self._is_min_isr_strict = False
        try:
            return make_leader(self, *arguments)
        finally:
            self._is_min_isr_strict = True

    setattr_(Partition, "make_leader", generous)


@found_in("usual", 0)
@of_compiled_code
def followers_serve_uncommitted_records(setattr_: SetAttr) -> None:
    """Consumers get from a follower whatever it has."""
    read = Partition.read

    def read_all(self: Partition, **arguments: Any) -> Any:
        if self.role is Role.FOLLOWER:
            arguments["isolation"] = Isolation.FOLLOWER
        return read(self, **arguments)

    setattr_(Partition, "read", read_all)


@found_in("usual", 145)
@of_compiled_code
def answers_of_another_epoch_are_taken(setattr_: SetAttr) -> None:
    """Records of an earlier leader are appended after the controller has named another one."""

    def credulous(self: Partition, leader_epoch: Any) -> None:
        return

    setattr_(Partition, "_check_following", credulous)


@found_in("usual", 1)
def the_leaders_high_watermark_is_taken_as_it_is(setattr_: SetAttr) -> None:
    append = Partition.append_as_follower

    def trusting(self: Partition, records: memoryview, **arguments: Any) -> bool:
        appended = append(self, records, **arguments)
        self.high_watermark = max(self.high_watermark, arguments["leader_high_watermark"])
        return appended

    setattr_(Partition, "append_as_follower", trusting)


@found_in("usual", 70)
def fetches_name_an_earlier_broker_epoch(setattr_: SetAttr) -> None:
    """The broker epoch is looked up once; a leader lets no replica with an old broker epoch join."""
    next_request = LeaderFetches.next_request

    def stuck(self: LeaderFetches, now: float) -> Any:
        first = self.__dict__.setdefault("first_epoch", self._current_broker_epoch())
        self._current_broker_epoch = lambda: first
        return next_request(self, now)

    setattr_(LeaderFetches, "next_request", stuck)


@found_in("pushes", 17)
@found_in("groups, pushes", 0)
@found_in("exactly once, pushes", 4)
@of_compiled_code
def pushes_count_as_applied_when_they_are_sent(setattr_: SetAttr) -> None:
    """The next fetch of a follower that has ignored some leaves a hole in its log."""
    setattr_(FetchSession, "unsend", lambda self, parts: None)
    news = FetchSession.news

    def trusting(self: FetchSession, parts: Any, outcomes: Any) -> Any:
        found, ends = news(self, parts, outcomes)
        for part, end in ends.items():
            part.item = part.item._replace(fetch_offset=end)
        return found, ends

    setattr_(FetchSession, "news", trusting)


@found_in("usual", 142)
def failed_partitions_are_not_fetched_again(setattr_: SetAttr) -> None:
    failed = FollowedPartitions.failed

    def resigned(self: FollowedPartitions, name: Any, followed: FollowedPartition, now: float) -> float:
        rests_ms = failed(self, name, followed, now)
        followed.pause = Pause(1e9)
        return rests_ms

    setattr_(FollowedPartitions, "failed", resigned)


@found_in("usual", 195)
def a_follower_drops_its_log_instead_of_truncating(setattr_: SetAttr) -> None:
    """It drops records that may be committed, while it is in the ISR."""
    apply_answer = fetched_answer.apply_answer

    def rash(partition: Partition, leader_epoch: Any, data: Any, **arguments: Any) -> None:
        if data.diverging_epoch.epoch >= 0:
            partition.restart_at(leader_epoch, partition.log.log_start_offset)
            return
        apply_answer(partition, leader_epoch, data, **arguments)

    setattr_(following, "apply_answer", rash)


@found_in("usual", 112)
def a_torn_tail_is_kept(setattr_: SetAttr) -> None:
    """Recovery checks headers only, not the CRCs."""
    setattr_(batch_scan, "check_batch", lambda data, position, **_: parse_header(data, position))


@found_in("usual", 113)
def old_epochs_outlive_a_power_cut(setattr_: SetAttr) -> None:
    """Recovery trusts the epoch checkpoint, which may be older than the log, or gone."""
    recover = recovery._recover_segments

    def forgetful(*arguments: Any) -> Any:
        kept, _, without_producers = recover(*arguments)
        return kept, [], without_producers

    setattr_(recovery, "_recover_segments", forgetful)
    setattr_(recovery, "_miss_first_epochs", lambda *_: False)


@found_in("usual", 4)
def truncation_leaves_the_epochs(setattr_: SetAttr) -> None:
    setattr_(EpochCache, "truncate_from_end", lambda self, end_offset: None)


@found_in("compaction", 2)
def a_cleaning_passes_the_high_watermark(setattr_: SetAttr) -> None:
    """A record goes in favour of a later one that may be truncated."""
    cleanable_end = choice.cleanable_end

    def bold(figures: Any, *arguments: Any) -> int:
        return cleanable_end(figures._replace(stable_end_offset=1 << 62), *arguments)

    setattr_(choice, "cleanable_end", bold)


@found_in("compaction", 5)
def the_last_batch_of_a_cleaned_segment_goes(setattr_: SetAttr) -> None:
    """As in Kafka: a follower never reaches the end of a log whose last records are gone."""
    setattr_(cleaning, "emptied", lambda header: GONE)
    setattr_(GroupOutput, "append", lambda self, header, data: None)


@found_in("compaction", 5)
def the_oldest_value_of_a_key_is_kept(setattr_: SetAttr) -> None:
    put = OffsetMap._put

    def backwards(self: OffsetMap, keys: Any, offsets: Any, offset_bytes: int) -> None:
        fresh = [(key, offset) for key, offset in zip(keys, offsets, strict=True) if key not in self._newest]
        if fresh:
            put(self, *zip(*fresh, strict=True), offset_bytes)

    setattr_(OffsetMap, "_put", backwards)


@found_in("compaction", 7)
def a_follower_refuses_a_gap(setattr_: SetAttr) -> None:
    """Each batch must begin where the one before ends, as in logs that nobody compacts."""
    fetched_batches = log.fetched_batches

    def strict(view: Any, begin: int, newest_epoch: Any) -> Any:
        batches, size = fetched_batches(view, begin, newest_epoch)
        end = begin
        for _, header in batches:
            if header.base_offset != end:
                raise UnexpectedAppendOffset(f"offset {header.base_offset}, expected {end}")
            end = header.next_offset
        return batches, size

    setattr_(log, "fetched_batches", strict)
