"""The command's frame: help, usage, exit codes, errors as one line."""

import argparse
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from barnabas.cli import exit_codes
from barnabas.cli.arguments import client_settings, dir_words, exports, make_admin
from barnabas.cli.exit_codes import CommandError, exit_code_of
from barnabas.cli.main import COMMANDS, build_parser, main
from barnabas.client.config import ConsumerConfig, ProducerConfig
from barnabas.client.errors import TopicErrors
from barnabas.deploy.process import ProcessId
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import (
    BrokerRecord,
    ClusterConfiguration,
    ClusterRecord,
    SecurityConfiguration,
    write_record,
)
from barnabas.protocol.errors import (
    ConnectionClosed,
    ErrorCode,
    InvalidConfiguration,
    RequestTimedOutLocally,
    Unencodable,
    api_error,
)

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BARNABAS_DIR", str(tmp_path / "none"))
    monkeypatch.delenv("BARNABAS_BOOTSTRAP", raising=False)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_knows_commands_and_options(shell: str, capsys: Output) -> None:
    assert main(["completion", shell]) == exit_codes.OK
    said = capsys.readouterr().out
    assert all(word in said for word in (*COMMANDS, "--bootstrap-server", "reset-offsets"))


@pytest.mark.parametrize("option", ["-b", "--bootstrap-server", "--bootstrap"])
def test_every_command_that_connects_takes_the_brokers_by_each_name(option: str) -> None:
    for words in (
        *(["status"], ["topics", "list"], ["groups", "list"], ["configs", "describe", "--all-brokers"]),
        *(["produce", "t"], ["consume", "t"], ["perf", "produce"], ["log", "repair", "."]),
    ):
        assert build_parser(words[0]).parse_args([*words, option, "h:1"]).bootstrap == "h:1"


@pytest.mark.parametrize("action", ["produce", "consume"])
@pytest.mark.parametrize(
    ("words", "topic"),
    [("", "perf"), ("t", "t"), ("--topic t", "t"), ("t --records 5", "t"), ("--records 5 t", "t")],
)
def test_perf_takes_its_topic_as_produce_and_consume_do(action: str, words: str, topic: str) -> None:
    assert build_parser("perf").parse_args(["perf", action, *words.split()]).topic == topic


@pytest.mark.parametrize(
    "words",
    [
        "topics create t --partitions 99999999999",
        "topics create t --partitions 0",
        "topics create t --replication-factor 32768",
        "topics add-partitions t 99999999999",
        "perf produce --partitions 99999999999",
        "perf produce --size 99999999999",
        "perf produce --rate 0",
        "reassign plan --replication-factor 0",
        "reassign execute f --timeout nan",
        "drain 1 --wait --timeout inf",
        "drain 1 --wait --throttle 0",
        "log-dirs move t:0 --broker 1 --to d --timeout -1",
        "status --watch nan",
        "transactions list --producer-id 9223372036854775808",
        "transactions list --duration-filter x",
        "transactions describe-producers --topic t --partition -1",
        "transactions abort --topic t --partition 0 --start-offset -1",
        "transactions abort --topic t --partition 0 --producer-id 1 --producer-epoch 32768",
    ],
)
def test_a_number_out_of_range_is_wrong_usage(words: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "-b", "127.0.0.1:1"])
    assert ended.value.code == exit_codes.USAGE
    assert re.search(r"argument .*: expected a (whole )?number", capsys.readouterr().err)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: barnabas {command}" in capsys.readouterr().out


