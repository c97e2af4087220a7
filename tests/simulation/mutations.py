"""Known mistakes, each put into the code on purpose: the simulation must find every one of them.

A mutation is a function that takes `setattr` (a monkeypatch's) and replaces one rule by its wrong form.
"""

from __future__ import annotations

from typing import Any

from barnabas.broker.replication import fetch_wait, rules
from barnabas.broker.replication import partition as partition_module
from barnabas.broker.replication.isr import FollowerStates, PendingIsr
from barnabas.broker.replication.isr_changes import IsrChanges
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_views import Isolation, Role
from barnabas.broker.replication.roles import RoleChanges
from barnabas.controller import replica_state
from barnabas.controller.context import ControllerContext
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_BROKER_EPOCH
from barnabas.zookeeper import controller_writer, paths, store, znodes
from barnabas.zookeeper.errors import PartitionStateConflict
from tests.simulation.planted import SetAttr, found_in


@found_in("usual", 4)
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
def no_history_is_compared(setattr_: SetAttr) -> None:
    setattr_(rules, "diverges", lambda *_: False)


@found_in("doors", 175)
def a_joining_replica_is_not_waited_for(setattr_: SetAttr) -> None:
    setattr_(PendingIsr, "maximal", PendingIsr.in_sync_replicas)


@found_in("usual", 2)
def a_leaving_replica_is_not_waited_for(setattr_: SetAttr) -> None:
    setattr_(PendingIsr, "maximal", PendingIsr.proposed)


@found_in("rebirths", 72)
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
            except PartitionStateConflict:
                partition._followers.isr = pending.committed
                raise

        self._store.update_isr = watched
        try:
            change(self, partition, pending)
        finally:
            self._store.update_isr = update

    setattr_(IsrChanges, "_change", abandoning)


def followers_join_below_the_start_of_the_epoch(setattr_: SetAttr) -> None:
    setattr_(
        rules,
        "may_join_isr",
        lambda follower, *, high_watermark, **_: follower.log_end_offset >= high_watermark,
    )


@found_in("usual", 45)
def the_state_is_written_without_comparing(setattr_: SetAttr) -> None:
    write = store._set_state
    setattr_(store, "_set_state", lambda path, data, version, *rest: write(path, data, -1, *rest))
    setattr_(
        controller_writer,
        "_set_state",
        lambda tp, state: (
            lambda transaction: transaction.set_data(
                paths.partition_state(tp), znodes.encode_partition_state(state)
            )
        ),
    )


@found_in("usual", 196)
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
    setattr_(fetch_wait, "_log_start", lambda partition, error: -1)


def a_log_below_the_leaders_log_start_is_kept(setattr_: SetAttr) -> None:
    """Found in this code: no batch of the leader could ever continue the follower's log."""
    setattr_(partition_module, "first_base_offset", lambda records, log_end_offset: log_end_offset)


@found_in("usual", 0)
def the_leaders_own_append_is_acknowledged(setattr_: SetAttr) -> None:
    def eager(self: Partition, appended: Any) -> Any:
        return ErrorCode.NONE if self.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    setattr_(Partition, "acknowledgement", eager)


@found_in("usual", 13)
def an_append_of_an_earlier_leadership_is_acknowledged(setattr_: SetAttr) -> None:
    """The high watermark passes the offset, perhaps with records of another leader."""

    def forgetful(self: Partition, appended: Any) -> Any:
        return None if self.high_watermark <= appended.last_offset else ErrorCode.NONE

    setattr_(Partition, "acknowledgement", forgetful)


@found_in("usual", 241)
def a_new_leader_reports_its_stale_high_watermark(setattr_: SetAttr) -> None:
    setattr_(Partition, "latest_offset", lambda self, epoch, isolation: self.high_watermark)


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


def without_zookeeper_no_confirmation_is_required(setattr_: SetAttr) -> None:
    setattr_(rules, "are_witnesses", lambda *_, **__: True)


def any_fetch_confirms_the_leader(setattr_: SetAttr) -> None:
    """However old the fetch is."""
    are_witnesses = rules.are_witnesses
    setattr_(rules, "are_witnesses", lambda *seen, **now: are_witnesses(*seen, **{**now, "max_lag_ms": 1e12}))


@found_in("usual", 54)
def an_ended_registration_continues(setattr_: SetAttr) -> None:
    """Found in this code: a broker kept a registration that it had fenced, and got no roles any more."""
    register = store.register_broker
    setattr_(store, "register_broker", lambda session, registration, **_: register(session, registration))


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
def followers_serve_uncommitted_records(setattr_: SetAttr) -> None:
    """Consumers get from a follower whatever it has."""
    read = Partition.read

    def read_all(self: Partition, **arguments: Any) -> Any:
        if self.role is Role.FOLLOWER:
            arguments["isolation"] = Isolation.FOLLOWER
        return read(self, **arguments)

    setattr_(Partition, "read", read_all)
