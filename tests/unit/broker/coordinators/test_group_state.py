"""The table of a group's states."""

from __future__ import annotations

import pytest

from barnabas.broker.coordinators.rebalance import NEXT_STATES, GroupState, IllegalTransition, moved


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("target", GroupState)
def test_a_move_is_in_the_table_or_raises(state: GroupState, target: GroupState) -> None:
    if target in NEXT_STATES[state]:
        assert moved("g", state, target) is target
    else:
        with pytest.raises(IllegalTransition, match=f"'g' cannot go from {state.value} to {target.value}"):
            moved("g", state, target)


def test_the_table_is_kafkas() -> None:
    # As the sets of previous states in Kafka's coordinator, turned round; there Dead may die again.
    previous = {
        GroupState.EMPTY: {"PreparingRebalance"},
        GroupState.PREPARING_REBALANCE: {"Stable", "CompletingRebalance", "Empty"},
        GroupState.COMPLETING_REBALANCE: {"PreparingRebalance"},
        GroupState.STABLE: {"CompletingRebalance"},
        GroupState.DEAD: {"Stable", "PreparingRebalance", "CompletingRebalance", "Empty"},
    }
    for target, names in previous.items():
        assert {state.value for state in GroupState if target in NEXT_STATES[state]} == names
