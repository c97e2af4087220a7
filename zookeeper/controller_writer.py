"""`ControllerWriter`: every write that only the controller may do, fenced by its epoch.

Each write is a transaction that first checks the version of ``/controller_epoch``: after the election of
another controller no write of the former one succeeds, however long it was paused, and the caller gets
`ControllerMoved`. Writes are pipelined. Small ones share transactions; when one is refused, those that shared
its transaction are made again alone, so that it does not stop the others. A write whose answer was lost is
repeated, and recognised by the data in the node.

Any thread; calls block and are bounded as the session's are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

from barnabas.protocol.ids import NO_TOPIC_ID, ControllerEpoch, TopicId, TopicPartition
from barnabas.zookeeper import admin_requests, paths, znodes
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.requests import (
    Transaction,
    first_error,
    get,
    get_children,
    read_leadership,
    recreate,
    retry_cas,
)
from barnabas.zookeeper.session import ZooKeeperSession
from barnabas.zookeeper.znodes import LeadershipState, TopicAssignment

log = logging.getLogger("barnabas.zookeeper")

_WRITES_AT_ONCE: Final = 50


class FencedOutcome(NamedTuple):
    """Of one fenced write: the results of its operations without the check's, or the first refusal."""

    results: list[Any]
    error: KazooException | None
    retried: bool


class StateUpdates(NamedTuple):
    """The outcomes of a set of state writes; a partition in neither has no state any more."""

    written: dict[TopicPartition, LeadershipState]
    conflicts: dict[TopicPartition, LeadershipState]


