"""Steps of histories that are written by hand."""

import random
from typing import Any

from barnabas.protocol.ids import BrokerId
from tests.simulation.channels import SimChannels
from tests.simulation.ends import heal
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


def kill(world: World, broker: BrokerId) -> None:
    """A process is killed, and the controller notices at once."""
    world.brokers[broker].crash()
    world.suspect(broker)
    run_controllers(world)


def lose_power(world: World, *brokers: BrokerId) -> None:
    """A power cut takes all bytes that were not flushed, and the controller notices."""
    for broker in brokers:
        world.brokers[broker].crash(power_loss=_TakesAll())
        world.expire(broker)
    run_controllers(world)


class _TakesAll(random.Random):
    """The draws of a power cut that keeps what was flushed, and the epochs as the process left them."""

    def choice(self, outcomes: Any) -> Any:
        return outcomes[0]

    def randint(self, least: int, most: int) -> int:
        return least

    def random(self) -> float:
        return 1.0


def restart_with_an_empty_disk(world: World, broker: BrokerId) -> None:
    """A broker restarts without its disk; the controller has not noticed yet."""
    world.brokers[broker].crash()
    world.brokers[broker].wipe()
    world.brokers[broker].start()


def run_controllers(world: World) -> None:
    while world.control():
        world.check()


def deliver_control(world: World, channels: SimChannels, broker: BrokerId) -> None:
    """Deliver the requests of any controller to a broker."""
    while world.deliver_control(channels, broker):
        world.check()


def deliver_requests(world: World, *brokers: BrokerId) -> None:
    """Deliver the latest controller's requests to these brokers."""
    for broker in brokers:
        deliver_control(world, world.channels[-1], broker)


def read_committed(world: World, broker: BrokerId) -> list[int | bytes | None]:
    """The values that a consumer with read_committed sees from the beginning on."""
    values, offset, end = [], 0, world.truth.acknowledged_end
    while offset < end:
        read = world.consume(broker, offset, is_read_committed=True)
        assert read is not None
        offset, records = read
        values += [entry.value for _, entry in records]
    return values


def heal_and_settle(world: World, committed: list[int] | None = None) -> None:
    """End all faults; then the records with these values are committed, if they are given."""
    heal(world)
    world.settle()
    if committed is not None:
        assert [entry.value for entry in world.truth.committed] == committed


def remove_from_isr(world: World, *followers: BrokerId) -> None:
    """The leader, broker 1, removes these followers from the ISR: they miss a record and lag too long."""
    others = [broker for broker in world.brokers if broker not in (A, *followers)]
    world.produce(A, acks=1)
    replicate(world, *others)
    world.advance(MAX_LAG_MS + 1)
    replicate(world, *others)
    world.shrink(A)
    world.work_off(A)
    assert set(world.state.isr) == {A, *others}


def world_with_a_record(brokers: int = 3, min_insync_replicas: int = 2) -> World:
    """All replicas have one record, number 0."""
    world = World(brokers, min_insync_replicas)
    world.produce(A)
    world.settle()
    return world


def world_with_a_pending_expansion() -> World:
    """Broker 3 left the ISR and has caught up again; the expansion waits to be written to ZooKeeper."""
    world = world_with_a_record(3, min_insync_replicas=1)
    remove_from_isr(world, C)
    replicate(world, C)
    replicate(world, C)
    assert world.brokers[A].partition.isr.joining
    return world
