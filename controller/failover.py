"""The failover to a new controller: `on_controller_failover`, as Apache Kafka calls it.

Its steps come in this order so that no change is missed (watches are set before their nodes are read)
and that new leaders are announced before anything waits. Each step may be repeated by the next controller.
A controller that ends in between leaves nothing half done: what it wrote is read by the next one in steps 2
to 5, and what it did not send is sent in steps 7 to 10.

Runs on the controller's event thread, once, before the term's first event.
"""

from __future__ import annotations

from barnabas.controller.context import Replica, ReplicaState
from barnabas.controller.events import Signal
from barnabas.controller.term import ControllerTerm


def on_controller_failover(term: ControllerTerm) -> None:
    """Take over from the former controller. Any write raises ControllerMoved if another was elected."""
    context, store = term.context, term.store
    # 1. The election has raised /controller_epoch, which fences the former controller (`ControllerElection`).

    # 2. Read the brokers, and begin to connect to them: TLS and SASL take a while, and the next steps do not
    #    need the connections. The former controller may still be registered, although its death began this
    #    term.
    context.registrations = store.brokers(term.watch_brokers)
    context.suspected = {
        broker
        for broker, registration in context.registrations.items()
        if term.is_dead(broker, registration.broker_epoch) or term.endpoint(broker) is None
    }
    for broker in context.registrations:
        term.connect(broker)

    # 3. Read the notifications of changed ISRs, which step 5 reads, and of failed log dirs: the answers to
    #    step 8 name the failed replicas.
    isr_changes = store.isr_changes(term.watch(Signal.ISR_CHANGE_NOTIFICATION))
    log_dir_failures = store.log_dir_failures(term.watch(Signal.LOG_DIR_EVENT_NOTIFICATION))

    # 4. Read the requests to delete topics.
    deletions = store.deletion_requests(term.watch(Signal.TOPIC_DELETION))

    # 5. Read the topics: assignments, settings, leaders and ISRs. Now the context is complete.
    term.topics.load(store.topics(term.watch(Signal.TOPIC_CHANGE)))
    term.writer.delete_notifications([*isr_changes, *log_dir_failures])
    _log_loaded(term)

    # 6. Start the state machines of replicas and partitions.
    term.replicas.startup()
    term.partitions.startup()
    term.deletion.request(deletions)

    # 7. Announce the controller and the live brokers.
    live = context.live_or_shutting_down
    term.batch.add_metadata(live, [])
    term.flush()

    # 8. Treat all live brokers as new: elect missing leaders and send them everything. A broker may still
    #    host replicas whose StopReplica it never got, or wait for the first request to its registration.
    term.on_broker_startup(live)
    down = [replica for replica in context.replicas() if replica.broker not in live]
    term.flush_before_isrs(down)

    # 9. Remove from the ISRs dead brokers, and those that restarted meanwhile; these rejoin by fetching.
    term.replicas.move(context.without_deleted(down), ReplicaState.OFFLINE)
    bounced = context.without_deleted(
        Replica(tp, broker) for tp, state in context.leadership.items() for broker in context.bounced(state)
    )
    term.replicas.leave_isr(bounced)
    term.replicas.move(bounced, ReplicaState.ONLINE)

    # 10. Resume deletions and reassignments, and watch and carry out what operators have requested.
    term.deletion.resume()
    term.reassignments.resume(context.partitions())
    term.reassignments.take_request()
    term.elections.take_request()
    term.flush()

    # 11. `Controller` starts the timer of the automatic elections of preferred leaders.


def _log_loaded(term: ControllerTerm) -> None:
    context = term.context
    term.log.info(
        "loaded brokers %s (dead: %s) and %d partitions of %d topics",
        sorted(context.registrations),
        sorted(context.suspected) or "none",
        sum(map(len, context.assignments.values())),
        len(context.assignments),
    )
