"""The README and docs/ name only existing files, commands, make targets, settings, options and benchmarks."""

import argparse
import ast
import importlib.util
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from barnabas.broker.config.settings import KNOWN_NAMES
from barnabas.broker.config.topic_config import TOPIC_SETTINGS
from barnabas.cli.main import COMMANDS, build_parser
from barnabas.client.security import SecurityConfig
from barnabas.common.settings import settings_of
from barnabas.spark_connector.client_settings import KAFKA_NAMES, KAFKA_PREFIX
from barnabas.spark_connector.options import OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
DOCUMENTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
PLACEHOLDERS = {"FILE": "some.log", "BROKER": "1"}
NOT_OURS = re.compile(r"(barnabas|messaging|spark|sys|os)\..*|.*\.(py|md|yml)")
"""Dotted names that are no settings of a broker or topic."""
MADE_WHEN_USED = ("build/",)


def quoted(text: str) -> list[str]:
    """Text in backticks within a line."""
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
    """The arguments of every call of a program: in code blocks, after pipes too, and in backticks."""
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
    """Whether the (sub)command exists, with any arguments."""
    try:
        build_parser(arguments[0]).parse_args([*arguments, "--help"])
    except SystemExit as end:
        return end.code == 0
    return False


def subparsers_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {
        name: sub
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, sub in action.choices.items()
    }


def missing(check: Callable[[str], Iterable[object]]) -> list[tuple[str, object]]:
    """The problems that a check finds, each with its page."""
    return [(page, problem) for page, text in DOCUMENTS.items() for problem in check(text)]


def test_every_file_that_is_named_exists() -> None:
    for page, text in DOCUMENTS.items():
        linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
        assert [target for target in linked if not ((ROOT / page).parent / target).exists()] == [], page
    assert (
        missing(lambda text: [f for f in named_files(text) if f not in MADE_WHEN_USED and not is_there(f)])
        == []
    )


def test_every_setting_that_is_named_exists() -> None:
    of_security = {field.replace("_", ".") for field in settings_of(SecurityConfig)}
    options = {KAFKA_PREFIX + name for name in KAFKA_NAMES | of_security}.union(OPTIONS)
    known = {*KNOWN_NAMES, *TOPIC_SETTINGS, *options}
    assert missing(lambda text: [setting for setting in named_settings(text) if setting not in known]) == []


def test_every_call_of_the_command_in_a_code_block_is_one_that_it_takes() -> None:
    def refused(text: str) -> list[list[str]]:
        shown = command_lines("\n".join(f"    {line}" for line in blocks(text)), "barnabas")
        return [words for words in shown if not parses(words)]

    assert missing(refused) == []


def test_every_command_that_a_text_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    def unknown(text: str) -> list[list[str]]:
        named = [[w for w in words if w not in PLACEHOLDERS] for words in command_lines(text, "barnabas")]
        return [words for words in named if not is_command(words)]

    assert missing(unknown) == []


def test_every_command_has_a_section_that_shows_each_of_its_actions() -> None:
    page = DOCUMENTS["docs/cli.md"]
    sections = re.findall(r"^### (.+)\n((?:(?!#).*\n)*)", page, flags=re.MULTILINE)
    by_command = {name: text for heading, text in sections for name in heading.split(", ")}
    assert sorted(by_command) == sorted(COMMANDS)
    for command, text in by_command.items():
        shown = {words[1] for words in command_lines(text, "barnabas") if words[0] == command and words[1:]}
        assert subparsers_of(subparsers_of(build_parser(command))[command]).keys() <= shown, command


def test_every_target_of_make_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert missing(lambda text: [w[0] for w in command_lines(text, "make") if w[0] not in targets]) == []


def test_every_option_of_the_data_source_is_described() -> None:
    assert [name for name in OPTIONS if f"`{name}`" not in DOCUMENTS["docs/spark.md"]] == []


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")
def test_every_benchmark_that_is_named_exists_and_has_the_options_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {
        found
        for text in DOCUMENTS.values()
        for line in blocks(text)
        for found in re.findall(r"-m (benchmarks[\w.]*)(.*)", line)
    }
    for module, options in sorted(shown):
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__")
        said = capsys.readouterr()
        assert not end.value.code, f"{module}: {said.err}"
        assert [option for option in re.findall(r"--[a-z-]+", options) if option not in said.out] == [], (
            module
        )


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_the_python_shown_is_python() -> None:
    for text in DOCUMENTS.values():
        for code in python_blocks(text):
            # Some examples use await outside of a function.
            ast.parse("async def shown():\n" + "".join(f"    {line}\n" for line in code.splitlines()))


def test_the_helpers_that_the_page_on_testing_imports_exist() -> None:
    text = "\n".join(python_blocks(DOCUMENTS["docs/testing.md"]))
    imports = re.findall(r"^from (\S+) import (.+)$", text, flags=re.MULTILINE)
    assert len(imports) > 10
    for module, names in imports:
        for name in names.split(", "):
            imported = importlib.import_module(module)
            assert hasattr(imported, name) or importlib.util.find_spec(f"{module}.{name}"), (module, name)


@pytest.mark.parametrize(
    ("target", "file"),
    [("settings", "docs/settings.md"), ("dashboard", "deploy/grafana/dashboards/barnabas.json")],
)
def test_a_generated_file_is_what_its_generator_makes(
    target: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"make_{target}"
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    # A dataclass looks for its module.
    monkeypatch.setitem(sys.modules, name, generator)
    spec.loader.exec_module(generator)
    assert (ROOT / file).read_text() == generator.render(), f"run `make {target}`"


def test_the_checks_report_missing_files_and_commands() -> None:
    text = "`broker/gone.py`, `no.such.setting=3`, `barnabas fly`, `make gold`"
    assert [file for file in named_files(text) if not is_there(file)] == ["broker/gone.py"]
    assert named_settings(text) == ["no.such.setting"]
    assert command_lines(text, "make") == [["gold"]]
    assert [is_command(words) for words in command_lines(text, "barnabas")] == [False]
    assert not parses(["up", "--never"])
