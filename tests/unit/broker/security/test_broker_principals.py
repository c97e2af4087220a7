"""The principals that may send requests of brokers, because brokers have registered them."""

import logging
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest

from barnabas.broker.config.load import config_from
from barnabas.broker.security import broker_principals
from barnabas.broker.security.broker_principals import (
    BrokerPrincipals,
    RegisteredPrincipals,
    own_principal,
)
from barnabas.broker.security.session import Session
from barnabas.common.security.channel_security import ChannelSecurity, TokenLogin
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.common.security.tokens import StaticToken, TokenFile
from barnabas.protocol.errors import InvalidConfiguration, SaslAuthenticationFailed
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from tests.support.building import fatal
from tests.support.defaults import REQUIRED
from tests.support.waiting import wait_for

ADMIN, ONE, TWO, ALICE = (Principal.user(name) for name in ("admin", "CN=one", "CN=two", "alice"))


class Cluster:
    """Registrations, a clock, and the principals as broker 1 knows them."""

    def __init__(self) -> None:
        self.registered: dict[BrokerId, list[str]] = {BrokerId(1): ["User:CN=one"]}
        self.own: Callable[[], Principal] = lambda: ONE
        self.published: list[Principal] = []
        self.reads = 0
        self.errors: list[Exception] = []
        self.now_ms = 0.0
        self.principals = RegisteredPrincipals(
            [ADMIN],
            own=lambda: self.own(),
            publish=self.published.append,
            read=self.read,
            now_ms=lambda: self.now_ms,
            on_fatal=fatal,
        )

    def read(self) -> dict[BrokerId, list[str]]:
        self.reads += 1
        if self.errors:
            raise self.errors.pop()
        return dict(self.registered)

    def is_broker(self, principal: Principal) -> bool:
        return self.principals.brokers.is_broker(Session("10.0.0.9", principal))

    def turn(self, after_ms: float = 0.0) -> float | None:
        """Run the task, as its thread would; returns after how many seconds it runs again."""
        self.now_ms += after_ms
        return self.principals._refresh()


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.principals.load()
    return made


def test_every_session_is_a_brokers_where_the_listener_does_not_authenticate() -> None:
    assert BrokerPrincipals().is_broker(Session("10.0.0.9", ANONYMOUS))
    assert not BrokerPrincipals([]).is_broker(Session("10.0.0.9", ANONYMOUS))


def test_own_principal_super_users_and_registered_ones_are_accepted(cluster: Cluster) -> None:
    assert [cluster.is_broker(name) for name in (ONE, ADMIN, TWO, ANONYMOUS)] == [True, True, False, False]
    assert cluster.principals.own_texts == (str(ONE),)
    # A broker's principal counts on the listener of brokers alone.
    sessions = [Session("10.0.0.9", name) for name in (ONE, ADMIN)]
    assert [cluster.principals.brokers.is_super_user(session) for session in sessions] == [False, True]
    cluster.registered[BrokerId(2)] = ["nonsense", "User:CN=two"]
    cluster.turn()
    assert [cluster.is_broker(name) for name in (ONE, ADMIN, TWO, ALICE)] == [True, True, True, False]


