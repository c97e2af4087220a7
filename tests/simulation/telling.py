"""Building blocks of histories that are written step by step."""

from __future__ import annotations

from barnabas.broker.replication.isr import PendingExpand
from barnabas.protocol.ids import BrokerId
from tests.simulation.world import MAX_LAG_MS, World

A, B, C, D = (BrokerId(number) for number in (1, 2, 3, 4))


def replicate(world: World, *followers: BrokerId) -> None:
    """One round trip of a fetch for each of these followers."""
    for follower in followers:
        assert world.fetch(follower)
    while world.deliver():
        world.check()


def fetch_without_answer(world: World, *followers: BrokerId) -> None:
    """The leader learns these followers' log ends; its answers are lost."""
    for follower in followers:
        assert world.fetch(follower)
        assert world.deliver(len(world.messages) - 1)
        world.messages.pop()
        world.brokers[follower].fetchers.lose_answers()
        world.check()


def die(world: World, broker: BrokerId) -> None:
    """A process is killed, and the controller notices at once."""
    world.brokers[broker].crash()
    world.suspect(broker)
    control(world)


def be_reborn(world: World, broker: BrokerId) -> None:
    """A broker loses its disk and restarts; the controller has not noticed yet."""
    world.brokers[broker].crash()
    world.brokers[broker].wipe()
    world.brokers[broker].start()


def control(world: World) -> None:
    while world.control():
        world.check()


def tell(world: World, *brokers: BrokerId) -> None:
    """Deliver the requests of the latest controller to these brokers."""
    for broker in brokers:
        while world.deliver_control(world.channels[-1], broker):
            world.check()


def end(world: World) -> None:
    world.heal()
    world.settle()


def put_out_of_isr(world: World, *followers: BrokerId) -> None:
    """The leader, broker 1, removes these followers from the ISR: they miss a record and lag too long."""
    others = [broker for broker in world.brokers if broker not in (A, *followers)]
    world.produce(A, acks=1)
    replicate(world, *others)
    world.advance(MAX_LAG_MS + 1)
    replicate(world, *others)
    world.shrink(A)
    world.work_off(A)
    assert set(world.state.isr) == {A, *others}


def joining() -> World:
    """Broker 3 left the ISR and has caught up again; the expansion waits to be written to ZooKeeper."""
    world = World(3, min_insync_replicas=1)
    world.produce(A)
    world.settle()
    put_out_of_isr(world, C)
    replicate(world, C)
    replicate(world, C)
    assert isinstance(world.brokers[A].partition.isr, PendingExpand)
    return world
