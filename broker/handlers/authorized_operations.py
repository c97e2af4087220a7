"""The operations that a client may do, as the bit fields of Metadata and DescribeCluster (KIP-430).

Without an authorizer every client may do everything, and Kafka then sets the bit of every operation of the
kind of resource. Bit numbers are the codes of `org.apache.kafka.common.acl.AclOperation`.
"""

from __future__ import annotations

from typing import Final

_READ: Final = 1 << 3
_WRITE: Final = 1 << 4
_CREATE: Final = 1 << 5
_DELETE: Final = 1 << 6
_ALTER: Final = 1 << 7
_DESCRIBE: Final = 1 << 8
_CLUSTER_ACTION: Final = 1 << 9
_CONFIGS: Final = 1 << 10 | 1 << 11
"""Describe and alter."""
_IDEMPOTENT_WRITE: Final = 1 << 12

GROUP_OPERATIONS: Final = _READ | _DELETE | _DESCRIBE
TOPIC_OPERATIONS: Final = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
CLUSTER_OPERATIONS: Final = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _CONFIGS | _IDEMPOTENT_WRITE
