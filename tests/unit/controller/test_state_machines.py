import itertools

import pytest

from barnabas.controller.context import IllegalTransition, PartitionState, Replica, ReplicaState
from barnabas.controller.partition_state import PARTITION_MOVES
from barnabas.controller.replica_state import REPLICA_MOVES
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.support.controller_fakes import Cluster

TP = TopicPartition("t", 0)
REPLICA = Replica(TP, BrokerId(1))


def cluster() -> Cluster:
    made = Cluster(1, 2)
    made.zookeeper.add_topic("t", {0: (1, 2)})
    made.elect()
    return made


def test_every_state_has_its_moves() -> None:
    assert set(PARTITION_MOVES) == set(PartitionState)
    assert set(REPLICA_MOVES) == set(ReplicaState)


@pytest.mark.parametrize(("start", "target"), list(itertools.product(PartitionState, repeat=2)))
def test_a_partition_moves_as_the_table_says_or_not_at_all(
    start: PartitionState, target: PartitionState
) -> None:
    made = cluster()
    context, machine = made.term.context, made.term._partitions
    context.partition_states[TP] = start
    if start is PartitionState.NON_EXISTENT:
        del context.partition_states[TP]
    if start is PartitionState.NEW:
        made.zookeeper.states.clear()
    before = (dict(context.partition_states), dict(context.leadership), dict(made.zookeeper.states))
    if target in PARTITION_MOVES[start]:
        machine.move([TP], target)
        assert context.partition_state(TP) is target
    else:
        with pytest.raises(IllegalTransition, match="partition t-0 cannot go from"):
            machine.move([TP], target)
        after = (dict(context.partition_states), dict(context.leadership), dict(made.zookeeper.states))
        assert after == before


@pytest.mark.parametrize(("start", "target"), list(itertools.product(ReplicaState, repeat=2)))
def test_a_replica_moves_as_the_table_says_or_not_at_all(start: ReplicaState, target: ReplicaState) -> None:
    made = cluster()
    context, machine = made.term.context, made.term._replicas
    context.replica_states[REPLICA] = start
    if start is ReplicaState.NON_EXISTENT:
        del context.replica_states[REPLICA]
    before = (dict(context.replica_states), dict(made.zookeeper.states))
    if target in REPLICA_MOVES[start]:
        machine.move([REPLICA], target)
        assert context.replica_state(REPLICA) is target
    else:
        with pytest.raises(IllegalTransition, match="replica t-0@1 cannot go from"):
            machine.move([REPLICA], target)
        assert (dict(context.replica_states), dict(made.zookeeper.states)) == before


def test_one_illegal_move_keeps_all_the_others_back() -> None:
    made = cluster()
    made.zookeeper.add_topic("u", {0: (1, 2)})
    other = TopicPartition("u", 0)
    with pytest.raises(IllegalTransition):
        made.term._partitions.move([TP, other], PartitionState.OFFLINE)
    assert made.term.context.partition_state(TP) is PartitionState.ONLINE
