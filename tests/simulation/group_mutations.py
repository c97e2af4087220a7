"""Known mistakes of a group coordinator, each put into the code on purpose: the simulation must find all.

As `mutations`: a function that takes `setattr` (a monkeypatch's) and replaces one rule by its wrong form.
"""

from __future__ import annotations

from typing import Any

from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_effects import Effects
from barnabas.broker.coordinators.members import Member, Members
from barnabas.broker.coordinators.offsets import CommittedOffsets
from barnabas.broker.coordinators.rebalance import Rebalance
from barnabas.protocol.errors import ErrorCode
from tests.simulation.mutations import Mutation, SetAttr


def assignments_are_handed_out_before_they_are_stored(setattr_: SetAttr) -> None:
    sync = Group.sync

    def hasty(self: Group, request: Any, token: Any, now: Any) -> Effects:
        effects = sync(self, request, token, now)
        if self._core.assignment_append is not None:
            purpose: Any = self._core.under_way[self._core.assignment_append]
            self._core.hand_out(purpose.assignment, now)
            effects.answers += self._core.take_effects().answers
        return effects

    setattr_(Group, "sync", hasty)


def a_leader_that_asks_again_may_assign_again(setattr_: SetAttr) -> None:
    sync = Group.sync

    def forgetful(self: Group, request: Any, token: Any, now: Any) -> Effects:
        self._core.assignment_append = None
        return sync(self, request, token, now)

    setattr_(Group, "sync", forgetful)


def commits_of_any_generation_are_taken(setattr_: SetAttr) -> None:
    def credulous(self: Group, commit: Any) -> ErrorCode:
        return self._core.member_error(commit.member_id, commit.instance_id)

    setattr_(Group, "_commit_error", credulous)


def outcomes_of_earlier_generations_count(setattr_: SetAttr) -> None:
    assigned = Group._assigned

    def confused(self: Group, purpose: Any, error: ErrorCode, now: Any) -> None:
        assigned(self, purpose._replace(generation_id=self.generation_id), error, now)

    setattr_(Group, "_assigned", confused)


def instances_are_not_fenced(setattr_: SetAttr) -> None:
    def trusting(self: Rebalance, member_id: str, instance_id: str | None) -> ErrorCode:
        holder = self.members.id_of_instance(instance_id) if instance_id is not None else member_id
        if holder is None or holder not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    setattr_(Rebalance, "member_error", trusting)


def a_request_given_up_is_forgotten(setattr_: SetAttr) -> None:
    def careless(self: Rebalance, member: Member, token: Any) -> None:
        self.members.set_join_token(member, token)

    setattr_(Rebalance, "wait_for_join", careless)


def sessions_never_end(setattr_: SetAttr) -> None:
    setattr_(Member, "deadline_ms", property(lambda self: float("inf")))


def the_leader_need_not_have_joined(setattr_: SetAttr) -> None:
    setattr_(Members, "elect_joined_leader", lambda self: self.leader_id is not None)


def later_commits_may_be_overtaken(setattr_: SetAttr) -> None:
    def put(self: CommittedOffsets, partition: Any, committed: Any) -> None:
        self._committed[partition] = committed

    setattr_(CommittedOffsets, "_put", put)


MUTATIONS: list[Mutation] = [
    assignments_are_handed_out_before_they_are_stored,
    a_leader_that_asks_again_may_assign_again,
    commits_of_any_generation_are_taken,
    outcomes_of_earlier_generations_count,
    instances_are_not_fenced,
    a_request_given_up_is_forgotten,
    sessions_never_end,
    the_leader_need_not_have_joined,
    later_commits_may_be_overtaken,
]
