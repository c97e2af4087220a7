"""The rules of an update of features."""

import re
from dataclasses import replace

import pytest

from barnabas.broker.cluster.features import SUPPORTED, updated
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.features import TRANSACTION_VERSION as NAME
from barnabas.protocol.messages.features import FeatureUpdateKey, UpgradeType
from barnabas.zookeeper.znodes import BrokerRegistration, LevelRange
from tests.support.store_contract import registration

UP, SAFE, UNSAFE = (kind.value for kind in UpgradeType)
NEW = replace(registration(BrokerId(1)), features=SUPPORTED)
OLD = registration(BrokerId(2))
AT_1 = replace(registration(BrokerId(3)), features={NAME: LevelRange(0, 1)})


def to(level: int, kind: int = UP, name: str = NAME) -> FeatureUpdateKey:
    return FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)


def refused(update: FeatureUpdateKey, present: int, said: str, *brokers: BrokerRegistration) -> None:
    with pytest.raises(ApiError, match=re.escape(said)) as caught:
        updated({NAME: present}, [update], {broker.broker_id: broker for broker in brokers})
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("present", "update"),
    [(0, to(2)), (1, to(2)), (2, to(2)), (2, to(0, SAFE)), (2, to(1, UNSAFE)), (1, to(1, SAFE))],
)
def test_a_possible_update_gives_the_new_level(present: int, update: FeatureUpdateKey) -> None:
    assert updated({NAME: present, "x": 1}, [update], {BrokerId(1): NEW}) == {
        NAME: update.max_version_level,
        "x": 1,
    }


def test_a_level_rises_only_if_every_registered_broker_supports_it() -> None:
    refused(to(1), 0, "broker 2 supports 0 to 0", NEW, OLD)
    refused(to(2), 1, "broker 3 supports 0 to 1", NEW, AT_1)
    assert updated({}, [to(1)], {BrokerId(1): NEW, BrokerId(3): AT_1}) == {NAME: 1}
    # Otherwise nothing could repair such a cluster.
    assert updated({NAME: 2}, [to(1, SAFE)], {BrokerId(2): OLD}) == {NAME: 1}
    assert updated({"lacking": 1}, [to(0, SAFE, "lacking")], {}) == {"lacking": 0}


def test_a_lower_level_is_a_downgrade_and_a_higher_one_is_not() -> None:
    refused(to(1), 2, "the present level is 2; a lower one must be requested as a downgrade", NEW)
    for kind in (SAFE, UNSAFE):
        refused(to(2, kind), 1, "the present level is 1; a downgrade to a higher one", NEW)


def test_other_requests_are_refused() -> None:
    refused(to(3), 0, "level 3 for the feature 'transaction.version' is refused: this broker supports 0 to 2")
    refused(to(-1, SAFE), 2, "this broker supports 0 to 2")
    refused(to(1, 7), 0, "the upgrade type 7 is none of 1, 2 and 3")
    refused(
        to(1, name="metadata.version"), 0, "there is no such feature; expected one of transaction.version"
    )


def test_a_feature_named_twice_is_refused() -> None:
    with pytest.raises(ApiError, match="named more than once") as caught:
        updated({}, [to(1), to(2)], {})
    assert caught.value.code is ErrorCode.INVALID_REQUEST
