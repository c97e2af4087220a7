"""Finds flaky tests by repetition: ``make flaky``.

Each module of tests with real processes runs in a pytest process of its own, where its tests are repeated in
shuffled order without retries. Two modules run at a time, with random niceness, beside busy processes and
disk writes that come and go. A test that does not end has failed. The end is a table of rates, also after
Ctrl-C; a folder keeps it, with the output of the first failure of each test.

``FLAKY_RUNS``: runs of each test. ``FLAKY_TESTS``: paths and options of pytest. ``FLAKY_SEED`` repeats the
order and the load. ``FLAKY_LOAD``: the most busy processes at a time. ``FLAKY_FOLDER``: build/flaky.
"""

import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.repetition import VARIABLE, Repetition, failure_file

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("cluster", "compat", "chaos", "spark")
_AT_A_TIME: Final = 2
_QUICK_S: Final = 0.1
_SPIN: Final = "while True: sum(range(10_000))"
_WRITE: Final = """
import os, tempfile
with tempfile.TemporaryFile() as file:
    while True:
        file.seek(0)
        for _ in range(16):
            file.write(os.urandom(1 << 20))
        os.fsync(file)
"""


@dataclass(slots=True)
class Settings:
    """One search; `grace_s` is how much longer than its time-out a test may last before it is killed."""

    folder: Path
    runs: int = 20
    seed: int = 0
    options: Sequence[str] = ()
    root: Path = ROOT
    grace_s: float = 60.0


@dataclass(slots=True)
class Rates:
    """The durations of each test's runs, and its failures."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Modules that could not run."""

    def add(self, test: str, outcome: str, seconds: float) -> None:
        if outcome != "skipped":
            self.seconds.setdefault(test, []).append(seconds)
            self.failures[test] = self.failures.get(test, 0) + (outcome == "failed")

    def __str__(self) -> str:
        """The tests that failed most first, then the slowest; quick ones that never failed are counted."""
        rows = sorted((-self.failures[test], -max(times), test) for test, times in self.seconds.items())
        quick = [row for row in rows if row[0] == 0 and -row[1] < _QUICK_S]
        lines = [f"{'runs':>5} {'failed':>6} {'median s':>9} {'largest s':>9}  test"]
        for failures, largest, test in rows[: len(rows) - len(quick)]:
            times = self.seconds[test]
            lines.append(
                f"{len(times):5} {-failures:6} {statistics.median(times):9.2f} {-largest:9.2f}  {test}"
            )
        lines.append(f"and {len(quick)} tests that never failed and took less than {_QUICK_S} s")
        flaky = sum(1 for count in self.failures.values() if count)
        lines.append(f"{flaky} of {len(rows)} tests failed in {sum(map(len, self.seconds.values()))} runs")
        return "\n".join([*lines, *(f"not run: {text}" for text in self.broken)])


class Load:
    """Busy processes and disk writes that come and go; a context manager."""

    def __init__(self, seed: int, most: int) -> None:
        self._stopping = threading.Event()
        chances = [random.Random(seed + number) for number in range(most)]
        self._threads = [threading.Thread(target=self._disturb, args=(chance,)) for chance in chances]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _disturb(self, chance: random.Random) -> None:
        while not self._stopping.wait(chance.uniform(0, 6)):
            program, niceness = chance.choice((_SPIN, _SPIN, _WRITE)), chance.randrange(0, 11)
            process = subprocess.Popen(["nice", "-n", str(niceness), sys.executable, "-c", program])
            self._stopping.wait(chance.uniform(0.5, 8))
            process.kill()
            process.wait()


class Search:
    """Runs the modules, two at a time; `rates` are those so far."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self.rates = Rates()
        self._settings = settings
        self._say = say
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    def run(self, modules: Sequence[Sequence[str]]) -> None:
        """Each module is the arguments that select it. Ctrl-C ends the tests that run."""
        self._settings.folder.mkdir(parents=True, exist_ok=True)
        numbered = list(enumerate(modules, 1))
        random.Random(self._settings.seed).shuffle(numbered)
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            running = [pool.submit(self._run_module, *each) for each in numbered]
            try:
                for future in running:
                    future.result()
            except BaseException:
                self._stopping.set()
                for future in running:
                    future.cancel()
                raise

    def _run_module(self, number: int, words: Sequence[str]) -> None:
        """Run a module's tests; after a process that was killed or died, those that are left."""
        began, done, failures = time.monotonic(), 0, 0
        while not self._stopping.is_set():
            process = _Process(self._settings, number, words, done)
            process.wait(self._stopping)
            if self._stopping.is_set():
                return
            for test, outcome, seconds in process.outcomes():
                done += 1
                failures += outcome == "failed"
                with self._lock:
                    self.rates.add(test, outcome, seconds)
                if outcome == "failed":
                    self._say(f"failed: {test}, after {seconds:.1f} s")
            if process.has_run_all:
                break
            if not process.has_left_a_test:
                self.rates.broken.append(f"{' '.join(words)}: see {process.log}")
                break
        self._say(f"{words[0]}: {done} runs, {failures} failed, {time.monotonic() - began:.0f} s")


