"""Idempotent producers in the random histories: five batches in flight, lost answers, resent batches.

The client here is worse than real ones: its requests arrive in any order and any number of times, even long
after an answer, at any broker that believes it leads. In one thing it is better: its first batch travels
alone. A leader that does not know a producer accepts any sequence, as in Kafka, because the producer's
records may have been deleted; so the second batch might overtake the first when the leader changes.
"""

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, Offset
from barnabas.protocol.messages.produce import PartitionProduceResponse
from tests.simulation.chaos import Chaos
from tests.simulation.disk import encode
from tests.simulation.world import World
from tests.support.memory_log import idempotent

IN_FLIGHT = 5
_CLIENT = BrokerId(-2)
_TIMEOUT_MS = 3_000
_ROUNDS = 20


class IdempotentProducer:
    """Writes one record per batch, and sends each batch again until it is acknowledged."""

    def __init__(self, world: World, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sent = 0
        self.unanswered: list[int] = []
        self._world = world

    def send_next(self, broker: BrokerId, *, is_answer_lost: bool) -> None:
        first = self.unanswered[0] if self.unanswered else self.sent
        if self.sent - first < IN_FLIGHT and 0 not in self.unanswered:
            self.unanswered.append(self.sent)
            self.sent += 1
            self._send(broker, self.unanswered[-1], is_answer_lost)

    def send_again(self, broker: BrokerId, *, is_answer_lost: bool = False) -> None:
        """Send all unanswered batches again, in order."""
        for sequence in self.unanswered:
            self._send(broker, sequence, is_answer_lost)

    def _send(self, broker: BrokerId, sequence: int, is_answer_lost: bool) -> None:
        target, value = self._world.brokers[broker], idempotent(self.producer_id, sequence)

        def answer(outcomes: list[PartitionProduceResponse]) -> None:
            if outcomes[0].error_code != ErrorCode.NONE:
                return
            self._world.truth.acknowledged(
                Offset(outcomes[0].base_offset), [value], self._world.min_insync_replicas
            )
            if not is_answer_lost and sequence in self.unanswered:
                self.unanswered.remove(sequence)

        def arrive() -> None:
            target.replicas.append(-1, _TIMEOUT_MS, [(self._world.tp, encode(value))], answer)
            target.replicas.wake_followers()

        self._world.send(_CLIENT, broker, arrive)


class IdempotentChaos(Chaos):
    """A history with two idempotent producers besides the ordinary steps."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.producers = [IdempotentProducer(self.world, number) for number in (1, 2)]
        for name, weight in (("send_next", 14.0), ("send_again", 4.0)):
            self._names.append(name)
            self._weights.append(weight)

    def run(self) -> None:
        """Run like `Chaos.run`; afterwards, without faults, every batch must be acknowledged."""
        super().run()
        for _ in range(_ROUNDS):
            for producer in self.producers:
                producer.send_again(self.world.state.leader)
            self.world.settle()
            if not any(producer.unanswered for producer in self.producers):
                break
        for producer in self.producers:
            assert producer.unanswered == [], f"producer {producer.producer_id} has no answer"
            committed = self.world.truth.sequences.get(producer.producer_id, 0)
            assert committed == producer.sent, f"{committed} of {producer.sent} batches are committed"

    def send_next(self) -> None:
        producer = self.random.choice(self.producers)
        producer.send_next(self._leader(self.world.tp), is_answer_lost=self.random.random() < 0.2)

    def send_again(self) -> None:
        producer = self.random.choice(self.producers)
        producer.send_again(self._leader(self.world.tp), is_answer_lost=self.random.random() < 0.2)

    def retain(self) -> None:
        """Keep each producer's last batches: a replica that starts after them would not know it."""
        broker = self._any()
        log, partition = broker.log, broker.partition
        kept: dict[int, list[int]] = {}
        for offset, entry in enumerate(self.world.truth.committed):
            if (producer := entry.producer) is not None:
                kept.setdefault(producer[0], []).append(offset)
        first = min((offsets[-IN_FLIGHT:][0] for offsets in kept.values()), default=1 << 60)
        if broker.can_act and log is not None and partition is not None:
            end = min(partition.high_watermark, first)
            if end > log.log_start_offset:
                with broker.disk_errors():
                    log.increment_log_start_offset(Offset(self.random.randint(log.log_start_offset, end)))
