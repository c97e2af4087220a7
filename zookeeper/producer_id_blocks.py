"""Claiming blocks of producer ids in ZooKeeper: one znode that every broker moves on by compare-and-set.

Any broker may claim a block; each block has only one claim, ever. The ids of a claim whose answer was lost
stay unused. Source: `ProducerIdBlockZNode` of Apache Kafka 3.9, whose brokers share the node with ours.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.session import ZooKeeperSession, ZooKeeperUnavailable

log = logging.getLogger("barnabas.controller")

BLOCK_SIZE: Final = 1_000
_LARGEST_ID: Final = (1 << 63) - 1
_ROUNDS: Final = 100


def claim_producer_ids(session: ZooKeeperSession, broker: BrokerId) -> range:
    """The next block, this broker's alone from now on. Blocks, at most a session timeout for each round.

    Raises ZooKeeperUnavailable (also when others were faster a hundred times), SessionLost, MalformedZnode.
    """
    path = paths.PRODUCER_ID_BLOCK
    for _ in range(_ROUNDS):
        found = session.attempt(lambda zk: zk.get_async(path))
        if isinstance(found.error, NoNodeError):
            # Without data, as Kafka makes it, so that there is one way only to claim.
            made = session.attempt(lambda zk: zk.create_async(path, b""))
            if made.error is not None and not isinstance(made.error, NodeExistsError):
                raise made.error
            continue
        data, stat = found.get()
        first = znodes.decode_producer_id_block(path, data).stop if data else 0
        if first > _LARGEST_ID - BLOCK_SIZE:
            raise LocalError(f"all producer ids are given; {path} holds {data!r}")
        block = range(first, first + BLOCK_SIZE)
        fresh = znodes.encode_producer_id_block(broker, block)
        claimed = session.attempt(partial(_set, fresh=fresh, version=stat.version))
        if claimed.error is None:
            log.info("broker %d has the producer ids %d to %d", broker, block.start, block.stop - 1)
            return block
        if not isinstance(claimed.error, BadVersionError | NoNodeError):
            raise claimed.error
    raise ZooKeeperUnavailable(f"{path}: others were faster {_ROUNDS} times")


def _set(zk: Any, *, fresh: bytes, version: int) -> Any:
    return zk.set_async(paths.PRODUCER_ID_BLOCK, fresh, version)