def test_the_help_says_what_may_be_repeated_and_ends_with_the_exit_codes(capsys: Output) -> None:
    for words in (["status"], ["groups", "delete-offsets"]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
    status, delete_offsets = capsys.readouterr().out.split("usage: ")[1:]
    assert "only this topic (may be repeated)" in status
    assert "exit code 1 means" in status.splitlines()[-2]
    assert re.search(r"--topic TOPIC\[:0,1\]\s+may be repeated\n", delete_offsets)


def test_help_lists_every_command_and_the_exit_codes(capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(re.search(rf"\n    {name}\s", said) for name in COMMANDS)
    assert "3 not reachable" in said


def test_no_command_is_wrong_usage(capsys: Output) -> None:
    assert main([]) == exit_codes.USAGE
    assert "usage: barnabas" in capsys.readouterr().out


def test_the_version_is_printed(capsys: Output) -> None:
    assert main(["--version"]) == exit_codes.OK
    assert capsys.readouterr().out.startswith("barnabas ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionClosed("gone"), exit_codes.NOT_REACHABLE),
        (RequestTimedOutLocally("late"), exit_codes.NOT_REACHABLE),
        (InvalidConfiguration("bad"), exit_codes.USAGE),
        (FileNotFoundError("no file"), exit_codes.NOT_FOUND),
        (api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), exit_codes.NOT_FOUND),
        (api_error(ErrorCode.TOPIC_ALREADY_EXISTS), exit_codes.FAILED),
        (api_error(ErrorCode.INVALID_CONFIG), exit_codes.USAGE),
        (api_error(ErrorCode.INVALID_PARTITIONS), exit_codes.USAGE),
        (Unencodable("too large"), exit_codes.USAGE),
        (CommandError("other", 4), 4),
        (TopicErrors({"a": Unencodable("large"), "b": Unencodable("larger")}, {}), exit_codes.USAGE),
        (TopicErrors({"a": Unencodable("large"), "b": ConnectionClosed("gone")}, {}), exit_codes.FAILED),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["topics", "list"],
        ["produce", "flights"],
        ["kill", "1"],
        ["down"],
    ],
    ids=lambda words: words[0],
)
def test_without_a_cluster_a_command_names_the_directory(
    arguments: list[str], capsys: Output, tmp_path: Path
) -> None:
    assert main(arguments) == exit_codes.NOT_FOUND
    said = capsys.readouterr().err
    assert said.startswith(f"barnabas {arguments[0]}: ")
    assert str(tmp_path / "none") in said
    assert "barnabas up" in said


@pytest.mark.parametrize("words", [["status"], ["kill", "1"]], ids=lambda words: words[0])
def test_the_advice_for_a_missing_cluster_names_the_directory_that_was_given(
    words: list[str], capsys: Output, tmp_path: Path
) -> None:
    main([*words, "--dir", str(tmp_path / "a b")])
    assert f"start one with `barnabas up --dir '{tmp_path}/a b'`" in capsys.readouterr().err


def test_a_malformed_address_is_wrong_usage(capsys: Output) -> None:
    assert main(["topics", "list", "--bootstrap", "nowhere"]) == exit_codes.USAGE
    assert "'nowhere' is not host:port" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["topics", "list"], ["topics", "create", "t"]],
    ids=["status", "list", "create"],
)
def test_an_unreachable_broker_is_named(arguments: list[str], capsys: Output) -> None:
    # No server listens on port 1 of this host.
    assert main([*arguments, "--bootstrap", "127.0.0.1:1"]) == exit_codes.NOT_REACHABLE
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--dir", __file__], f"{__file__} cannot be the directory of a cluster: File exists"),
        (["up", "--port", "65534"], "--port 65534: expected 1 to 65533"),
        (["up", "--set", "oops"], "--set 'oops': expected key=value"),
        (["broker", "--set", "broker.id=x"], "broker.id='x': expected"),
    ],
)
def test_the_error_for_a_wrong_value_names_the_expected_ones(
    arguments: list[str], said: str, capsys: Output
) -> None:
    assert main(arguments) in (exit_codes.USAGE, exit_codes.FAILED)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option", "expected"),
    [
        ("up --brokers 0", "--brokers", "from 1 to 64"),
        ("up --brokers 65", "--brokers", "from 1 to 64"),
        ("up --log-dirs 99999999", "--log-dirs", "from 1 to 64"),
        ("produce t --partition -1", "--partition", "at least 0"),
        ("consume t --max -1", "--max", "at least 0"),
        ("log dump t --max -1", "--max", "at least 0"),
        ("log verify t --jobs 0", "--jobs", "at least 1"),
        ("logs --lines -1", "--lines", "at least 0"),
    ],
)
def test_a_number_out_of_bounds_is_wrong_usage(
    words: str, option: str, expected: str, capsys: Output
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == exit_codes.USAGE
    value = words.split()[-1]
    assert re.search(
        rf"argument \S*{option}: '{value}': expected a whole number,? {expected}", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--set nosuch=1", "unknown setting nosuch='1'"),
        ("--set num.io.threads=x", "num.io.threads='x': expected a whole number from 1 to 256"),
        ("--set broker.id=7", "broker.id differs from broker to broker; the cluster sets it"),
    ],
)
def test_a_cluster_with_wrong_settings_is_not_started(
    words: str, said: str, tmp_path: Path, capsys: Output
) -> None:
    assert main(["up", "--brokers", "1", "--dir", str(tmp_path), *words.split()]) == exit_codes.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "broker-1").exists()


