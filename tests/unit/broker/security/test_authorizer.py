"""The authorizer: super users, resources without ACLs, the memory of a session, and the audit log."""

import logging

import pytest

from barnabas.broker.config.security_settings import AUTHORIZERS
from barnabas.broker.security import authorizer as module
from barnabas.broker.security.authorizer import AUTHORIZER_LOG, Authorizer, make_authorizer
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import (
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import Principal
from barnabas.protocol.schema import ApiKey
from tests.support.defaults import make_config

TOPIC = ResourceType.TOPIC
ALICE = Principal.user("alice")
READ_FOO = {ResourcePattern(TOPIC, "foo"): [AclEntry(ALICE, "*", Operation.READ, Permission.ALLOW)]}


def make_session(principal: Principal = ALICE) -> Session:
    return Session("127.0.0.1", principal)


def may_read(authorizer: Authorizer, session: Session, name: str) -> bool:
    return authorizer.allows(session, Operation.READ, TOPIC, name, ApiKey.FETCH)


def test_a_super_user_may_do_everything() -> None:
    authorizer = Authorizer(super_users=[Principal.user("admin")])
    authorizer.replace(
        {
            ResourcePattern(TOPIC, "*"): [
                AclEntry(Principal.user("*"), "*", Operation.ALL, Permission.DENY),
            ]
        }
    )
    admin = make_session(Principal.user("admin"))
    assert may_read(authorizer, admin, "foo")
    assert authorizer.allows_any(admin, Operation.WRITE, TOPIC, ApiKey.INIT_PRODUCER_ID)
    assert not may_read(authorizer, make_session(Principal("Group", "admin")), "foo")


def test_a_resource_without_acls_is_open_only_by_the_setting() -> None:
    for is_open in (False, True):
        authorizer = Authorizer(allow_everyone_if_no_acl_found=is_open)
        authorizer.replace(READ_FOO)
        bob = make_session(Principal.user("bob"))
        assert may_read(authorizer, bob, "bar") is is_open
        assert authorizer.allows_any(bob, Operation.WRITE, TOPIC, ApiKey.INIT_PRODUCER_ID) is is_open
        assert not may_read(authorizer, bob, "foo"), "it has ACLs, of somebody else"


def test_there_is_an_authorizer_if_its_class_is_named() -> None:
    assert make_authorizer(make_config()) is None
    for name in AUTHORIZERS:
        settings = {"authorizer_class_name": name, "super_users": "User:admin; User:CN=a,O=b"}
        authorizer = make_authorizer(make_config(**settings))
        assert authorizer is not None
        assert authorizer.is_super_user(Principal.user("CN=a,O=b"))
        assert not may_read(authorizer, make_session(), "foo")
        authorizer = make_authorizer(make_config(**settings, allow_everyone_if_no_acl_found=True))
        assert authorizer is not None
        assert may_read(authorizer, make_session(), "foo")


def test_a_change_counts_for_sessions_that_asked_before() -> None:
    authorizer, session = Authorizer(), make_session()
    assert not may_read(authorizer, session, "foo")
    authorizer.replace(READ_FOO)
    assert may_read(authorizer, session, "foo")
    authorizer.replace({ResourcePattern(TOPIC, "foo"): []})
    assert not may_read(authorizer, session, "foo")


def test_another_principal_of_a_session_has_its_own_rights() -> None:
    authorizer, session = Authorizer(), make_session()
    authorizer.replace(READ_FOO)
    assert may_read(authorizer, session, "foo")
    session.principal = Principal.user("bob")
    assert not may_read(authorizer, session, "foo")


def test_a_session_remembers_a_bounded_number_of_resources() -> None:
    authorizer, session = Authorizer(), make_session()
    authorizer.replace({ResourcePattern(TOPIC, "t", PatternType.PREFIXED): next(iter(READ_FOO.values()))})
    for number in range(2 * module._MAX_REMEMBERED):
        assert may_read(authorizer, session, f"t{number}")
        assert not may_read(authorizer, session, f"u{number}" * 300)
    remembered = session.grants.by_resource
    assert 0 < len(remembered) <= module._MAX_REMEMBERED
    assert max(len(name) for _, name in remembered) <= module._MAX_NAME_LENGTH
    assert authorizer.known_topics(session, Operation.READ) == {
        name for _, name in remembered if name.startswith("t")
    }


def test_only_what_is_remembered_and_need_not_be_logged_is_answered_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    authorizer, session = Authorizer(super_users=[Principal.user("admin")]), make_session()
    entry = AclEntry(ALICE, "*", Operation.READ, Permission.ALLOW)
    authorizer.replace({ResourcePattern(TOPIC, name): [entry] for name in ("a", "b")})

    def remembers(*names: str, operation: Operation = Operation.READ) -> bool:
        known = authorizer.known_topics(session, operation)
        return known is None or known >= set(names)

    assert not remembers("a"), "nothing was asked yet"
    assert may_read(authorizer, session, "a")
    assert remembers("a")
    assert not remembers("a", "b")
    may_read(authorizer, session, "b")
    may_read(authorizer, session, "c")
    assert remembers("a", "b")
    assert remembers()
    assert not remembers("a", "c")
    assert not remembers("a", operation=Operation.WRITE)
    session.principal = Principal.user("admin")
    assert not remembers("a")
    assert may_read(authorizer, session, "c")
    assert remembers("a", "d", operation=Operation.WRITE)
    authorizer.replace({})
    assert not remembers("a")
    caplog.set_level(logging.DEBUG, AUTHORIZER_LOG)
    may_read(authorizer, session, "a")
    assert not remembers("a")


def test_authorized_operations_are_those_of_the_resource_type() -> None:
    authorizer = Authorizer()
    authorizer.replace(READ_FOO)
    operations = authorizer.authorized_operations(make_session(), TOPIC, "foo")
    assert operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    everything = Authorizer(super_users=[ALICE]).authorized_operations(
        make_session(), ResourceType.TRANSACTIONAL_ID, "id"
    )
    assert everything == 1 << Operation.WRITE | 1 << Operation.DESCRIBE


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, AUTHORIZER_LOG)
    return caplog


