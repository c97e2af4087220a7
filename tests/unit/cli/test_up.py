"""The options of `barnabas up` that secure a cluster."""

import argparse

import pytest

from barnabas.cli import up
from barnabas.cli.exit_codes import USAGE, CommandError
from barnabas.cli.main import build_parser
from barnabas.deploy.state import SecurityConfiguration

SCRAM = "SCRAM-SHA-256"


def options(*words: str) -> argparse.Namespace:
    return build_parser("up").parse_args(["up", *words])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),
        (["--user", "alice"], None),
        (["--secure"], SecurityConfiguration(tls=True, mechanism=SCRAM, acl=True)),
        (
            ["--secure", "--sasl", "scram-sha-512"],
            SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-512", acl=True),
        ),
        (["--tls"], SecurityConfiguration(tls=True)),
        (["--tls", "--host", "a.b", "--host", "::1"], SecurityConfiguration(tls=True, hosts=["a.b", "::1"])),
        (["--sasl", "PLAIN"], SecurityConfiguration(mechanism="PLAIN")),
        (["--acl"], SecurityConfiguration(acl=True)),
        (["--no-secure"], SecurityConfiguration()),
    ],
)
def test_what_is_switched_on(words: list[str], expected: SecurityConfiguration | None) -> None:
    assert up._security(options(*words)) == expected


@pytest.mark.parametrize("words", [["--no-secure", "--tls"], ["--no-secure", "--user", "a"], ["--host", "a"]])
def test_options_that_contradict_each_other_are_refused(words: list[str]) -> None:
    with pytest.raises(CommandError) as refused:
        up._security(options(*words))
    assert refused.value.exit_code == USAGE


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], False), (["--links"], True), (["--ui"], True), (["--ui", "--no-links"], False)],
)
def test_a_page_comes_with_links_to_break(words: list[str], expected: bool) -> None:
    assert up._has_links(options(*words)) is expected


def test_users_have_passwords_or_not() -> None:
    assert options("--user", "alice", "--user", "bob:a:b").users == [("alice", None), ("bob", "a:b")]


@pytest.mark.parametrize("words", ["--user :pw", "--user a:", "--host a_b", "--sasl GSSAPI"])
def test_a_malformed_value_is_refused_without_showing_a_password(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options(*words.split())
    assert ":pw" not in capsys.readouterr().err


def test_secrets_among_settings_are_not_printed() -> None:
    assert up._shown("log.retention.ms", "5") == "5"
    for name in ("ssl.keystore.password", "listener.name.x.plain.sasl.jaas.config", "ssl.keystore.key"):
        assert up._shown(name, "secret") == "[hidden]"