@dataclass(eq=False)
class ControllerWriter:
    """The right to write as controller in one controller epoch."""

    _session: ZooKeeperSession
    epoch: ControllerEpoch
    _epoch_version: int

    def create_leadership(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates:
        """Write first states; a partition that has one already is a conflict and comes with it."""
        topics = dict.fromkeys(tp.topic for tp in states)
        self._fenced_all([Transaction().create(paths.topic_partitions(topic), b"") for topic in topics])
        order = list(states)
        outcomes = self._fenced_together([_create_state(tp, states[tp], with_parent=True) for tp in order])
        existing = [tp for tp, outcome in zip(order, outcomes, strict=True) if outcome.error is not None]
        # The partition's node may be there without its state, from an attempt that was cut short.
        again = self._fenced_all([_create_state(tp, states[tp], with_parent=False) for tp in existing])
        refused = {tp: None for tp, outcome in zip(existing, again, strict=True) if outcome.error is not None}
        written = {tp: replace(states[tp], partition_epoch=0) for tp in order if tp not in refused}
        conflicts: dict[TopicPartition, LeadershipState] = {}
        for tp, stored in read_leadership(self._session, refused).items():
            (written if stored == replace(states[tp], partition_epoch=0) else conflicts)[tp] = stored
        return StateUpdates(written, conflicts)

    def update_leadership(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates:
        """Write each state if its znode is at its `partition_epoch`; conflicts get the stored state."""
        order = list(states)
        outcomes = self._fenced_together([_set_state(tp, states[tp]) for tp in order])
        written: dict[TopicPartition, LeadershipState] = {}
        refused = []
        for tp, outcome in zip(order, outcomes, strict=True):
            if outcome.error is None:
                written[tp] = replace(states[tp], partition_epoch=int(outcome.results[0].version))
            elif isinstance(outcome.error, BadVersionError | NoNodeError):
                refused.append(tp)
            else:
                raise outcome.error
        conflicts: dict[TopicPartition, LeadershipState] = {}
        for tp, stored in read_leadership(self._session, refused).items():
            ours = replace(states[tp], partition_epoch=states[tp].partition_epoch + 1)
            (written if stored == ours else conflicts)[tp] = stored
        return StateUpdates(written, conflicts)

    def create_topic(self, name: str, topic: TopicAssignment, config: Mapping[str, str]) -> bool:
        """Write a new topic with its overrides at one stroke; False when it exists already."""
        config_path, topic_path = paths.topic_config(name), paths.topic(name)
        config_data, topic_data = znodes.encode_config(config), znodes.encode_topic(topic)
        with_new_config = Transaction().create(config_path, config_data)
        with_old_config = Transaction().set(config_path, config_data)
        for transaction in (with_new_config, with_old_config):
            transaction.create(topic_path, topic_data)
            outcome = self._fenced_under((paths.TOPIC_CONFIGS, paths.TOPICS), transaction)
            if outcome.error is None:
                return True
            if not isinstance(outcome.error, NodeExistsError):
                raise outcome.error
        # The topic exists; an attempt of ours with a lost answer may have written it.
        topic_node = self._session.attempt(get(topic_path))
        return topic_node.error is None and topic_node.value[0] == topic_data

    def set_topic_assignment(self, name: str, topic: TopicAssignment) -> bool:
        """Replace a topic's assignment if its node is at `topic.version`; else False."""
        return name in self.set_topic_assignments({name: topic})

    def set_topic_assignments(self, topics: Mapping[str, TopicAssignment]) -> set[str]:
        """Replace each assignment whose node is at `version`; returns the names of those topics."""
        nodes = {name: (paths.topic(name), znodes.encode_topic(topic)) for name, topic in topics.items()}
        written = set()
        outcomes = self._fenced_all(
            [Transaction().set(path, data, topics[name].version) for name, (path, data) in nodes.items()]
        )
        for (name, (path, data)), outcome in zip(nodes.items(), outcomes, strict=True):
            if outcome.error is None or self._was_written(
                path, data, topics[name].version + 1, outcome.error
            ):
                written.add(name)
        return written

    def _was_written(self, path: str, data: bytes, version: int, error: KazooException) -> bool:
        """Whether a refused write is that of an earlier attempt, whose answer was lost."""
        if not isinstance(error, BadVersionError | NoNodeError):
            raise error
        present = self._session.attempt(get(path))
        return present.error is None and (present.value[0], present.value[1].version) == (data, version)

    def end_preferred_elections(self) -> None:
        self._delete([paths.PREFERRED_ELECTION])

    def set_reassignments(self, targets: Mapping[TopicPartition, Collection[int]], version: int) -> None:
        """Replace the requested reassignments, or remove them if none is left.

        A request that changed since it was read at ``version`` stays; its watch has fired. -1 is any version.
        """
        path = paths.REASSIGNMENTS
        data = admin_requests.encode_reassignments(targets)
        write = Transaction().set(path, data, version) if targets else Transaction().delete(path, version)
        error = self._fenced(write).error
        if error is not None and not isinstance(error, BadVersionError | NoNodeError):
            raise error

    def request_deletion(self, topic: str, topic_id: TopicId = NO_TOPIC_ID) -> bool:
        """Ask for a topic's deletion, or only for that of the topic with an id.

        False when a deletion of a topic of that name had been asked for already.
        """
        data = admin_requests.encode_deletion(topic_id)
        create = Transaction().create(paths.delete_topic(topic), data)
        outcome = self._fenced_under([paths.DELETE_TOPICS], create)
        if outcome.error is None:
            return True
        if isinstance(outcome.error, NodeExistsError):
            return outcome.retried
        raise outcome.error

    def delete_topic(self, topic: str) -> None:
        """Remove all of a topic: its overrides, its tree, and last the request to delete it.

        If this controller ends in between, the next one repeats the removal, unless the topic's node is gone:
        then it only clears the request. So nothing else may be left by then.
        """
        self._delete_tree(paths.topic_config(topic))
        self._delete_tree(paths.topic(topic))
        self.clear_deletion_requests([topic])

    def clear_deletion_requests(self, topics: Iterable[str]) -> None:
        self._delete([paths.delete_topic(topic) for topic in topics])

    def delete_notifications(self, notifications: Iterable[str]) -> None:
        """Delete notifications of changed ISRs or failed log dirs, which are given by their paths."""
        self._delete(list(notifications))

    def check(self) -> None:
        """Raises ControllerMoved if the epoch has moved on, so that later writes would be refused."""
        self._fenced(Transaction())

    def resign(self) -> None:
        """Give ``/controller`` back, so that the next election starts at once."""
        self._delete([paths.CONTROLLER])

    def _delete_tree(self, root: str) -> None:
        retry_cas(
            lambda: self._delete_listed(root) or None,
            f"{root} gets new children faster than they can be removed",
        )

    def _delete_listed(self, root: str) -> bool:
        """Remove the nodes that are listed now; False if others were added meanwhile."""
        levels = [[root]]
        while levels[-1]:
            listed = self._session.run_all([get_children(path) for path in levels[-1]])
            levels.append(
                [
                    f"{parent}/{child}"
                    for parent, outcome in zip(levels[-1], listed, strict=True)
                    if not isinstance(outcome.error, NoNodeError)
                    for child in outcome.get()
                ]
            )
        return not any(self._delete_each(level) for level in reversed(levels))

    def _delete(self, paths_to_delete: Sequence[str]) -> None:
        for path in self._delete_each(paths_to_delete):
            # Created by hand, because brokers do not create children there.
            log.warning("%s has children, which are deleted too", path)
            self._delete_tree(path)

    def _delete_each(self, paths_to_delete: Sequence[str]) -> list[str]:
        """Remove these nodes; returns the nodes that remain because they have children."""
        remaining = []
        outcomes = self._fenced_together([Transaction().delete(path) for path in paths_to_delete])
        for path, outcome in zip(paths_to_delete, outcomes, strict=True):
            if isinstance(outcome.error, NotEmptyError):
                remaining.append(path)
            elif outcome.error is not None and not isinstance(outcome.error, NoNodeError):
                raise outcome.error
        return remaining

    def _fenced(self, write: Transaction) -> FencedOutcome:
        return self._fenced_all([write])[0]

    def _fenced_under(self, parents: Sequence[str], write: Transaction) -> FencedOutcome:
        """A `_fenced` write under parent nodes that every cluster has; creates a parent that is missing."""
        outcome = self._fenced(write)
        if isinstance(outcome.error, NoNodeError):
            recreate(self._session, parents)
            outcome = self._fenced(write)
        return outcome

    def _fenced_all(self, writes: Sequence[Transaction]) -> list[FencedOutcome]:
        """One transaction each. Raises ControllerMoved when the epoch has moved on."""
        outcomes = []
        is_ours = Transaction().check(paths.CONTROLLER_EPOCH, self._epoch_version)
        for outcome in self._session.run_all([Transaction(is_ours, write) for write in writes]):
            results = outcome.get()
            if isinstance(results[0], BadVersionError | NoNodeError):
                raise ControllerMoved(f"controller epoch {self.epoch} was superseded")
            outcomes.append(FencedOutcome(results[1:], first_error(results), outcome.retried))
        return outcomes

    def _fenced_together(self, writes: Sequence[Transaction]) -> list[FencedOutcome]:
        """As `_fenced_all`, with many small writes in one transaction; one of a refused one is made alone.

        A transaction costs the library as much for one write as for twenty.
        """
        chunks = [writes[first : first + _WRITES_AT_ONCE] for first in range(0, len(writes), _WRITES_AT_ONCE)]
        together = self._fenced_all([Transaction(*chunk) for chunk in chunks])
        outcomes: list[FencedOutcome] = []
        for chunk, outcome in zip(chunks, together, strict=True):
            if outcome.error is not None:
                outcomes += self._fenced_all(chunk)
                continue
            results = iter(outcome.results)
            each = [list(islice(results, len(write))) for write in chunk]
            outcomes += [FencedOutcome(its, None, outcome.retried) for its in each]
        return outcomes


def _create_state(tp: TopicPartition, state: LeadershipState, *, with_parent: bool) -> Transaction:
    parent = Transaction().create(paths.partition(tp), b"") if with_parent else Transaction()
    return parent.create(paths.leadership(tp), znodes.encode_leadership(state))


def _set_state(tp: TopicPartition, state: LeadershipState) -> Transaction:
    return Transaction().set(paths.leadership(tp), znodes.encode_leadership(state), state.partition_epoch)
