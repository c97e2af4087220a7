"""The ends of histories: all faults end, or only those of live processes and of links.

The start of a broker makes the controller look at everything again. So an end that starts all brokers hides
what was forgotten. The other end leaves the dead dead, and demands what the living can do without them.
"""

from collections.abc import Callable, Iterator

from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.zookeeper import paths
from tests.simulation.broker import SimBroker
from tests.simulation.truth import Truth
from tests.simulation.world import ROUNDS, World
from tests.support.zookeeper_client import Door


def heal(world: World) -> None:
    """All faults end."""
    _heal_links(world)
    for host in world.hosts.values():
        world.doors[host.id] = Door.OPEN
        host.is_paused = False
        if not host.is_up and not host.is_lost:
            host.start()
        elif host.disk.has_failed:
            host.crash()
            host.start()
        _reach(world, host)
    _deliver_all(world)
    if any(host.is_lost for host in world.hosts.values()):
        _notice_losses(world)
        for host in world.hosts.values():
            if host.is_lost:
                host.is_lost = False
                host.start()
    _heal_topics(world)


def heal_the_living(world: World, may_shrink: Callable[[SimBroker], bool]) -> None:
    """All faults end but those of processes and disks that have failed; raises if the living owe something.

    A process ends if its disk would fail at the next write, because nobody knows when that comes.
    """
    for host in world.hosts.values():
        if host.is_up and host.disk.has_failed and host.disk.logs.has_online_dir:
            host.crash()
    mend_the_living(world)
    if not any(host.is_up for host in world.hosts.values()):
        return
    _heal_topics(world)
    for _ in range(ROUNDS):
        world.take_turns(may_shrink)
        if world.is_idle and next(owed(world), None) is None:
            return
    left = "\n".join(owed(world))
    raise AssertionError(f"the living do not come to rest:\n{left}\n{world.describe()}")


def mend_the_living(world: World) -> None:
    """The links and all live processes work from now on."""
    _heal_links(world)
    for host in world.hosts.values():
        if host.is_up:
            world.doors[host.id] = Door.OPEN
            host.is_paused = False
            _reach(world, host)
    _deliver_all(world)


def _heal_links(world: World) -> None:
    world.cut.clear()
    world.zookeeper.expire_silent(0)


def _reach(world: World, host: SimBroker) -> None:
    host.disk.slow_ms = 0.0
    world.clear_suspicion(host.id)
    # Fetches with lost requests or answers time out.
    host.fetchers.lose_answers()


def _deliver_all(world: World) -> None:
    world.messages += world.held_back
    world.held_back.clear()
    while world.deliver():
        continue
    for channels in world.channels:
        for broker in channels.links:
            channels.time_out(broker)


def _notice_losses(world: World) -> None:
    """The controller removes the lost brokers from the ISRs.

    It cannot while the topic's nodes are unreadable or gone. Such a topic is healed first, unless a whole
    member is still registered as the ISR says: then the controller will elect that one.
    """
    while world.control():
        world.check()
    if not all(truth.is_anybody_trusted for truth in world.truths.values() if truth.lossy):
        _heal_topics(world)
        while world.control():
            world.check()


def _heal_topics(world: World) -> None:
    """Undo the changes by hand."""
    for _ in range(ROUNDS):
        if world.topics is None or world.topics.heal():
            break
        world.take_turns()


# The debts of the living


def owed(world: World) -> Iterator[str]:
    """The work that the living brokers have not done yet, although they need no other broker for it.

    A partition without a living member of its ISR owes nothing. Nor does one with a replica that has lost
    data, because its ISR may not shrink to that one.
    """
    usable = {broker.id for broker in world.brokers.values() if broker.can_act and not broker.disk.has_failed}
    for truth in world.truths.values():
        if not truth.is_hidden and not truth.lossy:
            yield from _owed_by_replicas(world, truth, usable)
    if world.settings is not None:
        behind = (world.settings.behind(world.brokers[broker], is_at_rest=True) for broker in usable)
        yield from filter(None, behind)
    if world.topics is not None:
        yield from _owed_to_operators(world, usable)
        yield from world.topics.left_overs(usable)


def _owed_by_replicas(world: World, truth: Truth, usable: set[BrokerId]) -> Iterator[str]:
    replicas = usable.intersection(world.replicas_of(truth.tp))
    if not truth.has_state:
        # As in Kafka, a reassignment that adds a live replica does not elect the first leader.
        if replicas.intersection(world.assignment_of(truth.tp).origin):
            yield f"{truth.tp} has no state, alive are {sorted(replicas)}"
        return
    state = truth.state
    if not replicas.intersection(state.isr):
        return
    if state.leader not in usable or set(state.isr) != replicas:
        yield f"{truth.tp} has {state}, alive are {sorted(replicas)}"
        return
    marks = set()
    for replica in replicas:
        partition = truth.partition(world.brokers[replica])
        if partition is None or partition.leader_epoch != state.leader_epoch:
            yield f"{truth.tp}: broker {replica} does not know {state}"
            return
        marks |= {partition.high_watermark, partition.log_end_offset}
    least = world.min_insync_replicas_of(world.brokers[state.leader], truth.tp.topic)
    may_commit = not world.is_min_isr_strict or len(state.isr) >= least
    if may_commit and len(marks) > 1:
        yield f"{truth.tp}: the ISR has the high watermarks and ends {sorted(marks)}"


def _owed_to_operators(world: World, usable: set[BrokerId]) -> Iterator[str]:
    """Elections, reassignments whose targets live, and deletions of topics whose replicas all live."""
    topics = world.topics
    assert topics is not None
    nodes = world.zookeeper.nodes
    if paths.PREFERRED_ELECTION in nodes:
        yield f"{paths.PREFERRED_ELECTION} is not carried out"
    for name in topics.names():
        for index, replicas in topics.partitions_of(name).items():
            tp = TopicPartition(name, index)
            has_leader = world.has_state(tp) and world.state_of(tp).leader in usable
            if replicas.is_changing and has_leader and usable.issuperset(replicas.target):
                yield f"the reassignment of {tp} does not end: {replicas}, {world.state_of(tp)}"
    lasting = (each for name in topics.names() for each in topics.partitions_of(name).values())
    if paths.REASSIGNMENTS in nodes and not any(each.is_changing for each in lasting):
        yield f"{paths.REASSIGNMENTS} is not carried out"
    for name in world.zookeeper.children(paths.DELETE_TOPICS):
        assigned = topics.assigned_to(name)
        if usable.issuperset(assigned):
            yield f"{name} is not deleted, although all its replicas live: {sorted(assigned)}"
