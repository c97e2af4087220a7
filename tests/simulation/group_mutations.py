"""Bugs of a group coordinator, planted on purpose: the simulation must find each.

See `mutations` for their form.
"""

from typing import Any

from barnabas.broker.coordinators import topic_coordinator
from barnabas.broker.coordinators.groups.coordinator import GroupShard
from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.groups.members import Member, Members
from barnabas.broker.coordinators.groups.offsets import GroupOffsets, TransactionEnd
from barnabas.broker.coordinators.groups.rebalance import Rebalance
from barnabas.broker.coordinators.loading import last_records
from barnabas.broker.coordinators.machine_shard import ShardState
from barnabas.broker.coordinators.topic_coordinator import TopicCoordinator
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_fields
from tests.simulation.planted import SetAttr, found_in
from tests.simulation.promises import Promise


@found_in("groups", 0, alone=Promise.ASSIGNMENTS)
def assignments_are_handed_out_before_they_are_stored(setattr_: SetAttr) -> None:
    sync = Group.sync

    def hasty(self: Group, request: Any, token: Any, now: Any) -> None:
        sync(self, request, token, now)
        effects = self.outbox._effects
        if self._rebalance.is_assigned and effects is not None and effects.appends:
            self.outbox._unsettled[effects.appends[-1].number](ErrorCode.NONE, 0, now)

    setattr_(Group, "sync", hasty)


@found_in("groups", 357)
def a_leader_that_asks_again_may_assign_again(setattr_: SetAttr) -> None:
    sync = Group.sync

    def forgetful(self: Group, request: Any, token: Any, now: Any) -> None:
        self._rebalance.is_assigned = False
        sync(self, request, token, now)

    setattr_(Group, "sync", forgetful)


@found_in("groups", 12, alone=Promise.COMMITTERS)
def commits_of_any_generation_are_taken(setattr_: SetAttr) -> None:
    def credulous(self: Group, commit: Any) -> ErrorCode:
        return self._members.error_of(commit.member_id, commit.instance_id)

    setattr_(Group, "_commit_error", credulous)


@found_in("groups", 4)
def instances_are_not_fenced(setattr_: SetAttr) -> None:
    def trusting(self: Members, member_id: str, instance_id: str | None) -> ErrorCode:
        holder = self.id_of_instance(instance_id) if instance_id is not None else member_id
        if holder is None or holder not in self:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    setattr_(Members, "error_of", trusting)


@found_in("groups", 12)
def a_request_given_up_is_forgotten(setattr_: SetAttr) -> None:
    def careless(self: Rebalance, member: Member, token: Any) -> None:
        self._members.set_join_token(member, token)

    setattr_(Rebalance, "wait_for_join", careless)


@found_in("groups", 29, alone=Promise.REST)
def sessions_never_end(setattr_: SetAttr) -> None:
    setattr_(Member, "deadline_ms", property(lambda self: float("inf")))


@found_in("groups", 20, alone=Promise.GENERATIONS)
def the_leader_need_not_have_joined(setattr_: SetAttr) -> None:
    setattr_(Members, "elect_joined_leader", lambda self: self.leader_id is not None)


@found_in("groups", 6)
def a_shard_outlives_its_leadership(setattr_: SetAttr) -> None:
    """The coordinator keeps its shard when the broker no longer leads the partition."""
    changed = TopicCoordinator.role_changed

    def hoarding(self: TopicCoordinator[GroupShard], name: Any) -> None:
        if name.partition not in self._shards:
            changed(self, name)

    setattr_(TopicCoordinator, "role_changed", hoarding)


@found_in("groups", 6)
def loading_ends_at_the_high_watermark(setattr_: SetAttr) -> None:
    """A new leader's high watermark may lag behind acknowledged commits."""

    class Committed:
        def __init__(self, log: Any, end: int) -> None:
            self.log_start_offset, self.log_end_offset, self.read = log.log_start_offset, end, log.read

    def short(self: TopicCoordinator[GroupShard], shard: GroupShard) -> Any:
        partition = self._replicas.partition(shard.partition)
        log: Any = Committed(partition.log, partition.high_watermark)
        return last_records(log, lambda: shard.state is ShardState.LOADING)

    setattr_(TopicCoordinator, "_last_records", short)


@found_in("groups", 115)
def requests_are_served_while_groups_are_loaded(setattr_: SetAttr) -> None:
    def serving(self: GroupShard) -> None:
        if self.state is ShardState.CLOSED:
            raise api_error(ErrorCode.NOT_COORDINATOR, "closed")

    setattr_(GroupShard, "check_serving", serving)


@found_in("groups", 13, alone=Promise.COMMITS)
def loading_keeps_the_first_record_of_a_key(setattr_: SetAttr) -> None:
    def first(log: Any, is_wanted: Any) -> Any:
        found = last_records(log, is_wanted)
        seen: dict[bytes, Any] = {}
        for _, header in iter_batches(log.read(log.log_start_offset, 1 << 24).records):
            batch = log.read(header.base_offset, 1).records
            for offset, _, key, value, headers in decode_fields(batch):
                if key is not None and value is not None:
                    seen.setdefault(key, (offset, value, headers))
        if found is None:
            return None
        return found._replace(by_key={key: seen[key] for key in found.by_key})

    setattr_(topic_coordinator, "last_records", first)


@found_in("groups", 16)
def appends_that_fail_are_settled_as_done(setattr_: SetAttr) -> None:
    settled = GroupShard._settled

    def hopeful(self: GroupShard, hosted: Any, number: int, error: ErrorCode, offset: int) -> None:
        settled(self, hosted, number, ErrorCode.NONE, max(offset, 0))

    setattr_(GroupShard, "_settled", hopeful)


@found_in("groups", 1)
def timers_expire_once(setattr_: SetAttr) -> None:
    """A timer that fires before its group's deadline is not set again."""

    def silent(self: GroupShard, hosted: Any) -> None:
        self._apply(hosted, lambda group, now: group.tick(now))

    setattr_(GroupShard, "_timer_expired", silent)


@found_in("groups", 3)
def offsets_of_transactions_are_valid_at_once(setattr_: SetAttr) -> None:
    def hasty(self: GroupOffsets, producer_id: int, partition: Any, committed: Any) -> None:
        self.load(partition, committed)

    setattr_(GroupOffsets, "load_pending", hasty)


@found_in("exactly once", 1)
def loading_forgets_pending_offsets(setattr_: SetAttr) -> None:
    def forgetful(log: Any, is_wanted: Any) -> Any:
        found = last_records(log, is_wanted)
        return None if found is None else found._replace(pending={})

    setattr_(topic_coordinator, "last_records", forgetful)


@found_in("groups", 12)
def members_are_not_fenced_in_transactions(setattr_: SetAttr) -> None:
    commit_error = Group._commit_error

    def credulous(self: Group, commit: Any) -> ErrorCode:
        return commit_error(self, commit) if commit.producer is None else ErrorCode.NONE

    setattr_(Group, "_commit_error", credulous)


@found_in("groups", 5, alone=Promise.G1A)
def aborted_offsets_become_valid(setattr_: SetAttr) -> None:
    ended = GroupOffsets.transaction_ended

    def careless(self: GroupOffsets, end: TransactionEnd) -> None:
        ended(self, end._replace(is_commit=True))

    setattr_(GroupOffsets, "transaction_ended", careless)
