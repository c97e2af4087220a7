"""Links that fail while both ends live: a proxy before each broker and ZooKeeper of a local cluster.

A broker advertises the address of its proxy, and finds ZooKeeper at a proxy. It connects from an address of
its own (`wall.py`), so that every fault is one of a pair of ends, in one direction:

- a cut holds back the bytes from a source to a target, and the end of a connection; neither end gets an
  error. Held bytes arrive when the link is mended, as a network retransmits. Unlike in a network, a
  connection can be opened through a cut link; it is then silent;
- a delay lets the bytes arrive later, in their order;
- a rejection, as of a firewall or a router, resets the connections from a source to a target, and no further
  one can be opened;
- a refusal makes a target look dead to all: connections are reset, and its port refuses.

A proxy whose target has ended refuses connections as the target's port would.

The proxies are one process (`link_proxies.py`), which alone has the rules. Any program asks it through a unix
socket in the cluster's directory. A file of rules would need an owner among several writers, an
acknowledgement, and a program that empties it; here a change holds when the call returns, and no rule
survives the process.

Any thread; calls block and are bounded.
"""

from __future__ import annotations

import enum
import errno
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Struct

from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.private_files import make_private_folder
from barnabas.deploy.process import DeployError, ManagedProcess, wait_until
from barnabas.deploy.server import LocalServer, title_of
from barnabas.deploy.short_paths import short_path
from barnabas.deploy.state import LINKS, LinksRecord
from barnabas.protocol.ids import Endpoint

HOST: Final = "127.0.0.1"
CLIENT: Final = "client"
"""The end that stands for all clients, also commands of this machine."""
CONTROL: Final = "control"
_TIMEOUT_S: Final = 10.0
_MOST_ANSWER_BYTES: Final = 1 << 22
_MOST_MS: Final = 3_600_000

_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=_MOST_MS)]


class RuleKind(enum.Enum):
    CUT = "cut"
    DELAY = "delay"
    REJECT = "reject"
    REFUSE = "refuse"


