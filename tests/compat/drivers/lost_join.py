"""The reminder that kafka-python needs of a join that it forgot; for drivers and tests alike."""

from typing import Any


def recall_lost_join(consumer: Any) -> None:
    """Remind a kafka-python consumer of a join that it forgot, which its users cannot; between two polls.

    Up to 3.0.12, a join that only new metadata asked for does not set ``rejoin_needed``. When `poll` ends
    between its JoinGroup and its SyncGroup, what the metadata asked for is fulfilled and nothing asks for
    the outcome again: no assignment, and no heartbeat, without end, with any broker (KAFKA-9815 is the
    same in the Java client). Short polls on a busy machine meet it in one of twenty joins.
    """
    coordinator = consumer._coordinator
    if coordinator.rejoining and not coordinator.need_rejoin():
        coordinator.request_rejoin()
