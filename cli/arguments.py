"""Options that several commands share, and the brokers, directories and settings that they name.

A command connects to ``--bootstrap-server``, else to the running cluster in ``--dir``, else to
``BARNABAS_BOOTSTRAP``, else to the running cluster in the default directory: ``BARNABAS_DIR``, else
``~/.barnabas/default``. An option beats the environment: it names the cluster that the user means now.
Its clients have the settings of the file ``--command-config``, as Kafka's tools, else, without ``--dir``, of
``BARNABAS_COMMAND_CONFIG``, else of the local cluster's user admin.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.broker.config.load import read_properties_file
from barnabas.cli.action import Action, Argument, arg, flag, repeated
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.output import progress
from barnabas.client.config import AdminConfig, ClientConfig
from barnabas.client.security import WITHOUT_EFFECT, SecurityConfig
from barnabas.common.settings import INT_MAX, Double, Integer, Kind, parse_key_values, settings_of
from barnabas.common.threads import new_event_loop
from barnabas.deploy.process import DeployError
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.server import process_problem
from barnabas.deploy.state import STATE_FILE, ZOOKEEPER
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition, parse_endpoints

if TYPE_CHECKING:
    from barnabas.client.admin.admin import Admin
    from barnabas.client.metadata import TopicInfo

T = TypeVar("T")

BOOTSTRAP_VARIABLE: Final = "BARNABAS_BOOTSTRAP"
DIR_VARIABLE: Final = "BARNABAS_DIR"
COMMAND_CONFIG_VARIABLE: Final = "BARNABAS_COMMAND_CONFIG"

SHORT_MAX: Final = 2**15 - 1

_CONNECTION_SETTINGS: Final = frozenset({"wire", "client_id", "request_timeout_ms"}).union(
    settings_of(SecurityConfig)
)
_SECURITY: Final = ("security.", "sasl.", "ssl.")
_LOOK_S: Final = 0.2


STDIN: Final = Path("-")
"""The name of a file that means the standard input."""


def not_empty(text: str) -> str:
    """A type for argparse. An unset variable of a shell is an empty text, and must not mean a default."""
    if not text:
        raise argparse.ArgumentTypeError("expected a value, not an empty text")
    return text


def _type_of(kind: Kind) -> Callable[[str], Any]:
    """A type for argparse."""

    def parse(text: str) -> Any:
        try:
            return kind.parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {kind.expected}") from None

    return parse


def number(at_least: int, at_most: int = INT_MAX) -> Callable[[str], int]:
    """A type for argparse: a whole number within these bounds, which are those of the protocol."""
    return _type_of(Integer(at_least, at_most))


seconds: Final[Callable[[str], float]] = _type_of(Double())
"""A type for argparse: a finite time."""


def new_directory(chosen: Path | None, prefix: str) -> Path:
    """A temporary directory, or the chosen one, created if missing; raises CommandError if that has files."""
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    directory = chosen.expanduser().absolute()
    if directory.exists() and any(directory.iterdir()):
        raise CommandError(f"--dir {directory} has files; expected a new or empty directory")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _directory(text: str) -> Path:
    return Path(not_empty(text))


DIR_OPTION: Final = arg(
    "--dir",
    "DIR",
    f"the directory of the local cluster (default: ${DIR_VARIABLE}, else ~/.barnabas/default)",
    dest="cluster_dir",
    type=_directory,
)


# -- the brokers -------------------------------------------------------------------------------------------


def bootstrap_option(otherwise: str = "") -> Argument:
    """``--bootstrap-server`` and ``--command-config``; `otherwise`: in the help, instead of the first."""

    def add(parser: argparse._ActionsContainer) -> None:
        for argument in (
            arg(
                "-b --bootstrap-server --bootstrap",
                "HOST:PORT,…",
                f"brokers to connect to first (default: ${BOOTSTRAP_VARIABLE}{otherwise})",
                dest="bootstrap",
                type=not_empty,
            ),
            arg(
                "--command-config",
                "FILE",
                "a properties file with settings of clients, such as security.protocol (default: "
                f"${COMMAND_CONFIG_VARIABLE})",
                type=Path,
            ),
        ):
            argument(parser)

    return add


def cluster_options(json_help: str | None = "print JSON") -> tuple[Argument, ...]:
    """The options of a command that connects to a cluster, without `json_help` not ``--json``."""
    json_option = () if json_help is None else (flag("--json", json_help),)
    return bootstrap_option(" if --dir is not given, else the local cluster"), DIR_OPTION, *json_option


def states_option(states: Sequence[str]) -> Argument:
    """``--state``, for one state or several, in any case."""

    def state(text: str) -> str:
        for name in states:
            if name.lower() == text.lower():
                return name
        raise argparse.ArgumentTypeError(f"{text!r}: expected one of {', '.join(states)}")

    return repeated("--state", "STATE", f"only these: {', '.join(states)}", type=state)


def partition_of(text: str) -> TopicPartition:
    """``topic:0`` as a partition; raises CommandError (usage)."""
    topic, _, digits = text.rpartition(":")
    if not topic or not (digits.isascii() and digits.isdecimal() and int(digits) <= INT_MAX):
        raise CommandError(f"{text!r}: expected TOPIC:PARTITION, as flights:0", USAGE)
    return TopicPartition(topic, int(digits))


def check_partition(topic: TopicInfo, partition: int) -> None:
    """Raise CommandError (not found) if the topic has no such partition."""
    last = len(topic.partitions) - 1
    if not 0 <= partition <= last:
        raise CommandError(f"topic {topic.name} has no partition {partition}, only 0 to {last}", NOT_FOUND)


def partitions_of(topic: TopicInfo, chosen: Iterable[int] | None) -> list[TopicPartition]:
    """The chosen partitions of the topic, or all. Raises CommandError (not found)."""
    for partition in chosen or ():
        check_partition(topic, partition)
    numbers = range(len(topic.partitions)) if chosen is None else sorted(set(chosen))
    return [TopicPartition(topic.name, number) for number in numbers]


def check_partitions(options: argparse.Namespace) -> None:
    """Replace the texts of `options.partitions`; raises CommandError unless either these or all are named."""
    if bool(options.partitions) == options.all:
        raise CommandError("name partitions as TOPIC:PARTITION, or give --all", USAGE)
    options.partitions = [partition_of(text) for text in options.partitions]


def on_cluster(
    name: str,
    help: str,
    work: Callable[[argparse.Namespace, Admin], Awaitable[int | None]],
    *arguments: Argument,
    check: Callable[[argparse.Namespace], object] = lambda options: None,
    json_help: str = "print JSON",
    epilog: str | None = None,
    **settings: Any,
) -> Action:
    """An action on the chosen cluster: `work` takes the options and an admin client with these settings.

    `check` comes before the connection: it raises CommandError for options that do not fit together, and may
    replace their texts by what they mean.
    """

    def run(options: argparse.Namespace) -> int:
        check(options)
        return run_async(with_admin(options, work, **settings))

    return Action(name, help, run, (*arguments, *cluster_options(json_help)), epilog)


async def with_admin(
    options: argparse.Namespace,
    work: Callable[[argparse.Namespace, Admin], Awaitable[int | None]],
    **settings: Any,
) -> int:
    """Connect to the chosen cluster, then do the work; returns the exit code."""
    options.connected_to = chosen_bootstrap(options)
    chosen = {**command_settings(options, AdminConfig), **settings}
    async with make_admin(options.connected_to, chosen) as admin:
        return await work(options, admin) or OK


async def await_moves(
    missing: Callable[[], Awaitable[int | None]], timeout_s: float, unfinished: str, label: str = ""
) -> None:
    """Show how much is copied until `missing` is None; raises CommandError after the timeout."""
    deadline = time.monotonic() + timeout_s
    total = left = await missing()
    with progress(total or 0, label) as show:
        while left is not None:
            show(max(0, (total or 0) - left))
            if time.monotonic() > deadline:
                raise CommandError(f"{unfinished} after {timeout_s:.0f} s; the moves go on", FAILED)
            await asyncio.sleep(_LOOK_S)
            left = await missing()


def named_bootstrap(options: argparse.Namespace) -> str | None:
    """``host:port,…`` of the option, or of the environment if there is no ``--dir`` either.

    Raises CommandError (usage) if it is malformed. `main` adds ``options.bootstrap_source`` to its errors.
    """
    text, source = options.bootstrap, "--bootstrap-server"
    if not text and getattr(options, "cluster_dir", None) is None:
        text, source = os.environ.get(BOOTSTRAP_VARIABLE), BOOTSTRAP_VARIABLE
        options.bootstrap_source = source if text else None
    if not text:
        return None
    try:
        return ",".join(map(str, parse_endpoints(text)))
    except ValueError as error:
        raise CommandError(f"{source}: {error}", USAGE) from None


def chosen_bootstrap(options: argparse.Namespace) -> str:
    """``host:port,…``; raises CommandError if no cluster is named and none runs in the directory.

    Prints a warning if the cluster's ZooKeeper is down here: most requests would wait for it in silence.
    """
    bootstrap = named_bootstrap(options)
    cluster = local_cluster(options, bootstrap)
    if bootstrap is None:
        if cluster is None or not cluster.is_running:
            raise CommandError(
                f"no cluster is running in {chosen_dir(options)}; start one with "
                f"`barnabas up{dir_words(options)}`, or name its brokers with --bootstrap-server",
                NOT_FOUND,
            )
        bootstrap = cluster.bootstrap
    process = None if cluster is None else cluster.zookeeper_process
    problem = None if process is None else process_problem(ZOOKEEPER, process.state, dir_words(options))
    if problem is not None and options.command != "status":
        print(f"barnabas {options.command}: {problem}", file=sys.stderr)
    return bootstrap


def local_cluster(options: argparse.Namespace, bootstrap: str | None) -> RunningCluster | None:
    """The cluster in the chosen directory; None if there is none, or it has none of these brokers."""
    directory = chosen_dir(options)
    if not (directory / STATE_FILE).exists():
        return None
    try:
        cluster = RunningCluster.open(directory)
    except DeployError:
        # The option or the environment may name another cluster than the directory, and needs none there.
        if named_bootstrap(options) is not None:
            return None
        raise
    if bootstrap is None or set(cluster.bootstrap.split(",")).intersection(bootstrap.split(",")):
        return cluster
    return None


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run the asyncio part of a command, on uvloop where it is installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


# -- the directory of a local cluster ----------------------------------------------------------------------


def chosen_dir(options: argparse.Namespace) -> Path:
    named: Path | str | None = options.cluster_dir or os.environ.get(DIR_VARIABLE)
    return Path(named).expanduser().absolute() if named else _default_dir()


def dir_words(options: argparse.Namespace) -> str:
    """The words that an advised command on the local cluster needs, to act on the one of this command."""
    directory = chosen_dir(options)
    # `up --ui` names the directory to the process of the page, also the default one.
    if options.cluster_dir is None or not _needs_name(directory):
        return ""
    return f" --dir {shlex.quote(str(directory))}"


def cluster_words(options: argparse.Namespace) -> str:
    """As `dir_words`, for an advised command that connects."""
    return f" -b {shlex.quote(options.bootstrap)}" if options.bootstrap else dir_words(options)


def open_cluster(options: argparse.Namespace) -> RunningCluster:
    """The cluster in the chosen directory; raises CommandError (not found) if there never was one."""
    directory = chosen_dir(options)
    if not (directory / STATE_FILE).exists():
        raise CommandError(
            f"there is no cluster in {directory}; start one with `barnabas up{dir_words(options)}`", NOT_FOUND
        )
    return RunningCluster.open(directory)


def open_running_cluster(options: argparse.Namespace) -> RunningCluster:
    """`open_cluster`, for a running cluster only."""
    cluster = open_cluster(options)
    if not cluster.is_running:
        raise CommandError(f"the cluster in {cluster.directory} is not running", NOT_FOUND)
    return cluster


def check_broker(cluster: RunningCluster, broker_id: int) -> None:
    """Raise CommandError (not found), naming the brokers that exist, if the cluster lacks this one."""
    if broker_id not in cluster.broker_ids:
        existing = ", ".join(map(str, cluster.broker_ids))
        raise CommandError(f"there is no broker {broker_id}; there are {existing}", NOT_FOUND)


def exports(cluster: RunningCluster) -> list[str]:
    """Shell lines after which every command, and every program that reads the variable, finds the cluster."""
    lines = [f"export {BOOTSTRAP_VARIABLE}={shlex.quote(cluster.bootstrap)}"]
    if (file := cluster.command_config) is not None:
        lines.append(f"export {COMMAND_CONFIG_VARIABLE}={shlex.quote(str(file))}")
    elif COMMAND_CONFIG_VARIABLE in os.environ:
        lines.append(f"unset {COMMAND_CONFIG_VARIABLE}")
    # An earlier value would make `barnabas kill` and the like act on another cluster than `produce`.
    if _needs_name(cluster.directory):
        lines.append(f"export {DIR_VARIABLE}={shlex.quote(str(cluster.directory))}")
    return lines


def _needs_name(directory: Path) -> bool:
    """Whether a command without `--dir` would act on another cluster."""
    return directory != _default_dir() or DIR_VARIABLE in os.environ


def _default_dir() -> Path:
    return Path("~/.barnabas/default").expanduser().absolute()


# -- settings ----------------------------------------------------------------------------------------------


def settings_option(client: str, **flags: str) -> Argument:
    """``--set`` for the settings of a client; `flags`: those that have an option of their own."""
    add = repeated(
        "--set", "KEY=VALUE", f"a setting of the {client}, for example client.id=me", dest="overrides"
    )

    def add_with_flags(parser: argparse._ActionsContainer) -> None:
        add(parser)
        parser.set_defaults(flags={"bootstrap_servers": "--bootstrap-server", **flags})

    return add_with_flags


def key_values(texts: list[str], option: str = "--set") -> dict[str, str]:
    """``key=value`` texts as a dict; raises CommandError (usage) for other texts."""
    problems: list[str] = []
    settings = parse_key_values(texts, problems, option)
    if problems:
        raise CommandError("; ".join(problems), USAGE)
    return settings


def client_settings(options: argparse.Namespace, config: type[ClientConfig]) -> dict[str, Any]:
    """The settings for a client's constructor, as its configuration reads them from text.

    Raises CommandError (usage) for one that has an option: the command itself must know its value.
    """
    settings = config.parse(key_values(options.overrides))
    for name in settings:
        if name in options.flags:
            raise CommandError(f"--set {name.replace('_', '.')}: use {options.flags[name]} instead", USAGE)
    return {**command_settings(options, config), **settings}


def command_settings(options: argparse.Namespace, config: type[ClientConfig]) -> dict[str, Any]:
    """The settings of the file of client settings, without those that such a client does not have.

    Raises CommandError (usage); an unknown setting of security is one, because it may be misspelt.
    """
    file = _command_config(options)
    if file is None:
        return {}
    problems: list[str] = []
    given = read_properties_file(file, problems)
    fields = settings_of(config)
    texts = {
        name: text
        for name, text in given.items()
        if name.replace(".", "_") in fields or (name.startswith(_SECURITY) and name not in WITHOUT_EFFECT)
    }
    texts.pop("bootstrap.servers", None)
    try:
        settings = config.parse(texts)
        config.of(settings)
    except InvalidConfiguration as error:
        problems.append(f"{file}: {error}")
    if problems:
        raise CommandError("; ".join(problems), USAGE)
    return settings


def _command_config(options: argparse.Namespace) -> Path | None:
    file: Path | None = options.command_config
    named = os.environ.get(COMMAND_CONFIG_VARIABLE)
    # A command on files alone has no local cluster.
    if file is None and named and getattr(options, "cluster_dir", None) is None:
        file = Path(named)
    if file is None and hasattr(options, "cluster_dir"):
        cluster = local_cluster(options, named_bootstrap(options))
        file = None if cluster is None else cluster.command_config
    return file


def make_admin(bootstrap: str, settings: Mapping[str, Any]) -> Admin:
    """An admin client that connects as a client with these settings does."""
    # Imported here: commands on local processes need no client.
    from barnabas.client.admin.admin import Admin

    connection = {name: value for name, value in settings.items() if name in _CONNECTION_SETTINGS}
    return Admin(bootstrap_servers=bootstrap, **connection)


async def describe_topic(bootstrap: str, topic: str, settings: Mapping[str, Any]) -> TopicInfo:
    """The topic, as a client with these settings sees it; raises ApiError with similar names."""
    return (await describe_topics(bootstrap, settings, [topic]))[topic]


async def describe_topics(
    bootstrap: str, settings: Mapping[str, Any], topics: Iterable[str] | None = None
) -> dict[str, TopicInfo]:
    """As `describe_topic`, for several, or for all."""
    async with make_admin(bootstrap, settings) as admin:
        return await admin.describe_topics(topics)
