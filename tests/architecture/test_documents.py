"""What the README and docs/ name is there: files, commands, make's targets, settings, options, benchmarks."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.broker.config.settings import KNOWN_NAMES, TOPIC_ROWS
from barnabas.cli.main import build_parser
from barnabas.spark_connector.options import OPTIONS

ROOT = Path(__file__).parents[2]
DOCUMENTS = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}
PLACEHOLDERS = {"FILE": "some.log", "BROKER": "1"}
NOT_OURS = re.compile(r"(barnabas|spark|sys|os)\..*|.*\.(py|md|yml)")
"""Dotted names that are no settings of a broker or topic."""
MADE_WHEN_USED = ("build/",)


def quoted(text: str) -> list[str]:
    """What stands in backticks within a line."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def blocks(text: str) -> list[str]:
    """The lines of indented code blocks, without their comments."""
    return [line.partition(" #")[0].strip() for line in re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)]


def named_files(text: str) -> list[str]:
    return [name for name in quoted(text) if re.fullmatch(r"[\w./]+/|[\w/]+\.(py|md|yml)", name)]


def named_settings(text: str) -> list[str]:
    found = [re.fullmatch(r"([a-z]+(\.[a-z]+)+)(=\S+)?", name) for name in quoted(text)]
    return [match[1] for match in found if match and not NOT_OURS.fullmatch(match[1])]


def command_lines(text: str, program: str) -> list[list[str]]:
    """The arguments of every call of a program: in code blocks, behind pipes too, and in backticks."""
    parts = [part.strip() for line in blocks(text) for part in re.split(r"\||&&", line)]
    # A table's row names several commands at once; its first cell has the whole of one.
    parts += [name for name in quoted(text) if not name.endswith("/")]
    return [shlex.split(part)[1:] for part in parts if part.startswith(program + " ")]


def is_there(name: str) -> bool:
    return (ROOT / name).exists() or ("/" not in name and any(ROOT.glob(f"[a-z]*/**/{name}")))


def parses(arguments: list[str]) -> bool:
    """Whether the command takes this line, or it is only the beginning of one, as in a text."""
    words = [PLACEHOLDERS.get(word, word) for word in arguments]
    try:
        build_parser(words[0]).parse_args(words)
    except SystemExit:
        return False
    return True


def is_command(arguments: list[str]) -> bool:
    """Whether there is such a (sub)command, whatever else it wants."""
    try:
        build_parser(arguments[0]).parse_args([*arguments, "--help"])
    except SystemExit as end:
        return end.code == 0
    return False


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_is_named_exists(name: str) -> None:
    text = DOCUMENTS[name]
    linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    folder = ROOT if name == "README.md" else ROOT / "docs"
    assert [target for target in linked if not (folder / target).exists()] == []
    assert [file for file in named_files(text) if file not in MADE_WHEN_USED and not is_there(file)] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_setting_that_is_named_exists(name: str) -> None:
    known = KNOWN_NAMES | set(TOPIC_ROWS) | set(OPTIONS)
    assert [setting for setting in named_settings(DOCUMENTS[name]) if setting not in known] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_call_of_the_command_in_a_code_block_is_one_that_it_takes(name: str) -> None:
    shown = command_lines("\n".join(f"    {line}" for line in blocks(DOCUMENTS[name])), "barnabas")
    assert [words for words in shown if not parses(words)] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_that_a_text_names_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = [
        [w for w in words if w not in PLACEHOLDERS] for words in command_lines(DOCUMENTS[name], "barnabas")
    ]
    assert [words for words in named if not is_command(words)] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_target_of_make_exists(name: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [words[0] for words in command_lines(DOCUMENTS[name], "make") if words[0] not in targets] == []


def test_every_option_of_the_data_source_is_described() -> None:
    assert [name for name in OPTIONS if f"`{name}`" not in DOCUMENTS["spark.md"]] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_benchmark_that_is_named_exists_and_has_the_options_shown(name: str) -> None:
    for line in blocks(DOCUMENTS[name]):
        if (found := re.search(r"-m (benchmarks[\w.]*)(.*)", line)) is None:
            continue
        done = subprocess.run(
            [sys.executable, "-m", found[1], "--help"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        shown = re.findall(r"--[a-z-]+", found[2])
        assert [option for option in shown if option not in done.stdout] == [], line


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_python_shown_is_python(name: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", DOCUMENTS[name], flags=re.DOTALL):
        # Some of it stands within a coroutine.
        ast.parse("async def shown():\n" + "".join(f"    {line}\n" for line in code.splitlines()))


def test_the_checks_see_what_is_not_there() -> None:
    text = "`broker/gone.py`, `no.such.setting=3`, `barnabas fly`, `make gold`"
    assert [file for file in named_files(text) if not is_there(file)] == ["broker/gone.py"]
    assert named_settings(text) == ["no.such.setting"]
    assert command_lines(text, "make") == [["gold"]]
    assert [is_command(words) for words in command_lines(text, "barnabas")] == [False]
    assert not parses(["up", "--never"])
