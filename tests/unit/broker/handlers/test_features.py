"""UpdateFeatures, and the features in ApiVersions."""

from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.cluster.features import SUPPORTED
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.features import TRANSACTION_VERSION as NAME
from barnabas.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest, UpgradeType
from tests.support.building import ME
from tests.support.serving import Serving
from tests.support.store_contract import registration


@pytest.fixture
def registered(serving: Serving) -> Serving:
    serving.znodes.registrations[ME] = replace(registration(ME), features=SUPPORTED)
    return serving


def update(serving: Serving, level: int, *, version: int | None = 1, **settings: Any) -> Any:
    body = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature=NAME, max_version_level=level, **settings)],
    )
    return serving.call(body, version=version)


def versions(serving: Serving, version: int | None) -> Any:
    body = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    return serving.call(body, version=version)


@pytest.mark.parametrize("version", [None, 0, 1, 2])
def test_an_update_is_known_when_it_is_answered(registered: Serving, version: int | None) -> None:
    answer = update(registered, 2, version=version)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert registered.features.current.levels == {NAME: 2}
    assert [(r.feature, r.error_code) for r in answer.results] == ([] if version == 2 else [(NAME, 0)])


def test_version_0_has_a_flag_for_downgrades(registered: Serving) -> None:
    update(registered, 2)
    assert update(registered, 1, version=0).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert update(registered, 1, version=0, allow_downgrade=True).error_code == ErrorCode.NONE
    assert update(registered, 0, upgrade_type=UpgradeType.SAFE_DOWNGRADE.value).error_code == ErrorCode.NONE
    assert registered.features.current.levels == {}


def test_a_validated_update_changes_nothing(registered: Serving) -> None:
    body = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature=NAME, max_version_level=2)], validate_only=True
    )
    assert registered.call(body, version=1).error_code == ErrorCode.NONE
    assert registered.features.current.levels == {}
    body.feature_updates[0].max_version_level = 3
    refused = registered.call(body, version=1)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "this broker supports 0 to 2" in refused.error_message


@pytest.mark.parametrize("version", [None, 3, 4])
def test_api_versions_names_the_features(registered: Serving, version: int | None) -> None:
    assert versions(registered, version).finalized_features_epoch == -1
    update(registered, 2)
    answer = versions(registered, version)
    finalized = [(f.name, f.min_version_level, f.max_version_level) for f in answer.finalized_features]
    assert (finalized, answer.finalized_features_epoch) == ([(NAME, 2, 2)], 0)
    supported = [(f.name, f.min_version, f.max_version) for f in answer.supported_features]
    # Older clients cannot read a lowest level of 0.
    levels = [] if version == 3 else [(NAME, 0, 2)]
    assert supported == levels + ([] if version is None else [("barnabas.native", 1, 1)])
    assert versions(registered, 2).error_code == ErrorCode.NONE
