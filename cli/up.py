"""`barnabas up`: start a cluster on this machine; in the foreground until Ctrl-C, or detached.

In the foreground this program owns the cluster: when it ends, for any reason, every process of the cluster
ends. While it runs it restarts brokers for `barnabas restart` and reports when one has ended. Detached, the
processes continue after it, until `barnabas down`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

from barnabas.broker.config.load import load_config
from barnabas.cli.action import arg, command, flag, repeated
from barnabas.cli.arguments import DIR_OPTION, chosen_dir, dir_words, exports, key_values, number
from barnabas.cli.exit_codes import INTERRUPTED, OK, TERMINATED, USAGE, CommandError
from barnabas.common.texts import count
from barnabas.deploy.certificates import check_name
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.page import check_page_packages
from barnabas.deploy.process import DeployError
from barnabas.deploy.security import ADMIN, DEFAULT_MECHANISM, MECHANISMS, ClusterSecurity
from barnabas.deploy.state import (
    LINKS,
    ZOOKEEPER,
    SecurityConfiguration,
    answer_restart,
    forget_requests,
    restarts_asked_for,
)
from barnabas.deploy.zookeeper import ZooKeeper

_LOOK_INTERVAL_S: Final = 0.1
_COUNT: Final = number(1, 64)
_FIRST_PORT: Final = 9092
_LAST_PORT: Final = 65535
_ZOOKEEPER_PORT: Final = 2181
_BROKERS: Final = 3

_EPILOG: Final = (
    "BARNABAS_ZOOKEEPER=host:port[/chroot] uses a ZooKeeper that is already running. Data is kept in the "
    "directory: the next `up` there continues with it, and with the brokers, settings, racks, log dirs, "
    "metrics, security and ports of the last one. Without --port a new cluster takes the ports from 9092 on "
    "(ZooKeeper 2181) if they are free, else those from 9192 on, and so forth. Topics that do not say "
    "otherwise have 3 partitions, 3 replicas and min.insync.replicas=2 on three brokers or more."
)


def _run(options: argparse.Namespace) -> int:
    """Start, announce, and stay until a signal (or return, when detached)."""
    last_first_port = _LAST_PORT + 1 - (options.brokers or _BROKERS)
    if options.port is not None and not 0 < options.port <= last_first_port:
        raise CommandError(f"--port {options.port}: expected 1 to {last_first_port}", USAGE)
    if options.ui:
        check_page_packages()
    settings = key_values(options.overrides)
    stopping = threading.Event()
    _stop_on_signal(stopping)
    cluster = LocalCluster(
        chosen_dir(options),
        brokers=options.brokers,
        settings=settings,
        dropped_settings=options.unset,
        racks=options.racks,
        first_port=options.port,
        preferred_ports=range(_FIRST_PORT, _FIRST_PORT + (options.brokers or _BROKERS)),
        zookeeper_port=_ZOOKEEPER_PORT,
        metrics=options.metrics,
        log_dirs=options.log_dirs,
        replicates=True,
        security=_security(options),
        users=dict(options.users),
        links=_has_links(options),
        detach=options.detach,
    )
    try:
        cluster.check_settings()
        for note in cluster.port_notes:
            _say(options, note)
        started = time.monotonic()
        cluster.record.takes_requests = not options.detach
        forget_requests(cluster.directory)
        _start(cluster, stopping)
        seconds = time.monotonic() - started
        if options.ui:
            _start_page(cluster, options)
        _announce(cluster, options, seconds)
        if not options.detach:
            try:
                _watch(cluster, options, stopping)
            finally:
                _say(options, "stopping")
                cluster.stop()
    finally:
        cluster.close()
    return OK


def _has_links(options: argparse.Namespace) -> bool:
    return bool(options.ui if options.links is None else options.links)


def _security(options: argparse.Namespace) -> SecurityConfiguration | None:
    """The security that the options choose; None if they choose none, so that the last `up` counts."""
    if options.secure is False:
        if options.tls or options.mechanism or options.acl or options.hosts or options.users:
            raise CommandError("--no-secure opens the cluster; leave out the other options", USAGE)
        return SecurityConfiguration()
    if not (options.secure or options.tls or options.mechanism or options.acl):
        if options.hosts:
            raise CommandError("--host is a name of certificates: add --tls", USAGE)
        return None
    return SecurityConfiguration(
        tls=bool(options.secure or options.tls),
        mechanism=options.mechanism or (DEFAULT_MECHANISM if options.secure else None),
        acl=bool(options.secure or options.acl),
        hosts=options.hosts,
    )


def _user(text: str) -> tuple[str, str | None]:
    name, colon, password = text.partition(":")
    if not name or (colon and not password):
        # The text may have a password, and is not shown.
        raise argparse.ArgumentTypeError("expected NAME:PASSWORD, or NAME for a random password")
    return name, password or None


def _host(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _racks(text: str) -> list[str]:
    racks = [rack.strip() for rack in text.split(",")]
    if not all(racks):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names of racks, separated by commas")
    return racks


class _Stopped(BaseException):
    """A signal came while the cluster was starting."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = INTERRUPTED if number == signal.SIGINT else TERMINATED


