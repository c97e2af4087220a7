"""Whether and how a session with ZooKeeper is secured; tests/cluster has a real ZooKeeper."""

import importlib.util
import re

import pytest
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from barnabas.common.security.jaas import PLAIN_LOGIN, LoginModule
from barnabas.common.security.tls import TlsSettings
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.zookeeper.multi_read import Client
from barnabas.zookeeper.security import DIGEST_LOGIN, SessionSecurity, acl_of
from tests.support.cases import each


@each(
    [
        ("/brokers/ids/1", [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]),
        ("/config/topics/users", [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]),
        ("/kafka-acl/Topic/a", [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]),
        ("/config/users", CREATOR_ALL_ACL),
        ("/cluster/secret", CREATOR_ALL_ACL),
        ("/config/users/alice/clients/a", CREATOR_ALL_ACL),
        ("/config/brokers/1", CREATOR_ALL_ACL),
        ("/delegation_token/tokens/a", CREATOR_ALL_ACL),
        ("/consumers", OPEN_ACL_UNSAFE),
    ]
)
def test_znodes_with_secrets_are_readable_by_their_owner_alone(case: tuple[str, list[object]]) -> None:
    path, expected = case
    assert acl_of(path) == expected


@each(
    [
        (
            SessionSecurity(login=LoginModule("com.sun.Krb5LoginModule")),
            f"expected {DIGEST_LOGIN}, as DIGEST-",
        ),
        (
            SessionSecurity(login=LoginModule(DIGEST_LOGIN, {"username": "a"})),
            "expected username and password",
        ),
        (SessionSecurity(sets_acls=True), "zookeeper.set.acl is true, but nothing authenticates the session"),
        (SessionSecurity(sets_acls=True, tls=TlsSettings()), "nothing authenticates the session"),
    ]
)
def test_what_cannot_secure_a_session_is_refused(case: tuple[SessionSecurity, str]) -> None:
    security, sentence = case
    with pytest.raises(InvalidConfiguration, match=re.escape(sentence)):
        security.make_client(hosts="127.0.0.1:1")


def test_a_login_module_of_kafka_has_a_user_and_a_password_too() -> None:
    SessionSecurity(login=LoginModule(PLAIN_LOGIN, {"username": "a", "password": "b", "user_a": "b"})).check()


def test_a_login_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    login = LoginModule(DIGEST_LOGIN, {"username": "a", "password": "hunter2"})
    with pytest.raises(InvalidConfiguration, match="needs the package pure-sasl") as refused:
        SessionSecurity(login=login).check()
    assert "hunter2" not in str(refused.value) + repr(SessionSecurity(login=login))


def test_a_session_without_security_has_the_plain_client() -> None:
    assert type(SessionSecurity().make_client(hosts="127.0.0.1:1")) is Client