def test_decisions_are_logged_in_kafkas_form(audit: pytest.LogCaptureFixture) -> None:
    authorizer, session = Authorizer(), make_session()
    authorizer.replace(READ_FOO)
    may_read(authorizer, session, "foo")
    authorizer.allows(session, Operation.DESCRIBE_CONFIGS, TOPIC, "x", ApiKey.DESCRIBE_CONFIGS, references=3)
    authorizer.allows_any(session, Operation.WRITE, TOPIC, ApiKey.INIT_PRODUCER_ID)
    assert [(record.levelname, record.getMessage()) for record in audit.records] == [
        (
            "DEBUG",
            "Principal = User:alice is Allowed Operation = Read from host = 127.0.0.1 "
            "on resource = Topic:LITERAL:foo for request = Fetch with resourceRefCount = 1",
        ),
        (
            "INFO",
            "Principal = User:alice is Denied Operation = DescribeConfigs from host = 127.0.0.1 "
            "on resource = Topic:LITERAL:x for request = DescribeConfigs with resourceRefCount = 3",
        ),
        (
            "INFO",
            "Principal = User:alice is Denied Operation = Write from host = 127.0.0.1 "
            "on resource = Topic:UNKNOWN:NONE for request = InitProducerId with resourceRefCount = 0",
        ),
    ]


def test_a_look_that_grants_or_refuses_nothing_is_not_logged(audit: pytest.LogCaptureFixture) -> None:
    authorizer, session = Authorizer(), make_session()
    authorizer.replace(READ_FOO)
    authorizer.allows(session, Operation.READ, TOPIC, "bar", ApiKey.METADATA, logs_denied=False)
    authorizer.authorized_operations(session, TOPIC, "bar")
    assert not audit.records
