"""Certificates, their authority and the brokers' user are replaced under load; nothing is lost or refused."""

import ssl
from functools import partial
from pathlib import Path

import trustme

from barnabas.chaos.load import Load, stop_and_judge
from barnabas.client import ScramUpsertion
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.certificates import server_names
from barnabas.deploy.client_settings import login_text
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.security import BROKER, ClusterSecurity
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView, StartCluster
from .runs import BROKER as QUICK
from .runs import SECURED, chaos_test, expect_good, thorough

PARTITIONS = 6
MECHANISM = ScramMechanism.SHA_256
JAAS = "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"
OTHER_USER, OTHER_PASSWORD = "broker-2", "another secret"


def shown(broker: LocalBroker) -> str:
    """The certificate for new connections."""
    return ssl.get_server_certificate(broker.endpoint)


def has_read_again(broker: LocalBroker) -> bool:
    return "read again" in broker.server_log.read_text()


def is_renewed(broker: LocalBroker, former: str) -> bool:
    return shown(broker) != former


def replace(path: Path, content: bytes) -> None:
    """At once, as a careful operator does."""
    made = path.with_suffix(".new")
    made.write_bytes(content)
    made.replace(path)


def roll(view: ClusterView, cluster: LocalCluster, load: Load, **settings: str) -> None:
    for broker in cluster.broker_ids:
        cluster.change_settings(broker, settings)
        assert cluster.stop_broker(broker), f"broker {broker} had to be killed"
        cluster.launch_broker(broker)
        view.wait_isr("t", 3)
        load.wait_progress(f"after the restart of broker {broker} with {list(settings)}")


def renew_certificates(cluster: LocalCluster, security: ClusterSecurity, load: Load) -> None:
    """First everybody trusts both authorities, then brokers show certificates of the other one."""
    trusted = security.folder / "ca.pem"
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    replace(trusted, trusted.read_bytes() + authority.cert_pem.bytes())
    # A broker that finds the other certificate together with its authority would refuse both.
    for broker in cluster.brokers:
        wait_for(partial(has_read_again, broker), f"broker {broker.id} has the former trust store")
    load.wait_progress("with both authorities")
    for broker in cluster.brokers:
        # The subject and the names of hosts must stay, as in Kafka.
        issued = authority.issue_cert(
            *server_names(()),
            common_name=f"broker-{broker.id}",
            organization_name="Barnabas",
            organization_unit_name="local cluster",
        )
        former = shown(broker)
        replace(security.folder / f"broker-{broker.id}.pem", issued.private_key_and_cert_chain_pem.bytes())
        wait_for(partial(is_renewed, broker, former), f"broker {broker.id} keeps its certificate")
        load.wait_progress(f"with another certificate of broker {broker.id}")
    replace(trusted, authority.cert_pem.bytes())


@chaos_test(0)
@thorough
def test_certificates_and_the_user_of_brokers_are_replaced_under_load(start_cluster: StartCluster) -> None:
    cluster = start_cluster(own_zookeeper=True, settings=QUICK, security=SECURED)
    assert cluster.security is not None
    view = ClusterView(cluster)
    view.create_topic("t", PARTITIONS, 3, min_insync_replicas="2")
    load = Load(view.clients, "t", PARTITIONS, records_per_s=200)
    with load:
        renew_certificates(cluster, cluster.security, load)
        # Contexts of the former authority would still trust it.
        view = ClusterView(cluster)
        roll(view, cluster, load)
        change_user(view, cluster, load)
        view.wait_agreed("t", PARTITIONS)
    verdict = stop_and_judge(cluster, load)
    expect_good(verdict, load)


def change_user(view: ClusterView, cluster: LocalCluster, load: Load) -> None:
    """The brokers get another user, so that no broker has a password that is no longer valid."""
    with view.admin() as admin:
        admin.alter_user_scram_credentials(ScramUpsertion(OTHER_USER, OTHER_PASSWORD, MECHANISM))
    trusted = {"super.users": f"User:{OTHER_USER}"}
    roll(view, cluster, load, **trusted)
    roll(view, cluster, load, **trusted, **{JAAS: login_text(MECHANISM.value, OTHER_USER, OTHER_PASSWORD)})
    with view.admin() as admin:
        admin.alter_user_scram_credentials(ScramUpsertion(BROKER, "nobody's", MECHANISM))
    victim = view.leader("t")
    cluster.kill(victim)
    load.wait_progress("without a broker")
    cluster.start_broker(victim)
    view.wait_isr("t", 3)
