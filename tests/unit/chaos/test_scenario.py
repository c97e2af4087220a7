"""A scenario is read whole, or refused in one sentence with the place and what is accepted there."""

import re
from pathlib import Path

import pytest

from barnabas.chaos.scenario import (
    Target,
    builtin_scenarios,
    find_scenario,
    parse_scenario,
    read_scenario,
    targets_of,
)
from barnabas.protocol.errors import InvalidConfiguration

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"
HEAD = 'title = "x"\nseconds = 9\n'


def step(do: str, target: object = None, at: object = 1, more: str = "") -> str:
    named = "" if target is None else f"target = {target!r}\n"
    return f"[[steps]]\nat = {at}\ndo = {do!r}\n{named}{more}"


@pytest.mark.parametrize("name", builtin_scenarios())
def test_a_built_in_scenario_is_valid_and_says_what_it_shows(name: str) -> None:
    scenario = read_scenario(find_scenario(name))
    assert scenario.text
    assert scenario.steps


def test_the_built_in_scenarios_are_these() -> None:
    assert {"leader-dies", "controller-dies", "follower-lags", "split-link", "unclean-election"} <= set(
        builtin_scenarios()
    )


@pytest.mark.parametrize(
    ("do", "target", "expected"),
    [
        ("kill", 3, [Target("id", 3)]),
        ("kill", "2", [Target("id", 2)]),
        ("pause", "controller", [Target("controller")]),
        ("kill", "the leader of t-2", [Target("leader", 2)]),
        ("cut", "leader of t-0 to a follower of t-0", [Target("leader", 0), Target("follower", 0)]),
        ("slow", "1 to zookeeper", [Target("id", 1), Target("zookeeper")]),
        ("mend-all", None, []),
        ("restart", "zookeeper", [Target("zookeeper")]),
    ],
)
def test_targets(do: str, target: str | int | None, expected: list[Target]) -> None:
    [only] = parse_scenario(HEAD + step(do, target)).steps
    assert targets_of(only) == expected


def test_settings_are_written_as_in_a_properties_file() -> None:
    text = HEAD + '[topic]\nsettings = { "unclean.leader.election.enable" = true, "retention.ms" = 5 }\n'
    assert parse_scenario(text).topic_settings == {
        "unclean.leader.election.enable": "true",
        "retention.ms": "5",
    }


def test_the_scenario_of_the_documentation_is_valid() -> None:
    [text] = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(parse_scenario(text).steps) == 3


def test_only_faults_of_links_need_links() -> None:
    assert parse_scenario(HEAD + step("cut", "1 to 2")).needs_links
    assert not parse_scenario(HEAD + step("kill", 1)).needs_links


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("title = x\n", "this is not TOML: .*line 1"),
        ("seconds = 9\n", "missing `title`"),
        (HEAD + "[lod]\n", "lod is unknown; did you mean load"),
        (HEAD + "[load]\nrecord_per_s = 1\n", "load.record_per_s is unknown; did you mean records_per_s"),
        (HEAD + '[load]\nreaders = "1"\n', r"^load.readers: '1'; expected a whole number$"),
        (HEAD + "[load]\nrecords_per_s = 1\n", "load.records_per_s: 1; expected a whole number >= 100"),
        (HEAD + "[load]\nacks = 0\n", "load.acks: 0; expected one of all, 1"),
        (HEAD + "[topic]\nreplicas = 4\n", "topic.replicas is 4, and there are 3 brokers"),
        (HEAD + step("kil", 1), "step 1, do: there is no fault 'kil'; did you mean kill"),
        (HEAD + step("kill", 1, more="targt = 1\n"), "step 1, targt is unknown; did you mean target"),
        (HEAD + step("kill", 1, at="'1'"), "step 1, at: '1'; expected a number"),
        (HEAD + step("kill", 1.5), "step 1, target: 1.5; expected a whole number or a text"),
        (HEAD + step("kill", 1, more="delay_ms = true\n"), "step 1, delay_ms: true; expected a number$"),
        (HEAD + step("kill", 1, more="delay_ms = 5\n"), "step 1, delay_ms: 5; 'kill' takes none"),
        (HEAD + step("slow", "1 to 2", more="delay_ms = -1\n"), "step 1, delay_ms: -1; expected .* >= 0"),
        (HEAD + "[cluster]\nsettings = { a = 1, b = [2] }\n", r"cluster.settings.b: \[2\]; expected"),
        (HEAD + step("cut", "1 to 1"), "'1 to 1': expected a link between two different ends"),
        (HEAD + step("kill", "9" * 5000), "step 1: target '9{39}… is unknown"),
        (HEAD + f"text = {'[' * 5000}", "values are nested too deeply"),
        (f"seconds = {'9' * 5000}\n", "this is not TOML: Exceeds the limit"),
        (HEAD + step("kill", 1, at=9), "step 1, at: 9 is out of order; expected a time from 0 s"),
        (HEAD + step("kill", 1, at=3) + step("restart", 1, at=2), "step 2, at: 2 is out of order"),
        (HEAD + step("kill"), "step 1: target '' is unknown"),
        (HEAD + step("kill", 4), "step 1: there is no broker 4; expected 1 to 3"),
        (HEAD + step("kill") + step("kill", 3, at=9), "step 1: target '' is unknown"),
        (HEAD + step("kill", "leader of p-0"), "'leader of p-0' is unknown; did you mean leader of t-0"),
        (HEAD + step("kill", "leader of t-3"), "there is no partition t-3; expected t-0 to t-2"),
        (HEAD + "[topic]\nreplicas = 1\n" + step("kill", "a follower of t-0"), "has no follower"),
        (HEAD + step("drain", "zookeeper"), "'drain' needs a broker"),
        (HEAD + step("kill", "clients"), "'kill' needs a broker"),
        (HEAD + step("cut", 1), "'cut' needs a link"),
        (HEAD + step("mend-all", 1), "takes no target"),
        (HEAD + step("kill", "target of step 1"), "step 1 is not an earlier step with a broker"),
        (HEAD + step("cut", "1 to 2") + step("kill", "target of step 1"), "step 1 is not an earlier step"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_accepted(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        parse_scenario(text)


@pytest.mark.parametrize(
    ("size", "reason"), [(65_536, "missing `title`"), (65_537, "expected a scenario of at most 65,536 bytes")]
)
def test_a_file_is_bounded(size: int, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_bytes(b"#" * size)
    with pytest.raises(InvalidConfiguration, match=reason):
        read_scenario(file)


def test_a_scenario_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(HEAD.encode() + b"# \xe9\n")
    assert find_scenario(str(file)) == file
    with pytest.raises(InvalidConfiguration, match=r"latin\.toml: expected text in UTF-8"):
        read_scenario(file)


def test_an_unknown_scenario_has_a_suggestion() -> None:
    with pytest.raises(FileNotFoundError, match="did you mean leader-dies"):
        find_scenario("leader-dis")
