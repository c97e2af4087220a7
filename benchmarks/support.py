"""Shared by the benchmarks: options, a cluster to measure, the CPU of a process, and one table of figures.

A benchmark is a module with ``measure(options) -> list[Figure]``; `run` gives it a command line. Every
cluster and file lies in a temporary directory that is gone when the benchmark ends, by whatever signal but
SIGKILL (and then the processes at least are gone, see `barnabas.deploy.local`). One thread.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import broker_command
from benchmarks.peers.comparison import aligned_rows, number

MB = 1_000_000
GB = 1_000_000_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOAD_AT_START = os.getloadavg()[0]
"""The load of the last minute; figures of a busy machine say little."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a measurement. `pin` ties broker number i to core i modulo the cores."""

    quick: bool = False
    rounds: int = 3
    directory: Path = Path()
    settings: dict[str, str] = field(default_factory=dict)
    pin: bool = False
    switch_interval_ms: float | None = None
    recycled: bool = False

    def amount(self, full: int, quick: int) -> int:
        """The amount of work: less with ``--quick``."""
        return quick if self.quick else full


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure, the median of its rounds; the goal is the least or the most that it should be."""

    name: str
    measured: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    rounds: list[float] = field(default_factory=list)
    note: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        rounds: Sequence[float],
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> Figure:
        """The figure of several rounds."""
        return cls(
            name=name,
            measured=statistics.median(rounds),
            unit=unit,
            at_least=at_least,
            at_most=at_most,
            rounds=list(rounds),
            note=note,
        )

    @property
    def times_better(self) -> float | None:
        """How many times better than the goal: 1 and above has reached it. None without a goal."""
        if self.at_least is not None:
            return self.measured / self.at_least
        if self.at_most is not None:
            return self.at_most / self.measured if self.measured > 0 else float("inf")
        return None


# -- what processes and the machine use --------------------------------------------------------------------


class CpuTimes(NamedTuple):
    """CPU seconds in user mode and in the kernel."""

    user_s: float
    kernel_s: float

    def since(self, earlier: CpuTimes) -> CpuTimes:
        return CpuTimes(self.user_s - earlier.user_s, self.kernel_s - earlier.kernel_s)

    def divided(self, by: int) -> CpuTimes:
        return CpuTimes(self.user_s / by, self.kernel_s / by)


def cpu_times(*pids: int) -> CpuTimes:
    """CPU that all threads of these processes have used together."""
    user = kernel = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user += int(fields[11])
        kernel += int(fields[12])
    return CpuTimes(user / _TICKS_PER_S, kernel / _TICKS_PER_S)


def cpu_seconds(*pids: int) -> float:
    """CPU seconds, of all threads and in the kernel too, that these processes have used together."""
    # Linux has a clock of each process, which is exact where /proc counts hundredths of a second.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def cpu_of_ended_processes() -> float:
    """CPU seconds of the processes that this one has started and waited for.

    The processes that its children have waited for count too: most brokers are forks of a child.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[13]) + int(fields[14])
    return used.ru_utime + used.ru_stime + ticks / _TICKS_PER_S


def memory_mb(pid: int, kind: str = "VmRSS") -> float:
    """Memory of a process: ``VmRSS`` (all that is resident) or ``RssAnon`` (no file behind)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == kind:
            return int(value.split()[0]) * 1024 / MB
    raise LookupError(f"/proc/{pid}/status has no line {kind}")


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that this percentage of them does not exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("no values to take a percentile of")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def file_system(folder: Path) -> str:
    """The file system that a folder lies on, such as ``ext4 at /``."""
    best = ("?", Path("/"))
    for line in Path("/proc/mounts").read_text().splitlines():
        _, at, kind, *_ = line.split()
        if folder.resolve().is_relative_to(at) and len(at) >= len(str(best[1])):
            best = (kind, Path(at))
    return f"{best[0]} at {best[1]}"


def recycle_memory(folder: Path, size_bytes: int) -> None:
    """Write and delete a file of this size, so that the next file gets pages that were in use just before.

    On a virtual machine the first touch of a page is the hypervisor's work, and may cost ten times the write.
    """
    write_file(folder / "recycled.tmp", size_bytes)


def write_file(path: Path, size_bytes: int) -> tuple[float, float]:
    """Write a file by `pwrite` of 1 MiB each and delete it; returns the write's seconds and CPU seconds."""
    block = os.urandom(1 << 20)
    started, cpu_started = time.perf_counter(), time.process_time()
    with path.open("wb") as file:
        for position in range(0, size_bytes, len(block)):
            os.pwrite(file.fileno(), block, position)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    path.unlink()
    return seconds, cpu


# -- a cluster ---------------------------------------------------------------------------------------------


def command_for(options: Options) -> Callable[[Path], list[str]]:
    """The command of a broker: the usual one, or with another switch interval, or tied to a core."""
    cores = sorted(os.sched_getaffinity(0))

    def command(settings_file: Path) -> list[str]:
        words = broker_command(settings_file)
        if options.switch_interval_ms is not None:
            start = (
                "import sys; from barnabas.broker import process; from barnabas.cli.main import main; "
                f"process.SWITCH_INTERVAL_S = {options.switch_interval_ms / 1000}; sys.exit(main())"
            )
            words = [words[0], "-c", start, *words[words.index("broker") :]]
        if options.pin:
            number = int(settings_file.parent.name.rpartition("-")[2])
            words = ["taskset", "-c", str(cores[number % len(cores)]), *words]
        return words

    return command


