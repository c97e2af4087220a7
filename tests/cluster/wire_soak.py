"""Hostile peers for minutes, in both protocols, against three brokers: part of ``make soak``.

    python -m tests.cluster.wire_soak [secured]

If the brokers are secured, the peers also attack TLS and logins; the others come in as a user without rights
or as one with all rights, or have not logged in.

It fails if a broker ends, logs something unforeseen or does not serve another client, if its memory exceeds
its budgets during the attack, or if it has grown between a quarter of the time and the end. Between attacks
there are rests: only then the memory of a broker is compared with that of another time.

``FUZZ_SECONDS=600`` is the time, ``FUZZ_SEED`` repeats the choices of a run. A failure names the plans in
progress: ``FUZZ_PLANS=1200-1260`` carries out only these, again and again.
"""

import asyncio
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from barnabas.client import AclBinding, AclEntry, Operation, ResourcePattern
from barnabas.client.blocking import Producer
from barnabas.common.security.acl import Permission, ResourceType
from barnabas.common.security.channel_security import PasswordLogin
from barnabas.common.security.principal import Principal
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.security import ClusterSecurity
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import BarnabasError

from . import wire_attack, wire_fuzz, wire_login
from .tools import UNHARMED, ClusterView, resident_bytes, running, unforeseen_lines, writes_and_reads
from .wire_attack import Attack
from .wire_peer import Stage, hostile_contexts

_TOPIC: Final = "bystander"
_STRANGER, _ENTITLED = "stranger", "entitled"
_SECURITY: Final = SecurityConfiguration(tls=True, mechanism=wire_login.MECHANISM.value, acl=True)
_SESSION_MS: Final = 3_000
_RECORDS: Final = 30
_ATTACK_S: Final = 15.0
_REST_S: Final = 3.0
_SAMPLE_S: Final = 0.25
_MB: Final = 1_000_000
_REQUESTS_BYTES: Final = 64 * _MB
_MOST_AT_ONCE_BYTES: Final = _REQUESTS_BYTES + 300 * _MB
"""Requests, pooled buffers (130 MB), old records in answers (64 MB), and decoding and decompression.
Without a bound for received requests it was 1,300 MB."""
_MOST_GROWN_BYTES: Final = 40 * _MB
_WARM_UP_PLANS: Final = 2_000
"""By then the pools have their buffers, and the heaps of glibc hold what a request of a million elements has
left between live objects: 84 MB after one request, and no more after further ones. A slow machine takes
minutes."""
_ALLOCATOR: Final = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
"""Freed memory goes back to the system. Otherwise the arenas of Python and of glibc's threads keep it: a
broker without a leak grew by 65 MB in ten minutes, in steps, and these settings make it 15."""
_SLOWEST_S: Final = 30.0
_LARGE_BYTES: Final = 300_000
"""A request that waits while hostile peers hold the memory for requests."""


def plans(first: int | None, last: int) -> Iterator[int]:
    return itertools.count() if first is None else itertools.cycle(range(first, last + 1))