def test_the_broker_command_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from barnabas.cli.main import build_parser\n"
        "build_parser('broker')\n"
        "import barnabas.broker.app, barnabas.deploy.zookeeper\n"
        "heavy = {'rich', 'psutil', 'shtab', 'pyspark', 'pandas', 'numpy', 'pyarrow', 'llvmlite'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    )
    assert done.stdout.strip() == "[]"


def settings_given(command: str, *texts: str) -> dict[str, object]:
    """The settings that ``--set`` gives to the client of `produce` or `consume`."""
    words = [word for text in texts for word in ("--set", text)]
    config = ProducerConfig if command == "produce" else ConsumerConfig
    return client_settings(build_parser(command).parse_args([command, "t", *words]), config)


def test_the_admin_client_gets_the_connection_settings_of_another_client() -> None:
    settings = settings_given("produce", "wire=kafka", "linger.ms=5", "client.id=me")
    config = make_admin("h:1", settings).config
    assert (config.wire, config.client_id) == ("kafka", "me")


def test_a_setting_has_the_type_that_its_client_declares() -> None:
    texts = ["client_id=42", "group.instance.id=true", "fetch.min.bytes=8", "check_crcs=False"]
    settings = settings_given("consume", *texts)
    assert settings == {
        "client_id": "42",
        "group_instance_id": "true",
        "fetch_min_bytes": 8,
        "check_crcs": False,
    }
    ConsumerConfig.of({"group_id": "g", **settings})
    assert settings_given("produce", "enable.idempotence=false") == {"enable_idempotence": False}
    with pytest.raises(InvalidConfiguration, match="linger_ms='soon': expected a whole number"):
        settings_given("produce", "linger.ms=soon")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("produce t --set bootstrap.servers=h:1", "--bootstrap-server"),
        ("produce t --set acks=1", "--acks"),
        ("produce t --set compression.type=gzip", "--compression"),
        ("produce t --set transactional_id=x", "--transactional-id"),
        ("consume t --set bootstrap.servers=h:1", "--bootstrap-server"),
        ("consume t --set group.id=g", "--group"),
        ("consume t --set isolation.level=read_committed", "--isolation"),
        ("consume t --set skip.damaged.batches=true", "--skip-damaged"),
        ("perf produce --set acks=0", "--acks"),
        ("perf consume --set bootstrap.servers=h:1", "--bootstrap-server"),
    ],
)
def test_a_setting_that_has_an_option_is_refused_with_its_name(words: str, flag: str, capsys: Output) -> None:
    assert main([*words.split(), "-b", "127.0.0.1:1"]) == exit_codes.USAGE
    name = words.split()[-1].partition("=")[0].replace("_", ".")
    assert f"--set {name}: use {flag} instead\n" in capsys.readouterr().err