@contextmanager
def temporary_folder(options: Options) -> Iterator[Path]:
    """A folder for the measured files, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="barnabas-bench-") as name:
        yield Path(name)


def new_cluster(folder: Path, options: Options, *, brokers: int = 3, **settings: str) -> LocalCluster:
    """A cluster that is not started yet; settings with ``_`` for the dots of Kafka's names."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return LocalCluster(
        folder / "cluster",
        brokers=brokers,
        settings=named | options.settings,
        command=command_for(options),
    )


@contextmanager
def running_cluster(options: Options, *, brokers: int = 3, **settings: str) -> Iterator[LocalCluster]:
    """A started cluster, stopped and removed afterwards."""
    with (
        temporary_folder(options) as folder,
        new_cluster(folder, options, brokers=brokers, **settings) as cluster,
    ):
        yield cluster


def broker_pids(cluster: LocalCluster) -> list[int]:
    """The pids of the brokers, which all run."""
    return [broker.running_process.pid for broker in cluster.brokers]


# -- command line and table --------------------------------------------------------------------------------


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    return name, value


def parser_for(description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short runs: a rough figure in a few seconds")
    parser.add_argument("--rounds", type=int, metavar="N", help="medians of so many (default: 3; quick: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where the temporary files go (default: $TMPDIR, else build/ in the project)",
    )
    parser.add_argument(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all brokers (may be repeated)",
    )
    parser.add_argument(
        "--pin", action="store_true", help="tie broker i to core i modulo the cores (taskset)"
    )
    parser.add_argument(
        "--switch-interval-ms", type=float, metavar="MS", help="sys.setswitchinterval of the brokers"
    )
    parser.add_argument(
        "--recycled",
        action="store_true",
        help="write into memory that was used and given back just before (docs/performance.md)",
    )
    return parser


def options_of(arguments: argparse.Namespace) -> Options:
    """The options as parsed; ends the program when they make no sense."""
    rounds = arguments.rounds if arguments.rounds is not None else (1 if arguments.quick else 3)
    if rounds < 1:
        raise SystemExit(f"--rounds {rounds}: expected at least 1")
    return Options(
        quick=arguments.quick,
        rounds=rounds,
        directory=measured_directory(arguments.dir),
        settings=dict(arguments.set),
        pin=arguments.pin,
        switch_interval_ms=arguments.switch_interval_ms,
        recycled=arguments.recycled,
    )


def measured_directory(chosen: Path | None) -> Path:
    """The folder for temporary files, as ``--dir`` describes it; ends the program if it does not exist."""
    if chosen is None:
        chosen = Path(os.environ.get("TMPDIR") or Path(__file__).parents[1] / "build")
        chosen.mkdir(exist_ok=True)
    elif not chosen.is_dir():
        raise SystemExit(f"--dir {chosen}: there is no such folder")
    return chosen.absolute()


def _leave(signal_number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal_number)


def run(description: str | None, measure: Callable[[Options], list[Figure]]) -> None:
    """The main program of one benchmark."""
    arguments = parser_for(description or "").parse_args()
    options = options_of(arguments)
    clean_up_on_signals()
    report(measure(options), options, as_json=arguments.json)


def clean_up_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the program as an exception, so that processes and folders are removed."""
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, _leave)


def tell(text: str) -> None:
    """Say on standard error what is going on."""
    print(text, file=sys.stderr, flush=True)


def machine(options: Options) -> str:
    """One line that describes the machine."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    return (
        f"{cores} cores, {memory:.0f} GB, Linux {platform.release()}, CPython {platform.python_version()}, "
        f"{file_system(options.directory)}, load {_LOAD_AT_START:.1f} before the start"
    )


def report(figures: Sequence[Figure], options: Options, *, as_json: bool) -> None:
    """Print all figures, as a table or as JSON."""
    if as_json:
        found = [asdict(figure) | {"times_better": figure.times_better} for figure in figures]
        print(json.dumps({"machine": machine(options), "figures": found}, indent=2))
        return
    print(machine(options))
    rows: list[tuple[str, ...]] = [("what", "goal", "measured", "", "of goal", "rounds", "")]
    for figure in figures:
        better = figure.times_better
        rows.append(
            (
                figure.name,
                _goal(figure),
                number(figure.measured),
                figure.unit,
                "" if better is None else f"{better:.2f}" + ("" if better >= 1 else " MISSED"),
                " ".join(number(value) for value in figure.rounds) if len(figure.rounds) > 1 else "",
                figure.note,
            )
        )
    print(aligned_rows(rows, (1, 2, 4)))


def _goal(figure: Figure) -> str:
    if figure.at_least is not None:
        return f">= {number(figure.at_least)}"
    return "" if figure.at_most is None else f"<= {number(figure.at_most)}"
