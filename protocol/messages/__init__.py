"""Every request and response, declared once; one module per API family.

Importing this package fills `barnabas.protocol.schema.APIS`.
"""

from barnabas.protocol.messages import (  # noqa: F401 - for APIS
    acls,
    api_versions,
    authentication,
    client_quotas,
    configs,
    delete_records,
    describe_transactions,
    elections,
    features,
    fetch,
    find_coordinator,
    groups,
    inter_broker,
    leader_epoch,
    leader_hint,
    list_offsets,
    metadata,
    offsets,
    produce,
    reassignments,
    replicas,
    topics,
    transactions,
)
