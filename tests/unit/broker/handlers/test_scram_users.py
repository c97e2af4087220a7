"""Describing and altering the SCRAM credentials of users, in Kafka's format and with its answers."""

import pytest

from barnabas.common.security import scram
from barnabas.common.security.scram import ScramMechanism
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)
from barnabas.zookeeper.configs import Entity
from tests.support.serving import Serving

SALTED = scram.salted_password(ScramMechanism.SHA_256, "pencil", b"salt", 4096)


def upsert(
    name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt", salted: bytes = SALTED
) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def delete(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(
    serving: Serving, *changes: ScramCredentialUpsertion | ScramCredentialDeletion
) -> dict[str, tuple[int, str | None]]:
    answer = serving.call(
        AlterUserScramCredentialsRequest(
            deletions=[change for change in changes if isinstance(change, ScramCredentialDeletion)],
            upsertions=[change for change in changes if isinstance(change, ScramCredentialUpsertion)],
        ),
        version=0,
    )
    outcomes = {result.user: (result.error_code, result.error_message) for result in answer.results}
    assert len(outcomes) == len(answer.results), "one result for each user"
    return outcomes


def describe(serving: Serving, *names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    users = [ScramUserName(name=name) for name in names] or None
    answer = serving.call(DescribeUserScramCredentialsRequest(users=users), version=0)
    assert answer.error_code == 0
    return {
        result.user: (
            result.error_code,
            [(info.mechanism, info.iterations) for info in result.credential_infos],
        )
        for result in answer.results
    }


def test_credentials_are_stored_as_kafka_stores_them_beside_other_settings(serving: Serving) -> None:
    alice = Entity.user("al/ice")
    serving.configs.stored[alice] = {"producer_byte_rate": "1000"}
    assert alter(serving, upsert("al/ice"), upsert("al/ice", 2, 8192), upsert("bob")) == {
        "al/ice": (0, ""),
        "bob": (0, ""),
    }
    stored = serving.configs.stored[alice]
    assert stored.keys() == {"producer_byte_rate", "SCRAM-SHA-256", "SCRAM-SHA-512"}
    expected = scram.make_credential(ScramMechanism.SHA_256, "pencil", 4096, b"salt")
    assert stored["SCRAM-SHA-256"] == expected.text
    assert describe(serving) == {"al/ice": (0, [(1, 4096), (2, 8192)]), "bob": (0, [(1, 4096)])}
    assert alter(serving, delete("al/ice", 2), upsert("al/ice", 1, 5000)) == {"al/ice": (0, "")}
    assert describe(serving, "al/ice") == {"al/ice": (0, [(1, 5000)])}
    assert alter(serving, delete("al/ice")) == {"al/ice": (0, "")}
    assert serving.configs.stored[alice] == {"producer_byte_rate": "1000"}
    assert describe(serving) == {"bob": (0, [(1, 4096)])}


def test_each_user_has_an_outcome_and_no_wrong_change_is_made(serving: Serving) -> None:
    alter(serving, upsert("carol"))
    before = dict(serving.configs.stored)
    twice = "A user credential cannot be altered twice in the same request"
    missing = "Attempt to delete a user credential that does not exist"
    assert alter(
        serving,
        upsert(""),
        upsert("unknown", 3),
        delete("unknown too", 0),
        upsert("few", iterations=4095),
        upsert("many", iterations=16385),
        upsert("no salt", salt=b""),
        upsert("twice"),
        upsert("twice", iterations=5000),
        upsert("both"),
        delete("both"),
        delete("nobody"),
        upsert("carol", 2),
        delete("carol", 2),
        upsert("partly", 2),
        delete("partly", 1),
        upsert("good"),
    ) == {
        "": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        "unknown": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "unknown too": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "few": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        "many": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        "no salt": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Empty salt or password"),
        "twice": (ErrorCode.DUPLICATE_RESOURCE, twice),
        "both": (ErrorCode.DUPLICATE_RESOURCE, twice),
        "nobody": (ErrorCode.RESOURCE_NOT_FOUND, missing),
        "carol": (ErrorCode.DUPLICATE_RESOURCE, twice),
        "partly": (ErrorCode.RESOURCE_NOT_FOUND, missing),
        "good": (0, ""),
    }
    assert serving.configs.stored.keys() == {*before, Entity.user("good")}
    assert serving.configs.stored[Entity.user("carol")] == before[Entity.user("carol")]


def test_only_the_controller_changes_them_and_every_broker_shows_them(serving: Serving) -> None:
    alter(serving, upsert("alice"))
    serving.controller.is_active = False
    ((code, _),) = alter(serving, delete("alice")).values()
    assert code == ErrorCode.NOT_CONTROLLER
    assert describe(serving, "alice") == {"alice": (0, [(1, 4096)])}


def test_users_that_are_named_twice_or_have_none_are_told_apart(serving: Serving) -> None:
    alter(serving, upsert("alice"), upsert("bob"))
    serving.configs.stored[Entity.user("rate")] = {"producer_byte_rate": "1000"}
    assert describe(serving, "alice", "bob", "alice", "rate", "nobody", "") == {
        "alice": (ErrorCode.DUPLICATE_RESOURCE, []),
        "bob": (0, [(1, 4096)]),
        "rate": (ErrorCode.RESOURCE_NOT_FOUND, []),
        "nobody": (ErrorCode.RESOURCE_NOT_FOUND, []),
        "": (ErrorCode.RESOURCE_NOT_FOUND, []),
    }


def test_a_broken_credential_is_reported_and_not_shown(serving: Serving) -> None:
    serving.configs.stored[Entity.user("alice")] = {"SCRAM-SHA-256": "salt=c2VjcmV0"}
    answer = serving.call(DescribeUserScramCredentialsRequest(users=None))
    (result,) = answer.results
    assert result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "c2VjcmV0" not in result.error_message


@pytest.mark.parametrize("names", [[], ["alice"]])
def test_trouble_with_zookeeper_is_told(serving: Serving, names: list[str]) -> None:
    alter(serving, upsert("alice"))
    serving.configs.trouble = api_error(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper does not answer")
    users = [ScramUserName(name=name) for name in names]
    answer = serving.call(DescribeUserScramCredentialsRequest(users=users))
    assert [answer.error_code, *(result.error_code for result in answer.results)] == (
        [0, ErrorCode.REQUEST_TIMED_OUT] if names else [ErrorCode.REQUEST_TIMED_OUT]
    )
    assert alter(serving, upsert("bob"))["bob"][0] == ErrorCode.REQUEST_TIMED_OUT