def _stop_on_signal(stopping: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        # The first signal stops in order; while starting there is nothing to keep, so it ends at once.
        already = stopping.is_set()
        stopping.set()
        if _starting.is_set() and not already:
            raise _Stopped(number)

    for stops in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stops, stop)


_starting = threading.Event()


def _start(cluster: LocalCluster, stopping: threading.Event) -> None:
    _starting.set()
    try:
        cluster.start()
    except _Stopped as stopped:
        raise CommandError("stopped by a signal before the cluster was up", stopped.exit_code) from None
    finally:
        _starting.clear()


def _start_page(cluster: LocalCluster, options: argparse.Namespace) -> None:
    try:
        cluster.start_page(die_with_parent=not options.detach)
    except BaseException:
        cluster.stop()
        raise


def _announce(cluster: LocalCluster, options: argparse.Namespace, seconds: float) -> None:
    if options.json:
        print(json.dumps(cluster.describe()), flush=True)
        return
    print(f"{count(len(cluster.brokers), 'broker')} up and writable in {seconds:.1f} s")
    print(f"  bootstrap  {cluster.bootstrap}")
    if cluster.proxies:
        print(f"  links      these lead clients to {cluster.proxies}")
    print(f"  zookeeper  {cluster.zookeeper_connect}")
    print(f"  topics     {_topic_defaults(cluster)}, unless they say otherwise")
    if cluster.settings:
        listed = " ".join(f"{name}={_shown(name, value)}" for name, value in cluster.settings.items())
        print(f"  settings   {listed}  (kept for the next `up`; --unset KEY drops one)")
    if any(broker.metrics_url for broker in cluster.brokers):
        print(f"  metrics    {' '.join(broker.metrics_url or '-' for broker in cluster.brokers)}")
    if cluster.page is not None:
        print(f"  ui         {cluster.page.url}")
    print(f"  dir        {cluster.directory}")
    if cluster.security is not None:
        _announce_security(cluster.security)
    print("\nnext:" if options.detach else "\nnext, in another terminal:")
    for line in exports(cluster):
        print(f"  {line}")
    print("  barnabas topics create greetings")
    print("  echo hello | barnabas produce greetings")
    print("  barnabas consume greetings")
    stop = f"stop it with: barnabas down{dir_words(options)}"
    print(f"\n{stop}" if options.detach else "\nCtrl-C stops everything", flush=True)


def _shown(name: str, value: str) -> str:
    return "[hidden]" if name.endswith(("password", "jaas.config", "keystore.key")) else value


def _announce_security(security: ClusterSecurity) -> None:
    configuration = security.configuration
    known_by = configuration.mechanism or ("certificates of clients" if configuration.acl else "no login")
    parts = [configuration.protocol, known_by]
    print(f"  security   {', '.join([*parts, 'ACLs' if configuration.acl else 'no ACLs'])}")
    print(f"  clients    {security.clients_folder}")
    for name in security.client_users:
        files = " ".join(sorted(path.name for path in security.clients_of(name).iterdir()))
        print(f"    {name}: {files}")


