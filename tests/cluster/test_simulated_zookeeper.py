"""The simulation's ZooKeeper behaves as a real one, in the operations that this project uses."""

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from barnabas.zookeeper.multi_read import Client
from tests.support.waiting import wait_for
from tests.support.zookeeper import SimZooKeeper
from tests.support.zookeeper_client import Door, SimKazooClient

PATHS = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep")


class Side:
    """One of the two servers, with its recorded watch events."""

    def __init__(self, client: Any, root: str) -> None:
        self.client = client
        self.root = root
        self.events: list[tuple[str, str]] = []

    def watch(self, event: Any) -> None:
        self.events.append((event.type, event.path.removeprefix(self.root)))

    def run(self, name: str, *arguments: Any, **named: Any) -> Any:
        """The outcome of a request, without the values that differ between servers."""
        path, *rest = arguments
        try:
            return _plain(
                getattr(self.client, f"{name}_async")(self.root + path, *rest, **named).get(timeout=20),
                self.root,
            )
        except KazooException as error:
            return type(error).__name__

    def transact(self, operations: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> Any:
        transaction = self.client.transaction()
        for name, (path, *rest), named in operations:
            getattr(transaction, name)(self.root + path, *rest, **named)
        return [_plain(result, self.root) for result in transaction.commit_async().get(timeout=20)]


def _plain(value: Any, root: str) -> Any:
    if isinstance(value, KazooException):
        return type(value).__name__
    if isinstance(value, str):
        return value.removeprefix(root)
    if isinstance(value, list):
        return sorted(value)
    if isinstance(value, tuple) and hasattr(value, "czxid"):
        return (value.version, value.cversion, value.dataLength, value.numChildren, value.ephemeralOwner != 0)
    if isinstance(value, tuple):
        return tuple(_plain(item, root) for item in value)
    return value


@pytest.fixture
def sides(zookeeper_connect: str) -> Iterator[tuple[Side, Side]]:
    real = Client(zookeeper_connect.partition("/")[0], timeout=30.0)
    real.start(timeout=30)
    simulated = SimKazooClient(SimZooKeeper(), lambda: Door.OPEN)
    simulated.start()
    root = f"/{uuid.uuid4()}"
    real.create(root)
    simulated.create_async(root).get()
    yield Side(real, root), Side(simulated, root)
    real.delete(root, recursive=True)
    real.stop()
    real.close()


def _operation(rng: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    path, version = rng.choice(PATHS), rng.choice((-1, -1, 0, 1))
    name = rng.choice(("create", "create", "create", "set_data", "delete", "check"))
    if name == "create":
        flags = {"ephemeral": rng.random() < 0.2, "sequence": rng.random() < 0.2}
        return name, (path, b"new"), flags
    if name == "set_data":
        return name, (path, rng.choice((b"", b"more"))), {"version": version}
    return name, (path, version), {}


def test_random_requests_have_the_same_outcome_on_both(sides: tuple[Side, Side]) -> None:
    rng = random.Random(9)
    trace: list[Any] = []
    for _ in range(400):
        if rng.random() < 0.3:
            operations = [_operation(rng) for _ in range(rng.randint(1, 4))]
            trace.append(operations)
            outcomes = [side.transact(operations) for side in sides]
        else:
            name, arguments, named = _operation(rng)
            if name == "check":
                name, arguments = "exists", arguments[:1]
            trace.append((name, arguments, named))
            outcomes = [side.run(name.removesuffix("_data"), *arguments, **named) for side in sides]
        assert outcomes[0] == outcomes[1], trace[-5:]
        for path in rng.sample(PATHS, 2):
            for read in ("get", "get_children"):
                results = [side.run(read, path) for side in sides]
                assert results[0] == results[1], (read, path, trace[-5:])


def test_many_nodes_are_read_at_once(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.run("create", "/a", "é".encode())
        side.run("create", "/a/x", b"")
    for names in ((), ("/a",), ("/b", "/a", "/a/x", "/a/y")):
        found = [
            [_plain(node, side.root) for node in side.client.get_many_async(paths).get(timeout=20)]
            for side in sides
            for paths in ([side.root + name for name in names],)
        ]
        assert found[0] == found[1]
        assert len(found[0]) == len(names)


def test_watches_fire_for_the_same_changes_in_the_same_order(sides: tuple[Side, Side]) -> None:
    rng = random.Random(10)
    simulated = sides[1]
    for _ in range(120):
        for side in sides:
            side.events.clear()
        kind, path = rng.choice(("get", "exists", "get_children")), rng.choice(PATHS)
        for side in sides:
            side.run(kind, path, side.watch)
        for _ in range(6):
            name, arguments, named = _operation(rng)
            if name != "check":
                for side in sides:
                    side.run(name.removesuffix("_data"), *arguments, **named)
        # Fire the remaining watches on both.
        for side in sides:
            side.run("create", path, b"")
            side.run("set", path, b"")
            side.run("create", f"{path}/last", b"")
            side.run("delete", f"{path}/last")
        while simulated.client.run_callback():
            continue
        wait_for(lambda: sides[0].events == simulated.events, f"{sides[0].events} {simulated.events}")


def test_ephemeral_nodes_end_with_their_session(zookeeper_connect: str, sides: tuple[Side, Side]) -> None:
    real, simulated = sides
    other = KazooClient(zookeeper_connect.partition("/")[0], timeout=30.0)
    other.start(timeout=30)
    server = simulated.client._server
    session = server.open_session()
    other.create(f"{real.root}/mine", ephemeral=True)
    owner = SimKazooClient(server, lambda: Door.OPEN)
    owner.start()
    owner.create_async(f"{simulated.root}/mine", ephemeral=True).get()
    for side in sides:
        side.run("get_children", "", side.watch)
        side.run("exists", "/mine", side.watch)
    other.stop()
    other.close()
    owner.stop()
    server.expire(session)
    while simulated.client.run_callback():
        continue
    wait_for(lambda: sorted(real.events) == sorted(simulated.events), "the end of a session")
    assert simulated.events
    assert real.run("exists", "/mine") is simulated.run("exists", "/mine") is None