class Rule(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The effect of a link on bytes from a source to a target: ids, ``zookeeper`` and ``client``.

    `delay_ms` is the least delay, `jitter_ms` the most that is added to it. `error`: of an attempt to connect
    that is rejected. A refusal has no source.
    """

    kind: RuleKind
    source: str = ""
    target: str
    delay_ms: _Milliseconds = 0.0
    jitter_ms: _Milliseconds = 0.0
    error: int = errno.ECONNREFUSED

    @property
    def key(self) -> tuple[RuleKind, str, str]:
        """At most one rule of a key holds at a time; a refusal has all sources."""
        return self.kind, self.source, self.target


def named(end: str) -> str:
    """A server or end of a link, in a sentence."""
    return "the clients" if end == CLIENT else title_of(end)


def broken_text(rule: Rule) -> str:
    """The effect of a rule, in a sentence."""
    source, target = named(rule.source), named(rule.target)
    return {
        RuleKind.CUT: f"nothing gets from {source} to {target}",
        RuleKind.DELAY: f"bytes from {source} to {target} take {rule.delay_ms:g} ms longer",
        RuleKind.REJECT: f"{target} looks dead to {source}",
        RuleKind.REFUSE: f"{target} looks dead to all",
    }[rule.kind]


class Request(Struct, kw_only=True, forbid_unknown_fields=True):
    """First `mended`: the rules between two ends, or, without names, all. Then `removed`: the rules of the
    same kind, source and target. Then `added`, then `reset`.
    """

    mended: tuple[str, ...] | None = None
    removed: list[Rule] = []
    added: list[Rule] = []
    reset: str | None = None


class Answer(Struct):
    """All rules as they are now; `error`: why the request changed nothing more."""

    rules: list[Rule]
    error: str | None = None


class Links:
    """The links of a running cluster, as any program changes them. Calls raise DeployError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rules(self) -> list[Rule]:
        return self._ask(Request())

    def cut(self, source: int | str, target: int | str) -> None:
        """From now on nothing gets from the source to the target."""
        self._add(Rule(kind=RuleKind.CUT, source=str(source), target=str(target)))

    def sever(self, one: int | str, other: int | str) -> None:
        """Cut both ways."""
        ends = str(one), str(other)
        self._add(*(Rule(kind=RuleKind.CUT, source=a, target=b) for a, b in (ends, ends[::-1])))

    def delay(self, source: int | str, target: int | str, delay_ms: float, jitter_ms: float = 0.0) -> None:
        """From now on bytes from the source to the target take so long, and up to the jitter longer."""
        delay = Rule(
            kind=RuleKind.DELAY,
            source=str(source),
            target=str(target),
            delay_ms=delay_ms,
            jitter_ms=jitter_ms,
        )
        self._add(delay)

    def reject(self, source: int | str, target: int | str, error: int = errno.ECONNREFUSED) -> None:
        """Make a target look dead to one source, a broker; `error` is that of its attempts to connect."""
        self._add(Rule(kind=RuleKind.REJECT, source=str(source), target=str(target), error=error))

    def refuse(self, target: int | str) -> None:
        """Make a target look dead from now on: its connections are reset, and its port refuses."""
        self._add(Rule(kind=RuleKind.REFUSE, target=str(target)))

    def reset(self, source: int | str) -> None:
        """Reset the connections that a source has opened; it may connect again at once."""
        self._ask(Request(reset=str(source)))

    def mend(self) -> None:
        """Make all links work again, without refusals, rejections and delays."""
        self._ask(Request(mended=()))

    def mend_pair(self, one: int | str, other: int | str) -> None:
        """Make the link between two ends work again, both ways."""
        self._ask(Request(mended=(str(one), str(other))))

    def change(self, removed: Sequence[Rule] = (), added: Sequence[Rule] = ()) -> None:
        """Remove rules and add others at once; no byte passes in between."""
        self._ask(Request(removed=list(removed), added=list(added)))

    def _add(self, *rules: Rule) -> None:
        self.change(added=rules)

    def _ask(self, request: Request) -> list[Rule]:
        try:
            answer = self._exchange(msgspec.json.encode(request) + b"\n")
        except (OSError, ValueError) as error:
            raise DeployError(f"the proxies of the links do not answer ({error})") from error
        if answer.error is not None:
            raise DeployError(f"the links were not changed: {answer.error}")
        return answer.rules

    def _exchange(self, line: bytes) -> Answer:
        received = bytearray()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            with short_path(self.folder / CONTROL) as path:
                connection.connect(path)
            connection.sendall(line)
            while (part := connection.recv(1 << 16)) and len(received) < _MOST_ANSWER_BYTES:
                received += part
        return msgspec.json.decode(received, type=Answer)


class LinkServer(LocalServer):
    """The process of the proxies."""

    def __init__(
        self,
        directory: Path,
        ports: Mapping[str, int],
        targets: Mapping[str, Endpoint],
        *,
        process: ManagedProcess | None = None,
        reserved: Iterable[ReservedPort] = (),
        die_with_parent: bool = True,
    ) -> None:
        """`ports`: of the proxies, by the name of their targets, whose own addresses are `targets`."""
        super().__init__(
            title_of(LINKS),
            directory,
            host=HOST,
            ports=list(ports.values()),
            reserved=list(reserved),
            log_file="links.log",
            process=process,
            die_with_parent=die_with_parent,
        )
        self.links = Links(directory)
        self._port_of = dict(ports)
        self._targets = dict(targets)

    def proxy_of(self, target: int | str) -> Endpoint | None:
        """The address by which a target is to be known; None if it has no proxy."""
        port = self._port_of.get(str(target))
        return None if port is None else Endpoint(self.host, port)

    @property
    def ends(self) -> Sequence[str]:
        """The names of all ends of links."""
        return [*self._port_of, CLIENT]

    def launch(self) -> None:
        """Start the process without waiting for it; raises DeployError (running already, port in use)."""
        make_private_folder(self.directory)
        self._check_can_start()
        (self.directory / CONTROL).unlink(missing_ok=True)
        command = [sys.executable, "-m", "barnabas.deploy.link_proxies", str(self.directory)]
        for name, port in self._port_of.items():
            command += ["--proxy", name, str(port), str(self._targets[name])]
        self.process = ManagedProcess.spawn(
            self.name, command, log_file=self.log_file, die_with_parent=self.die_with_parent
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the proxies serve; raises DeployError with the end of their output if they do not."""
        process = self.process
        if process is None:
            raise DeployError("the links were never started")

        def is_serving() -> bool:
            if not process.is_alive or not (self.directory / CONTROL).exists():
                return not process.is_alive
            try:
                self.links.rules()
            except DeployError:
                # Between the two calls that make the socket.
                return False
            return True

        if not wait_until(is_serving, timeout_s) or not process.is_alive:
            process.kill()
            raise DeployError(f"the proxies of the links did not start:\n{self._output()}")

    def make_whole(self) -> None:
        """Mend all links and let the proxies go on, if they run."""
        if self.process is None or not self.process.send(signal.SIGCONT):
            return
        with suppress(DeployError):
            # They end just now; without them there is nothing to mend.
            self.links.mend()

    def record(self) -> LinksRecord:
        identity = None if self.process is None else self.process.identity
        return LinksRecord(ports=self._port_of, process=identity)
