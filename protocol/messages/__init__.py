"""Every request and response, declared once; one module per API family.

Importing this package fills `barnabas.protocol.schema.APIS`.
"""

from barnabas.protocol.messages import (  # noqa: F401 - for APIS
    api_versions,
    configs,
    delete_records,
    describe_cluster,
    describe_replicas,
    fetch,
    find_coordinator,
    groups,
    init_producer_id,
    inter_broker,
    join_group,
    leader_epoch,
    list_offsets,
    log_dirs,
    metadata,
    offsets,
    partitions,
    produce,
    topics,
)