class Soak:
    """One run; `problems` says what was wrong."""

    def __init__(self, cluster: LocalCluster, seed: int, numbers: Iterator[int]) -> None:
        self._cluster = cluster
        self._numbers = numbers
        self._pids = [broker.running_process.pid for broker in cluster.brokers]
        self._is_over = False
        self._round_ends = 0.0
        self._served: list[float] = []
        self._peaks = [0] * len(self._pids)
        self._first: list[int] = []
        self._rests: list[list[int]] = []
        self.problems: list[str] = []
        self._secrets = [] if cluster.security is None else list(cluster.security.users.values())
        if cluster.security is not None:
            _grant(cluster)
        view = ClusterView(cluster)
        for name, partitions in (*((name, 2) for name in wire_fuzz.TOPICS), (_TOPIC, 1)):
            view.create_topic(name, partitions, 3)
        with Producer(**view.clients, acks="all") as producer:
            for _ in range(_RECORDS):
                producer.send_and_wait(_TOPIC, random.Random(seed).randbytes(900_000))
        with view.admin() as admin:
            ids = [topic.topic_id for topic in admin.describe_topics(wire_fuzz.TOPICS).values()]
        endpoints = [broker.endpoint for broker in cluster.brokers]
        more = {} if cluster.security is None else _against(cluster.security)
        self.attack = Attack(seed, endpoints, topic=_TOPIC, topic_ids=ids, **more)

    async def run(self, seconds: float) -> None:
        healthy = asyncio.create_task(self._stay_healthy())
        sampling = asyncio.create_task(self._sample())
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.problems:
            self._round_ends = min(ends, time.monotonic() + _ATTACK_S)
            await self.attack.run(self._until_rest())
            await asyncio.sleep(_REST_S)
            if self._cluster.security is not None:
                await asyncio.to_thread(_grant, self._cluster)
            held = [resident_bytes(pid) for pid in self._pids]
            self._first = self._first or held
            if self.attack.outcomes.total() >= _WARM_UP_PLANS:
                self._rests.append(held)
            self._report(held)
            self._look_at_brokers()
        self._is_over = True
        await healthy
        await sampling
        self._look_at_memory()

    def _until_rest(self) -> Iterator[int]:
        while time.monotonic() < self._round_ends and not self.problems:
            yield next(self._numbers)

    async def _stay_healthy(self) -> None:
        """Be a client that must be served."""
        while not self._is_over and not self.problems:
            began = time.monotonic()
            value = bytes(_LARGE_BYTES if len(self._served) % 10 == 0 else 100)
            served = asyncio.to_thread(writes_and_reads, self._cluster, _TOPIC, value)
            try:
                is_right = await asyncio.wait_for(served, _SLOWEST_S)
            except (BarnabasError, TimeoutError) as error:
                self._problem(f"another client was not served: {error!r}")
                return
            self._served.append(time.monotonic() - began)
            if not is_right:
                self._problem("another client read something else than it wrote")

    async def _sample(self) -> None:
        while not self._is_over and not self.problems:
            for index, pid in enumerate(self._pids):
                try:
                    self._peaks[index] = max(self._peaks[index], resident_bytes(pid))
                except OSError:
                    self._problem(f"broker {index + 1} has ended")
            await asyncio.sleep(_SAMPLE_S)

    def _look_at_brokers(self) -> None:
        for problem in self.attack.problems:
            self._problem(problem)
        for broker in self._cluster.brokers:
            broker.check_alive()
            for line in unforeseen_lines(broker.directory / "logs"):
                self._problem(line)
            if any(secret in broker.server_log.read_text() for secret in self._secrets):
                self._problem(f"a password is in {broker.server_log}")

    def _look_at_memory(self) -> None:
        for index, peak in enumerate(self._peaks):
            if peak - self._first[index] > _MOST_AT_ONCE_BYTES:
                self._problem(f"broker {index + 1} held {peak:,} bytes")
        quarter = len(self._rests) // 4
        if quarter < 1:
            return
        for index in range(len(self._pids)):
            of_broker = [rest[index] for rest in self._rests]
            # The least: requests of a crowd that has gone may be dropped only after 30 s.
            before, after = min(of_broker[quarter : 2 * quarter]), min(of_broker[-quarter:])
            if after - before > _MOST_GROWN_BYTES:
                self._problem(f"broker {index + 1} grew from {before:,} to {after:,} bytes: {of_broker}")

    def _problem(self, text: str) -> None:
        running = sorted(self.attack.running)
        self.problems.append(f"{text}\n    with plans {running} in progress" if running else text)
        print(self.problems[-1], flush=True)

    def _report(self, at_rest: list[int]) -> None:
        slowest = max(self._served, default=0.0)
        held = ", ".join(f"{size // _MB}" for size in at_rest)
        peaks = ", ".join(f"{size // _MB}" for size in self._peaks)
        print(
            f"{self.attack.outcomes.total():,} plans; MB at rest {held}, at most {peaks}; "
            f"{len(self._served)} times served, in {slowest:.1f} s at most",
            flush=True,
        )


def _grant(cluster: LocalCluster) -> None:
    """Give one user all rights; its own frames may delete them."""
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    resources = [*((kind, "*") for kind in kinds), (ResourceType.CLUSTER, "kafka-cluster")]
    entry = AclEntry(Principal.user(_ENTITLED), "*", Operation.ALL, Permission.ALLOW)
    with ClusterView(cluster).admin() as admin:
        admin.create_acls([AclBinding(ResourcePattern(kind, name), entry) for kind, name in resources])


def _against(security: ClusterSecurity) -> dict[str, Any]:
    """The manners and stages of the peers of a secured cluster."""
    tls, mechanism = hostile_contexts(), wire_login.MECHANISM.value
    logins = [PasswordLogin(mechanism, user, security.users[user]) for user in (_STRANGER, _ENTITLED)]
    return {
        "stages": [Stage(tls), *(Stage(tls, login) for login in logins)],
        "manners": [*wire_attack.MANNERS, *wire_login.MANNERS * 5],
    }


def main() -> int:
    seconds = float(os.environ.get("FUZZ_SECONDS", "600"))
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(1 << 32))
    first, _, last = os.environ.get("FUZZ_PLANS", "").partition("-")
    numbers = plans(int(first), int(last or first)) if first else plans(None, 0)
    folder = Path(tempfile.mkdtemp(prefix="barnabas-wire-"))
    print(f"FUZZ_SEED={seed} FUZZ_SECONDS={seconds:g}, brokers in {folder}", flush=True)
    os.environ.update(_ALLOCATOR)
    settings = {**UNHARMED, "queued.max.request.bytes": str(_REQUESTS_BYTES)}
    more: dict[str, Any] = {}
    if sys.argv[1:] == ["secured"]:
        settings["connections.max.reauth.ms"] = str(_SESSION_MS)
        more = {"security": _SECURITY, "users": {_STRANGER: None, _ENTITLED: None}}
    with running(LocalCluster(folder, settings=settings, **more)) as cluster:
        soak = Soak(cluster, seed, numbers)
        asyncio.run(soak.run(seconds))
    for outcome, count in sorted(soak.attack.outcomes.items()):
        print(f"{count:9,} {outcome}")
    print(f"FUZZ_SEED={seed}: {len(soak.problems)} problems")
    return bool(soak.problems)


if __name__ == "__main__":
    sys.exit(main())
