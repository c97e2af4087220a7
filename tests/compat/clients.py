"""The clients of the compatibility tests, how each is got and started, and the process that drives one.

A client is a driver in `drivers/`: a process that takes commands as lines of JSON (see `drivers/stdio.py`).
Clients that are no Python packages are fetched once into a cache below ``build/`` by the ordinary package
tools; `Unavailable` names the reason if that fails. Blocking, one thread a driver; every wait is bounded.
"""

import fcntl
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from barnabas.deploy.maven import FetchFailed, fetch, read_pinned
from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import find_java
from benchmarks.peers.apache_kafka import VERSION, archives
from benchmarks.peers.processes import PeerError

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "compat"
ANSWER_TIMEOUT_S = 120.0
_INSTALL_TIMEOUT_S = 300.0


class Unavailable(Exception):
    """The client cannot be had on this machine; the text says why."""


class Unsupported(Exception):
    """The client has no such function; the text says which."""


class ClientError(Exception):
    """The client reported an error: Kafka's code (or the client's own, negative), its name and its text."""

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(f"{name} ({code}): {text}")
        self.code = code


class Driver:
    """A client's process; a context manager that ends it."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.answer_timeout_s = answer_timeout_s
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_answered = True
        self._said: list[str] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._listen)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(20)
        for thread in self._threads:
            thread.join(20)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    @property
    def is_usable(self) -> bool:
        """Whether it is alive and has answered every command: the next answer is to the next command."""
        return self._is_answered and self._process.poll() is None

    def ask(self, command: str, **arguments: Any) -> Any:
        """Run a command; raises ClientError, Unsupported, or AssertionError when the driver is lost.

        A driver that left a command unanswered is lost: its late answer would be taken for another one.
        """
        assert self._is_answered, f"{self.name} did not answer an earlier command: {self.said}"
        assert self._process.stdin is not None
        self._is_answered = False
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=self.answer_timeout_s)
        except queue.Empty:
            raise AssertionError(
                f"{self.name} did not answer in {self.answer_timeout_s:g} s: {self.said}"
            ) from None
        assert line is not None, f"{self.name}'s driver ended: {self.said}"
        self._is_answered = True
        reply = json.loads(line)
        if "unsupported" in reply:
            raise Unsupported(reply["unsupported"])
        if "error" in reply:
            raise ClientError(**reply["error"])
        return reply["answer"]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """The end of the driver's stderr."""
        return "".join(self._said[-40:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            del self._said[:-200]


@dataclass(frozen=True)
class Client:
    """A client on the market: its name, its driver, and the function that fetches it."""

    name: str
    driver: str
    prepare: Callable[[], Mapping[str, str]]
    """Fetch what the driver needs; its environment. Raises Unavailable."""

    def start(self) -> Driver:
        """Start the driver; raises Unavailable."""
        environment = _environment(self)
        path = HERE / "drivers" / self.driver
        if path.is_dir():
            command = [environment[PROGRAM]]
        elif path.suffix == ".java":
            command = [find_java(), *LIGHT, path.stem]
        else:
            command = ["node" if path.suffix == ".js" else sys.executable, str(path)]
        return Driver(self.name, command, environment)


@cache
def _environment(client: Client) -> Mapping[str, str]:
    return client.prepare()


# -- fetching the clients ------------------------------------------------------------------------------------


def _python_package(module: str) -> Callable[[], Mapping[str, str]]:
    def prepare() -> Mapping[str, str]:
        found = subprocess.run(
            [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
        )
        if found.returncode != 0:
            raise Unavailable(
                f"the package {module} is not installed: {found.stderr.strip().splitlines()[-1]}"
            )
        return {}

    return prepare


@contextmanager
def alone(name: str) -> Iterator[Path]:
    """A folder of the cache that no other process is filling meanwhile."""
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def run_tool(command: list[str], folder: Path, **environment: str) -> None:
    """Run a package tool, with more variables; raises Unavailable with the end of its output."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not on the PATH")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command)} took over {_INSTALL_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)} failed: {done.stdout.strip()[-500:]}")


def _kafkajs() -> Mapping[str, str]:
    if shutil.which("node") is None:
        raise Unavailable("node is not on the PATH")
    wanted = (HERE / "package.json").read_text()
    with alone("node") as folder:
        installed = folder / "installed.json"
        if not installed.exists() or installed.read_text() != wanted:
            shutil.copy(HERE / "package.json", folder / "package.json")
            run_tool(
                ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"], folder
            )
            installed.write_text(wanted)
        return {"NODE_MODULES": str(folder / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


LIGHT: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that starts fast."""
_JAVA_ARCHIVES: Final = HERE / "kafka_clients_44.sha256"


def fetch_list(name: str, pinned: Path) -> Path:
    """A folder of the cache with the archives of a list. Raises Unavailable."""
    try:
        return fetch(name, read_pinned(pinned.read_text(encoding="utf-8")))
    except FetchFailed as error:
        raise Unavailable(str(error)) from error


def compiled(name: str, sources: Sequence[Path], libraries: Iterable[Path]) -> Path:
    """A folder of the cache with compiled sources, compiled again when they change. Raises Unavailable.

    The compiler is among Kafka's newest clients, and needs no JDK.
    """
    try:
        java = find_java()
    except DeployError as error:
        raise Unavailable(str(error)) from error
    compiler = fetch_list("kafka-clients-4.4.0", _JAVA_ARCHIVES)
    path = ":".join(sorted(map(str, libraries)))
    texts = hashlib.sha256(path.encode() + b"".join(source.read_bytes() for source in sources)).hexdigest()
    with alone("java") as folder:
        classes = folder / f"{name}-{texts[:16]}"
        if not classes.exists():
            partial = folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            command = [
                java,
                "-cp",
                f"{compiler}/*",
                "org.eclipse.jdt.internal.compiler.batch.Main",
                "-11",
                "-nowarn",
            ]
            subprocess.run([*command, "-cp", path, "-d", str(partial), *map(str, sources)], check=True)
            partial.rename(classes)
        return classes


def _java() -> Mapping[str, str]:
    """Kafka's clients, and the driver."""
    return java_environment(fetch_list("kafka-clients-4.4.0", _JAVA_ARCHIVES))


def java_environment(archives: Path) -> Mapping[str, str]:
    """The driver of Java with the clients in these archives. Raises Unavailable."""
    sources = sorted((HERE / "drivers" / "java").glob("*.java"))
    return {"CLASSPATH": f"{compiled('driver', sources, archives.glob('*.jar'))}:{archives}/*"}


PROGRAM: Final = "DRIVER_PROGRAM"
"""The variable that names the program of a driver which is compiled."""


def _franz_go() -> Mapping[str, str]:
    with alone("franz-go") as folder:
        program = folder / "driver"
        # A build from nothing compiles Go's library too: 30 CPU seconds like this, and 80 by default.
        fast = ("-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")
        run_tool(
            ["go", "build", *fast, "-o", str(program), "."], HERE / "drivers" / "franz_go", CGO_ENABLED="0"
        )
        return {PROGRAM: str(program)}


_KCAT_PACKAGES = ("kcat", "librdkafka1", "libyajl2", "libsasl2-2", "liblz4-1")


def _kcat() -> Mapping[str, str]:
    """kcat from the PATH, or from the distribution's packages, unpacked into the cache; installs nothing."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is not None:
        return {"KCAT": found}
    with alone("kcat") as folder:
        root = folder / "root"
        if not (folder / "installed").exists():
            apt = ["apt-get", "-q", "-o", f"Dir::State={folder}/state", "-o", f"Dir::Cache={folder}/cache"]
            for name in ("state/lists/partial", "cache/archives/partial"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            run_tool([*apt, "-o", "APT::Sandbox::User=root", "update"], folder)
            run_tool([*apt, "-o", "APT::Sandbox::User=root", "download", *_KCAT_PACKAGES], folder)
            for package in sorted(folder.glob("*.deb")):
                run_tool(["dpkg-deb", "-x", str(package), str(root)], folder)
                package.unlink()
            shutil.rmtree(folder / "state")
            shutil.rmtree(folder / "cache")
            (folder / "installed").touch()
        libraries = sorted({str(path.parent) for path in root.rglob("*.so.*")})
        path = ":".join([*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        return {"KCAT": str(root / "usr" / "bin" / "kcat"), "LD_LIBRARY_PATH": path}


def _apache_kafka() -> Mapping[str, str]:
    """The Java clients of the release that the tests compare with."""
    try:
        return java_environment(archives())
    except PeerError as error:
        raise Unavailable(str(error)) from error


NEWEST_JAVA: Final = "Java 4.4"
CLIENTS = {
    client.name: client
    for client in (
        Client("confluent-kafka", "confluent_driver.py", _python_package("confluent_kafka")),
        Client("kafka-python", "kafka_python_driver.py", _python_package("kafka")),
        Client("aiokafka", "aiokafka_driver.py", _python_package("aiokafka")),
        Client("kafkajs", "kafkajs_driver.js", _kafkajs),
        Client("kcat", "kcat_driver.py", _kcat),
        Client(NEWEST_JAVA, "java/Driver.java", _java),
    )
}
"""Every client by its name, in the order of the table of features."""
SECURED_CLIENTS = CLIENTS | {
    client.name: client
    for client in (
        Client(f"Java {VERSION}", "java/Driver.java", _apache_kafka),
        Client("franz-go", "franz_go", _franz_go),
    )
}
"""The clients in the table of security."""
