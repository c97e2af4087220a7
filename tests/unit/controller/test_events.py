import pytest

from barnabas.controller import events
from barnabas.controller.events import EventQueue, EventQueueFull, Signal
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch


def suspected(broker: int) -> events.BrokerSuspected:
    return events.BrokerSuspected(ControllerEpoch(1), BrokerId(broker), BrokerEpoch(1))


def test_events_come_in_order_and_each_look_again_once() -> None:
    queue = EventQueue()
    for event in (
        Signal.BROKER_CHANGE,
        suspected(1),
        Signal.BROKER_CHANGE,
        Signal.TOPIC_CHANGE,
        suspected(1),
    ):
        queue.put(event)
    taken = [queue.take() for _ in range(4)]
    assert taken == [Signal.BROKER_CHANGE, suspected(1), Signal.TOPIC_CHANGE, suspected(1)]
    queue.put(Signal.BROKER_CHANGE)
    assert len(queue) == 1


def test_a_full_queue_refuses_but_still_takes_a_look_again() -> None:
    queue = EventQueue(capacity=2)
    queue.put(suspected(1))
    queue.put(suspected(2))
    with pytest.raises(EventQueueFull, match="2 events wait"):
        queue.put(suspected(3))
    queue.put(Signal.BROKER_CHANGE)
    assert len(queue) == 3


def test_closing_hands_back_what_waited_and_takes_no_more() -> None:
    queue = EventQueue()
    queue.put(suspected(1))
    assert queue.close() == [suspected(1)]
    queue.put(suspected(2))
    assert (len(queue), queue.take()) == (0, None)
