"""The brain of the cluster: ZooKeeper paths, elections, state machines, topic work.

What the composition root of a broker uses::

    store = ClusterStore(
        "host:port,host:port/chroot", session_timeout_ms=18_000, connection_timeout_ms=18_000,
        on_session_event=callback, on_fatal=callback)
    store.start()                              # ZooKeeperUnavailable when it cannot be reached in time
    store.cluster_id()                         # read, or made by the first broker
    broker_epoch = store.register_broker(BrokerRegistration(...))     # BrokerIdTaken
    controller = Controller(broker_id, store, settings=ControllerSettings(...), on_fatal=callback)
    controller.start(); controller.stop()
    controller.is_active, .epoch, .offline_partitions_count, .active_broker_id
    controller.controlled_shutdown(broker_id, broker_epoch, done)     # done(ErrorCode, [TopicPartition])
    topics = TopicAdmin(store, controller, settings=TopicSettings(...), validate_config=callback)
    topics.create_topics([CreatableTopic], validate_only=False) -> [TopicResult]
    topics.delete_topics([DeleteTopicState]) -> [TopicResult]
    store.close()

Session events (`SessionEvent`) come in order on one thread of the store's, where blocking is allowed:
SUSPENDED (no connection; go on), then RESUMED (same session, nothing is lost) or SILENT (nothing heard for
a whole session timeout: others may take us for dead, so fence) and later RESUMED or EXPIRED (the ephemeral
nodes are gone) and RENEWED (a new session: call `register_broker` again). The controller listens by itself,
always after the callback given here has returned: it stands for election with the new registration in place.

A dead process is seen at once, without waiting for its session: the controller sees a broker's by its channel
(`channels`), the other brokers see the controller's by the sentinel.

Leaders change their ISR through the store, of which they see this much::

    update_isr(tp, leader, leader_epoch, controller_epoch, isr, expected_partition_epoch, joining) -> int
        # the new partition epoch; PartitionStateConflict (with .current) when the version differs;
        # ReplicaNotRegistered when a broker in ``joining`` has begun another life than the epoch given
    notify_isr_change([tp])
"""