def test_a_command_without_a_stdout_ends_as_others(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("0\n0\n")
    command = [sys.executable, "-m", "barnabas", "log", "dump", str(path)]
    done = subprocess.run(command, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (exit_codes.OK, b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["statsu"], "'statsu'; did you mean status?"),
        (["topic", "list"], "'topic'; did you mean topics?"),
        (["topics", "craete", "t"], "'craete'; did you mean create?"),
        (["produce", "t", "--acks", "al"], "'al'; did you mean all?"),
        (["topics", "create", "t", "--partition-s", "3"], "--partition-s 3; did you mean --partitions?"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_usage_is_answered_with_the_name_that_was_meant(
    arguments: list[str], said: str, capsys: Output
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == exit_codes.USAGE
    error = capsys.readouterr().err
    assert said in error
    assert f"usage: barnabas {arguments[0]}" in error or arguments[0] not in COMMANDS


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["produce", "t", "--partition", "0", "f"], {"topic": "t", "file": Path("f"), "partition": 0}),
        (["produce", "--partition", "0", "t", "--acks", "1"], {"topic": "t", "file": Path("-"), "acks": "1"}),
        (["topics", "create", "--set", "a=1", "t"], {"topic": "t", "config": ["a=1"]}),
        (["topics", "describe", "t", "--json", "u"], {"topics": ["t", "u"], "json": True}),
        (["topics", "delete", "--", "-t"], {"topics": ["-t"]}),
        (["topics", "alter", "t", "--config", "a=1"], {"sets": ["a=1"]}),
        (["logs", "-f", "2"], {"broker": 2, "follow": True}),
        (["elect", "preferred", "--json", "t:0"], {"partitions": ["t:0"]}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_may_come_before_between_and_after_the_words(
    words: list[str], expected: dict[str, object]
) -> None:
    options = vars(build_parser(words[0]).parse_args(words))
    assert {name: options[name] for name in expected} == expected


def test_an_option_beats_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    # No server listens on port 1 of this host.
    monkeypatch.setenv("BARNABAS_BOOTSTRAP", "127.0.0.1:1")
    assert main(["topics", "list", "--dir", str(tmp_path)]) == exit_codes.NOT_FOUND
    assert f"no cluster is running in {tmp_path}" in capsys.readouterr().err
    assert main(["topics", "list"]) == exit_codes.NOT_REACHABLE
    assert "(the address comes from BARNABAS_BOOTSTRAP)" in capsys.readouterr().err
    assert main(["topics", "list", "-b", "127.0.0.1:1"]) == exit_codes.NOT_REACHABLE
    assert "BARNABAS_BOOTSTRAP" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "delete", "t", "-b", ""],
        ["topics", "list", "--dir", ""],
        ["down", "--dir", ""],
        ["consume", "t", "--group", ""],
        ["produce", "t", "--transactional-id", ""],
        ["groups", "lag", ""],
    ],
    ids=" ".join,
)
def test_an_empty_option_is_wrong_usage_and_not_the_environment(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("BARNABAS_BOOTSTRAP", "127.0.0.1:1")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == exit_codes.USAGE
    option = words[-2].replace("lag", "GROUP")
    assert re.search(rf"argument {option}\b.*: expected a value, not an empty text", capsys.readouterr().err)


@pytest.mark.parametrize(
    "words",
    [
        "topics describe {}",
        "topics create t --config a={}",
        "produce {} f",
        "produce t --set client.id={}",
        "produce t --key-separator {}",
        "consume t --group {}",
        "groups lag {}",
        "transactions describe {}",
        "status --topic {}",
        "topics list -b {}:1",
    ],
)
def test_a_text_that_is_no_utf_8_is_wrong_usage(words: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.format("x\udcff").split())
    assert ended.value.code == exit_codes.USAGE
    assert "expected text in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["log", "dump", "x\udcff"],
        ["topics", "list", "--dir", "x\udcff"],
        ["produce", "t", "x\udcff", "-b", "h:1"],
        ["reassign", "execute", "x\udcff", "-b", "h:1"],
    ],
    ids=lambda words: words[0],
)
def test_a_file_may_have_any_name(words: list[str], capsys: Output) -> None:
    assert main(words) == exit_codes.NOT_FOUND
    assert "x\\udcff" in capsys.readouterr().err.encode(errors="backslashreplace").decode()


