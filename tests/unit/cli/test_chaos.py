"""The exit code of `barnabas chaos` follows from the verdict; wrong usage starts no cluster."""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from barnabas.chaos.checker import RECORDS, check
from barnabas.chaos.history import Acknowledged, History, Log, Sent
from barnabas.chaos.run import Recording
from barnabas.chaos.samples import Samples
from barnabas.chaos.scenario import Scenario
from barnabas.chaos.verdict import NOT_RUN, conclude
from barnabas.cli import chaos
from barnabas.cli.main import main
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition

P0 = TopicPartition("t", 0)


def recorded(numbers: list[int], *, was_interrupted: bool = False) -> Any:
    """A run in which record 1 and 2 were acknowledged, and these are there in the end."""

    def run(scenario: Scenario, name: str, directory: Path, *, seed: int, say: object) -> Recording:
        acknowledged = [Acknowledged(P0, 0, 1), Acknowledged(P0, 1, 2)]
        history = History(Sent(1, P0), Sent(2, P0), *acknowledged, Log("client", P0, [*enumerate(numbers)]))
        failures = {NOT_RUN: ["interrupted"]} if was_interrupted else {}
        conclusion = conclude(scenario, history, check(history, RECORDS), (0, ""), 600, failures)
        samples = Samples(0.0, 1_000)
        data = {"title": "x", "text": "", "scenario": name, "seed": seed, "started_ms": 1_000, "seconds": 1.0}
        data |= {"series": samples.series(1.0), **samples.history(1.0), "verdict": conclusion.as_json()}
        return Recording(data=data, conclusion=conclusion, was_interrupted=was_interrupted)

    return run


@pytest.mark.parametrize(
    ("numbers", "code", "said"), [([1, 2], 0, "Nothing acknowledged"), ([1], 1, "Broken: lost")]
)
def test_a_broken_promise_is_exit_code_1_and_keeps_the_directory(
    numbers: list[int],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(chaos, "run", recorded(numbers))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = tmp_path / "report.html"
    assert main(["chaos", "leader-dies", "--report", str(report)]) == code
    output = capsys.readouterr().out
    assert said in output
    assert said in report.read_text()
    assert ("kept: " in output) == any(tmp_path.glob("barnabas-chaos-*")) == (code == 1)


def test_an_interrupted_run_has_its_report_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "run", recorded([1, 2], was_interrupted=True))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = tmp_path / "report.html"
    assert main(["chaos", "leader-dies", "--report", str(report)]) == 130
    assert "Not run as written: interrupted" in report.read_text()
    assert [*tmp_path.iterdir()] == [report]


def test_a_disk_that_is_full_costs_the_report_and_not_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.html"
    monkeypatch.setattr(chaos, "run", recorded([1, 2]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        code = main(["chaos", "leader-dies", "--report", str(report)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    output = capsys.readouterr()
    assert (code, report.exists()) == (1, False)
    assert "Nothing acknowledged is lost" in output.out
    assert f"--report {report}: it was not written: File too large" in output.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "expected a file or one of controller-dies"),
        (["leader-dis"], 4, "did you mean leader-dies?"),
        (["leader-dies", "--report", "no/such/folder/x.html"], 4, "no/such/folder"),
        (["leader-dies", "--report", "/"], 2, "expected a file, and this is a directory"),
    ],
)
def test_wrong_usage(
    words: list[str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(chaos, "run", None)
    assert main(["chaos", *words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("of", ["cluster", "topic"])
def test_a_misspelt_setting_is_refused_before_anything_starts(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LocalCluster, "start", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scenario = tmp_path / "x.toml"
    scenario.write_text(f"title = 'x'\nseconds = 2\n[{of}.settings]\n'min.insync.replica' = 2\n")
    assert main(["chaos", str(scenario), "--report", str(tmp_path / "report.html")]) == 2
    assert "did you mean min.insync.replicas?" in capsys.readouterr().err
    assert not [*tmp_path.glob("barnabas-chaos-*")]


def test_sigterm_removes_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        assert [*tmp_path.iterdir()]
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(chaos, "run", run)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    # A signal that is not handled would end the run of the tests.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as stopped:
            main(["chaos", "leader-dies", "--report", str(tmp_path / "report.html")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.value.code == 143
    assert not [*tmp_path.iterdir()]


def test_without_the_extra_its_name_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chaos, "run", None)
    monkeypatch.delitem(sys.modules, "barnabas.ui.report", raising=False)
    monkeypatch.setitem(sys.modules, "markupsafe", None)
    assert main(["chaos", "leader-dies"]) == 1
    assert "pip install 'barnabas[ui]'" in capsys.readouterr().err