class _Process:
    """One process of pytest, watched by the file of its outcomes."""

    def __init__(self, settings: Settings, number: int, words: Sequence[str], done: int) -> None:
        self._settings = settings
        self.log = settings.folder / f"output-{number}-{done}.log"
        self._lines = settings.folder / f"outcomes-{number}-{done}.jsonl"
        self._lines.unlink(missing_ok=True)
        folder, lines = (str(path.resolve()) for path in (settings.folder, self._lines))
        repetition = Repetition(settings.runs, settings.seed, done, lines, folder)
        niceness = random.Random(settings.seed + number + done).randrange(0, 11)
        command = ["nice", "-n", str(niceness), sys.executable, "-m", "pytest"]
        plugins = ["-p", "no:rerunfailures", "-p", "no:cacheprovider", "-p", "tests.support.repetition"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *plugins, *words, *settings.options],
                cwd=settings.root,
                env={**os.environ, VARIABLE: json.dumps(repetition)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_run_all(self) -> bool:
        """Whether pytest ended by itself; 5 is its code for no tests."""
        return self._process.returncode in (0, 1, 5) and not self.has_left_a_test

    @property
    def has_left_a_test(self) -> bool:
        lines = self._read()
        return bool(lines) and "start" in lines[-1]

    def wait(self, stopping: threading.Event) -> None:
        """Wait for its end; kill it, and what it has started, if a test does not end or all stops."""
        started, since = -1, 0.0
        while self._process.poll() is None:
            lines = self._read()
            if len(lines) > started:
                started, since = len(lines), time.monotonic()
            limit = lines[-1].get("timeout_s") if lines else None
            late = limit is not None and time.monotonic() > since + limit + self._settings.grace_s
            if late or stopping.wait(0.2):
                break
        self._end()

    def _end(self) -> None:
        """End the whole session; also the processes that a dead pytest has left."""
        if self._process.poll() is None:
            # Pytest can end its clusters, unless it hangs.
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._settings.grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def outcomes(self) -> list[tuple[str, str, float]]:
        """Test, outcome and duration; a test without an end has failed."""
        lines = self._read()
        found = [(line["end"], line["outcome"], line["seconds"]) for line in lines if "end" in line]
        if self.has_left_a_test:
            test = lines[-1]["start"]
            found.append((test, "failed", lines[-1]["timeout_s"]))
            path = failure_file(self._settings.folder, test)
            if not path.exists():
                path.write_text(f"The test did not end: {self._process.returncode}\n{self.log.read_text()}")
        return found

    def _read(self) -> list[dict]:
        text = self._lines.read_text() if self._lines.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def modules_of(words: Sequence[str], root: Path) -> tuple[list[list[str]], list[str]]:
    """The modules in the paths, each with the tests that were named in it; and the options."""
    modules: dict[str, list[str]] = {}
    options: list[str] = []
    for word in words:
        path, _, test = word.partition("::")
        if word.startswith("-") or not (root / path).exists():
            options.append(word)
            continue
        files = sorted((root / path).rglob("test_*.py")) if (root / path).is_dir() else [root / path]
        for file in files:
            chosen = modules.setdefault(str(file.relative_to(root)), [])
            chosen += [word] if test else []
    return [chosen or [path] for path, chosen in modules.items()], options


def main() -> int:
    variable = os.environ.get
    modules, options = modules_of(shlex.split(variable("FLAKY_TESTS") or ""), ROOT)
    if not modules:
        modules, _ = modules_of([f"tests/{name}" for name in FOLDERS], ROOT)
    seed = int(variable("FLAKY_SEED") or random.randrange(1 << 32))
    folder = Path(variable("FLAKY_FOLDER") or ROOT / "build" / "flaky") / time.strftime("%m%d-%H%M%S")
    settings = Settings(folder, int(variable("FLAKY_RUNS") or 20), seed, options)
    print(f"FLAKY_SEED={seed} FLAKY_RUNS={settings.runs}, {len(modules)} modules, {folder}", flush=True)
    began = time.monotonic()
    search = Search(settings, lambda text: print(f"{time.monotonic() - began:7.0f} s  {text}", flush=True))
    try:
        with Load(seed, int(variable("FLAKY_LOAD") or 3)):
            search.run(modules)
    except KeyboardInterrupt:
        print("interrupted; so far:")
    table = str(search.rates)
    (folder / "rates.txt").write_text(table + "\n")
    print(table)
    return int(any(search.rates.failures.values()) or bool(search.rates.broken))


if __name__ == "__main__":
    sys.exit(main())