def test_an_unknown_principal_makes_it_read_once_in_an_interval(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert cluster.turn() is None
    assert cluster.reads == 1, "nobody was refused"
    assert not cluster.is_broker(ALICE)
    assert not caplog.records, "it may be a broker that has just registered"
    assert cluster.turn() is None
    assert cluster.reads == 2
    assert "User:alice at 10.0.0.9 sends requests of brokers" in caplog.text
    for principal in (ALICE, Principal.user("mallory")):
        assert not cluster.is_broker(principal)
        assert cluster.turn(100) == pytest.approx((1_000 - cluster.now_ms % 1_000) / 1_000)
    assert cluster.reads == 2
    cluster.turn(800)
    assert cluster.reads == 3


def test_peers_that_are_refused_cost_a_bounded_memory(cluster: Cluster) -> None:
    for number in range(2 * broker_principals._MAX_REFUSED):
        cluster.is_broker(Principal.user(str(number)))
    assert len(cluster.principals._refused) == broker_principals._MAX_REFUSED


def test_it_reads_when_the_live_brokers_change(cluster: Cluster) -> None:
    cluster.principals.live_brokers({BrokerId(1): "host"})
    cluster.turn()
    assert cluster.reads == 1
    cluster.registered[BrokerId(2)] = ["User:CN=two"]
    cluster.principals.live_brokers({BrokerId(1): "host", BrokerId(2): "host"})
    cluster.turn()
    assert cluster.is_broker(TWO)


def test_a_broker_without_registration_is_accepted_for_a_while(cluster: Cluster) -> None:
    cluster.registered[BrokerId(2)] = ["User:CN=two"]
    cluster.principals.live_brokers([BrokerId(2)])
    cluster.turn()
    del cluster.registered[BrokerId(2)]
    cluster.principals.live_brokers([BrokerId(1)])
    left_s = cluster.turn(10_000)
    assert left_s == 50
    assert cluster.is_broker(TWO), "its session may have expired"
    assert cluster.turn(49_999) == pytest.approx(0.001)
    assert cluster.is_broker(TWO)
    assert cluster.turn(1) is None
    assert not cluster.is_broker(TWO)


def test_it_reads_again_when_zookeeper_has_not_answered(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.registered[BrokerId(2)] = ["User:CN=two"]
    assert not cluster.is_broker(TWO)
    cluster.errors.append(ZooKeeperUnavailable("no answer"))
    assert cluster.turn() == broker_principals._RETRY_S
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert cluster.turn(5_000) is None
    assert cluster.is_broker(TWO)


def test_a_changed_principal_is_registered_and_one_that_is_not_known_yet(cluster: Cluster) -> None:
    def no_token() -> Principal:
        raise SaslAuthenticationFailed("the token endpoint does not answer")

    cluster.turn()
    assert cluster.published == []
    cluster.own = lambda: TWO
    cluster.turn()
    assert cluster.published == [TWO]
    assert cluster.is_broker(TWO)
    late = Cluster()
    late.own = no_token
    late.principals.load()
    assert late.principals.own_texts == ()
    assert late.turn() == broker_principals._RETRY_S
    assert not late.is_broker(ANONYMOUS), "without a principal of its own it does not trust everybody"
    late.own = lambda: ONE
    late.now_ms += 5_000
    late.principals.start()
    wait_for(lambda: late.published == [ONE], "the registration")
    late.principals.stop()


def test_a_server_without_tokens_is_asked_again_after_a_while(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The files of certificates are looked at each second, and then the principal too."""
    asked: list[float] = []

    def no_token() -> Principal:
        asked.append(cluster.now_ms)
        raise SaslAuthenticationFailed("the token endpoint does not answer")

    cluster.own = no_token
    cluster.registered[BrokerId(2)] = ["User:CN=two"]
    assert not cluster.is_broker(TWO)
    assert cluster.turn() == pytest.approx(5)
    assert cluster.is_broker(TWO)
    assert cluster.turn(1_000) == pytest.approx(4)
    assert cluster.turn(4_000) == pytest.approx(5)
    assert asked == [0, 5_000]
    assert caplog.text.count("own principal is not known now") == 2


def test_a_broker_without_a_certificate_does_not_start() -> None:
    cluster = Cluster()

    def no_certificate() -> Principal:
        raise InvalidConfiguration("ssl.keystore.location is not set")

    cluster.own = no_certificate
    with pytest.raises(InvalidConfiguration):
        cluster.principals.load()


def test_a_brokers_own_token_says_who_it_is(tmp_path: Path) -> None:
    jaas = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="id" clientSecret="hunter2";'
    )
    config = config_from(
        REQUIRED
        | {
            "listeners": "SASL_PLAINTEXT://:9092",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.sub.claim.name": "azp",
            "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": jaas,
        }
    )
    token = jwt.encode({"sub": "x", "azp": " broker-1 "}, "a key of at least 32 bytes, as HS256 needs")
    listener = config.listener("SASL_PLAINTEXT")
    security = ChannelSecurity(login=TokenLogin(StaticToken(token)))
    assert own_principal(config, listener, security, str) == Principal.user("broker-1")
    for text in ("opaque", jwt.encode({"sub": "x"}, "a key of at least 32 bytes, as HS256 needs")):
        (tmp_path / "token").write_text(text)
        security = ChannelSecurity(login=TokenLogin(TokenFile(tmp_path / "token")))
        with pytest.raises(SaslAuthenticationFailed, match="has no claim azp") as caught:
            own_principal(config, listener, security, str)
        assert text not in str(caught.value)
