"""A transactional producer in a driver, and the commands around it; see `stdio`."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from stdio import Command, by_name, settled

TIMEOUT_S = 45.0
Outcome = Awaitable[None] | None
Places = list[dict[str, Any]]


class Transactions(ABC):
    """A transactional producer, called as the client's manual says. Methods may return awaitables."""

    @abstractmethod
    def begin(self) -> Outcome:
        """Begin a transaction; the first time also get the producer's id."""

    @abstractmethod
    def send(self, records: list[dict[str, Any]]) -> Awaitable[Places] | Places:
        """Write records, and wait for each: its place, or its error, as ``produce`` returns them.

        An empty list if the client reports them with the commit alone.
        """

    @abstractmethod
    def send_offsets(self, group: str, topic: str, offsets: dict[int, int], member: object) -> Outcome:
        """Add a group's offsets; ``member`` is None or what the client's consumer gave for its generation."""

    @abstractmethod
    def commit(self) -> Outcome | Places:
        """Commit the transaction; the places of records that `send` did not know."""

    @abstractmethod
    def abort(self) -> Outcome:
        """Abort the transaction."""

    @abstractmethod
    def close(self) -> Outcome:
        """Give up the producer, also one that was fenced or has an open transaction."""


def transaction_commands(
    make: Callable[[str, str, int], Transactions], metadata_of_member: Callable[[], object]
) -> dict[str, Command]:
    """The commands around producers, which `make` makes of bootstrap, transactional id and timeout.

    ``metadata_of_member`` returns the group metadata that ``member_keep`` kept last.
    """
    current: dict[str, Transactions] = {}

    async def txn_start(bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        """A coroutine, because a client may need the driver's loop when it is made."""
        current["one"] = make(bootstrap, transactional_id, timeout_ms)

    async def txn_begin() -> None:
        await settled(current["one"].begin())

    async def txn_send(records: list[dict[str, Any]]) -> Places:
        return list(await settled(current["one"].send(records)))

    async def txn_offsets(group: str, topic: str, offsets: dict[str, int], as_member: bool = False) -> None:
        member = metadata_of_member() if as_member else None
        positions = {int(partition): offset for partition, offset in offsets.items()}
        await settled(current["one"].send_offsets(group, topic, positions, member))

    async def txn_commit() -> Places:
        return await settled(current["one"].commit()) or []

    async def txn_abort() -> None:
        await settled(current["one"].abort())

    async def txn_close() -> None:
        if current:
            await settled(current.pop("one").close())

    return by_name(txn_start, txn_begin, txn_send, txn_offsets, txn_commit, txn_abort, txn_close)