def _topic_defaults(cluster: LocalCluster) -> str:
    """As the brokers read them."""
    config = load_config(file=cluster.brokers[0].settings_file)
    partitions = count(config.num_partitions, "partition")
    replicas = count(config.default_replication_factor, "replica")
    return f"{partitions}, {replicas}, min.insync.replicas={config.topics.min_insync_replicas}"


def _say(options: argparse.Namespace, text: str) -> None:
    # With --json stdout belongs to the object.
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def _watch(cluster: LocalCluster, options: argparse.Namespace, stopping: threading.Event) -> None:
    """Until a signal: restart brokers on request, and report once each process that has ended."""
    ended: set[str] = set()
    while not stopping.wait(_LOOK_INTERVAL_S):
        for name in restarts_asked_for(cluster.directory):
            error = None
            try:
                cluster.restart_server(name)
            except DeployError as failure:
                error = failure
            answer_restart(cluster.directory, name, error)
        for server in cluster.servers:
            if server.is_alive:
                ended.discard(server.name)
            elif server.name not in ended:
                ended.add(server.name)
                code = server.process.exit_code if server.process else None
                advice = f"see {server.log_file}"
                if server is cluster.page:
                    advice = f"start another one: `barnabas ui{dir_words(options)}`"
                elif server not in cluster.brokers:
                    name = ZOOKEEPER if isinstance(server, ZooKeeper) else LINKS
                    advice = f"start it again: `barnabas restart {name}{dir_words(options)}`"
                print(f"{server.name} has ended (exit code {code}); {advice}", file=sys.stderr)


add_arguments = command(
    _run,
    DIR_OPTION,
    arg("--brokers", "N", "how many brokers (default: 3, or as many as there were)", type=_COUNT),
    arg(
        "--port",
        "PORT",
        "the port of the first broker; the others take the following ones (default: see below)",
        type=int,
    ),
    arg("--log-dirs", "N", "of each broker (default 1, or as many as it has)", type=_COUNT, default=1),
    arg(
        "--racks",
        "RACK,…",
        "the racks of the brokers, in their order; the first rack follows the last one",
        type=_racks,
        default=[],
    ),
    lambda parser: parser.add_argument(
        "--metrics",
        action=argparse.BooleanOptionalAction,
        help="serve metrics for Prometheus on a port of each broker, from 9404 on if these are free",
    ),
    flag("--ui", "serve the live page of the cluster too, as `barnabas ui`, and print its URL"),
    lambda parser: parser.add_argument(
        "--links",
        action=argparse.BooleanOptionalAction,
        help="put a proxy before each broker and ZooKeeper, so that links can be cut and slowed "
        "(default: with --ui)",
    ),
    flag("--detach", "return once the cluster is up; it runs until `barnabas down`"),
    flag("--json", "print the cluster as one JSON object once it is up"),
    lambda parser: parser.add_argument(
        "--secure",
        action=argparse.BooleanOptionalAction,
        help=f"--tls --sasl {DEFAULT_MECHANISM} --acl; --no-secure opens a secured cluster again",
    ),
    flag("--tls", "encrypt all connections; makes a certificate authority and the brokers' certificates"),
    arg(
        "--sasl",
        "MECHANISM",
        f"clients log in: {', '.join(MECHANISMS)}; makes the user {ADMIN}",
        choices=MECHANISMS,
        type=str.upper,
        dest="mechanism",
    ),
    flag("--acl", f"users have the rights of `barnabas acls grant` alone; {ADMIN} may do everything"),
    repeated(
        "--user",
        "NAME[:PASSWORD]",
        "without PASSWORD a random one; with --tls alone a certificate",
        type=_user,
        dest="users",
    ),
    repeated("--host", "NAME", "one more name for the brokers' certificates", type=_host, dest="hosts"),
    repeated("--set", "KEY=VALUE", "a setting for every broker, in Kafka's names", dest="overrides"),
    repeated("--unset", "KEY", "drop a setting that an earlier `up` was given"),
    epilog=_EPILOG,
)