def test_what_the_terminal_cannot_show_is_escaped() -> None:
    code = (
        "import sys\n"
        "from barnabas.cli import completion, main\n"
        "from barnabas.cli.output import print_json, print_table\n"
        "def run(options):\n"
        "    print('gr\\u00fcn \\udcff')\n"
        "    print_table(('gr\\u00fcn',), [('\\u2713 \\udcff',)])\n"
        "    print_json('gr\\u00fcn \\u2713 \\udcff')\n"
        "    return 0\n"
        "completion.add_arguments = lambda parser, name: parser.set_defaults(run=run)\n"
        "sys.exit(main.main(['completion']))\n"
    )
    for encoding in ("ascii", "latin-1", "utf-8"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            timeout=150,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"},
        )
        assert done.returncode == exit_codes.OK, done.stderr
        last = done.stdout.decode(encoding).splitlines()[-1]
        assert json.loads(last) == "gr\u00fcn \u2713 \udcff"
    helped = subprocess.run(
        [sys.executable, "-m", "barnabas", "topics", "list", "--help"],
        capture_output=True,
        timeout=150,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert helped.returncode == exit_codes.OK, helped.stderr


def test_a_broker_that_cannot_be_reached_is_reported_once() -> None:
    command = [sys.executable, "-m", "barnabas", "topics", "list", "-b", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == exit_codes.NOT_REACHABLE
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_command_leaves_the_loggers_as_they_were(capsys: Output) -> None:
    names = ("barnabas.client.cluster", "barnabas.client.producer.sender")
    before = [logging.getLogger(name).level for name in names]
    assert main(["topics", "list", "-b", "127.0.0.1:1"]) == exit_codes.NOT_REACHABLE
    assert main(["produce", "t", os.devnull, "-b", "127.0.0.1:1"]) == exit_codes.NOT_REACHABLE
    assert [logging.getLogger(name).level for name in names] == before


def test_a_dead_zookeeper_is_named_before_a_command_waits_for_it(tmp_path: Path, capsys: Output) -> None:
    dead = ProcessId(2**22 + 1, "boot:1")
    broker = BrokerRecord(id=1, port=1, directory="/b", log_dirs=["/b/d"], process=ProcessId.of(os.getpid()))
    record = ClusterRecord(
        directory=str(tmp_path),
        host="127.0.0.1",
        zookeeper_connect="127.0.0.1:2",
        zookeeper_port=2,
        zookeeper_process=dead,
        brokers=[broker],
    )
    write_record(record)
    remedy = f"ZooKeeper is down: `barnabas restart zookeeper --dir {tmp_path}`"
    said = f"barnabas topics: {remedy}\n"
    assert main(["topics", "list", "--dir", str(tmp_path)]) == exit_codes.NOT_REACHABLE
    assert capsys.readouterr().err.startswith(said)
    main(["topics", "list", "--dir", str(tmp_path), "-b", "127.0.0.1:1"])
    assert capsys.readouterr().err.startswith(said)
    main(["topics", "list", "--dir", str(tmp_path), "-b", "127.0.0.1:3"])
    assert said not in capsys.readouterr().err, "it belongs to another cluster"
    assert main(["status", "--dir", str(tmp_path), "--json"]) == exit_codes.NOT_REACHABLE
    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"][0] == remedy
    assert "127.0.0.1:1" in shown["problems"][-1]


def test_the_exports_replace_an_earlier_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    default = tmp_path / ".barnabas" / "default"
    record = ClusterRecord(directory=str(default), host="h", zookeeper_connect="h:1", brokers=[])
    default.mkdir(parents=True)
    write_record(record)
    cluster = RunningCluster.open(default)
    monkeypatch.delenv("BARNABAS_DIR")
    assert not any("BARNABAS_DIR" in line for line in exports(cluster))
    options = argparse.Namespace(cluster_dir=str(default))
    assert dir_words(options) == ""
    monkeypatch.setenv("BARNABAS_DIR", "/elsewhere")
    assert f"export BARNABAS_DIR={default}" in exports(cluster)
    assert dir_words(options) == f" --dir {default}"


def test_the_exports_of_an_open_cluster_drop_the_settings_of_a_secured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = ClusterConfiguration(brokers=1)
    record = ClusterRecord(
        directory=str(tmp_path), host="h", zookeeper_connect="h:1", configuration=configuration
    )
    monkeypatch.delenv("BARNABAS_COMMAND_CONFIG", raising=False)

    def lines() -> list[str]:
        write_record(record)
        return [line for line in exports(RunningCluster.open(tmp_path)) if "COMMAND_CONFIG" in line]

    assert lines() == []
    monkeypatch.setenv("BARNABAS_COMMAND_CONFIG", "/elsewhere")
    assert lines() == ["unset BARNABAS_COMMAND_CONFIG"]
    configuration.security = SecurityConfiguration(tls=True)
    assert lines() == [f"export BARNABAS_COMMAND_CONFIG={tmp_path}/clients/admin/client.properties"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileExistsError(17, "File exists", "/x"), "barnabas down: /x: File exists\n"),
        (PermissionError(1, "Operation not permitted"), "barnabas down: Operation not permitted\n"),
        (OSError("no number"), "barnabas down: no number\n"),
    ],
    ids=["with file", "without file", "text alone"],
)
def test_an_error_of_the_system_is_shown_without_its_number(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def fail(options: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("barnabas.cli.cluster.open_cluster", fail)
    main(["down"])
    assert capsys.readouterr().err == said


def test_an_interrupted_command_ends_with_the_code_of_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def interrupt(options: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("barnabas.cli.cluster.open_cluster", interrupt)
    assert main(["down"]) == exit_codes.INTERRUPTED
    assert capsys.readouterr().err == ""


INTERRUPTED_AT_IMPORT = """
import os, signal, sys

_, imported, entry = sys.argv

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == imported:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
module, function = entry.split(":")
command = getattr(__import__(module, fromlist=[function]), function)
sys.argv[1:] = ["topics", "list", "-b", "127.0.0.1:1"]
sys.exit(command())
"""


@pytest.mark.parametrize("imported", ["argparse", "barnabas.cli.main", "barnabas.cli.topics", "asyncio"])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(imported: str) -> None:
    root = Path(__file__).parents[3]
    entry = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]["barnabas"]
    command = [sys.executable, "-c", INTERRUPTED_AT_IMPORT, imported, entry]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode in (-signal.SIGINT, exit_codes.INTERRUPTED)
    assert done.stderr == ""


def test_ctrl_c_that_the_parent_ignores_is_ignored() -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT_IMPORT, "argparse", "barnabas.__main__:main"]

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, preexec_fn=ignore
    )
    assert done.returncode == exit_codes.NOT_REACHABLE, done.stderr
