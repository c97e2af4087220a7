import itertools

import pytest

from barnabas.controller.context import IllegalTransition, PartitionState, Replica, ReplicaState
from barnabas.controller.partition_state import PARTITION_MOVES
from barnabas.controller.replica_state import REPLICA_MOVES
from barnabas.protocol.ids import BrokerId
from tests.support.controller_fakes import T0, Cluster

REPLICA = Replica(T0, BrokerId(1))


@pytest.mark.parametrize(("start", "target"), list(itertools.product(PartitionState, repeat=2)))
def test_a_partition_moves_as_the_table_says_or_not_at_all(
    cluster: Cluster, start: PartitionState, target: PartitionState
) -> None:
    context, machine = cluster.term.context, cluster.term.partitions
    context.partition_states[T0] = start
    if start is PartitionState.NON_EXISTENT:
        del context.partition_states[T0]
    if start is PartitionState.NEW:
        cluster.zookeeper.states.clear()
    before = (dict(context.partition_states), dict(context.leadership), dict(cluster.zookeeper.states))
    if target in PARTITION_MOVES[start]:
        machine.move([T0], target)
        assert context.partition_state(T0) is target
    else:
        with pytest.raises(IllegalTransition, match="partition t-0 cannot go from"):
            machine.move([T0], target)
        after = (dict(context.partition_states), dict(context.leadership), dict(cluster.zookeeper.states))
        assert after == before


@pytest.mark.parametrize(("start", "target"), list(itertools.product(ReplicaState, repeat=2)))
def test_a_replica_moves_as_the_table_says_or_not_at_all(
    cluster: Cluster, start: ReplicaState, target: ReplicaState
) -> None:
    context, machine = cluster.term.context, cluster.term.replicas
    context.replica_states[REPLICA] = start
    if start is ReplicaState.NON_EXISTENT:
        del context.replica_states[REPLICA]
    before = (dict(context.replica_states), dict(cluster.zookeeper.states))
    if target in REPLICA_MOVES[start]:
        machine.move([REPLICA], target)
        assert context.replica_state(REPLICA) is target
    else:
        with pytest.raises(IllegalTransition, match="replica t-0@1 cannot go from"):
            machine.move([REPLICA], target)
        assert (dict(context.replica_states), dict(cluster.zookeeper.states)) == before
