"""The features that a broker supports, and the rules for changing the level that the whole cluster uses.

Pure. Source: KIP-584; the checks of an update are those of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.features import TRANSACTION_VERSION, FeatureUpdateKey, UpgradeType
from barnabas.zookeeper.znodes import BrokerRegistration, LevelRange

SUPPORTED: Final[Mapping[str, LevelRange]] = {TRANSACTION_VERSION: LevelRange(0, 2)}
NEW_CLUSTER: Final[Mapping[str, int]] = {TRANSACTION_VERSION: 2}
"""The levels of a new cluster."""
_ABSENT: Final = LevelRange(0, 0)


def updated(
    levels: Mapping[str, int],
    updates: Sequence[FeatureUpdateKey],
    registrations: Mapping[BrokerId, BrokerRegistration],
) -> dict[str, int]:
    """The levels after all updates. Raises INVALID_UPDATE_VERSION or INVALID_REQUEST if one is not possible.

    A level may rise only if every registered broker supports it.
    """
    names = [update.feature for update in updates]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise api_error(ErrorCode.INVALID_REQUEST, f"the feature {twice!r} is named more than once")
    result = dict(levels)
    for update in updates:
        _check(update, levels.get(update.feature, 0), registrations)
        result[update.feature] = update.max_version_level
    return result


def _check(
    update: FeatureUpdateKey, present: int, registrations: Mapping[BrokerId, BrokerRegistration]
) -> None:
    name, level = update.feature, update.max_version_level
    is_downgrade = update.upgrade_type in (UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE)
    if update.upgrade_type not in {int(kind) for kind in UpgradeType}:
        raise _invalid(update, f"the upgrade type {update.upgrade_type} is none of 1, 2 and 3")
    if name not in SUPPORTED and present == 0:
        raise _invalid(update, f"there is no such feature; expected one of {', '.join(SUPPORTED)}")
    own = SUPPORTED.get(name, _ABSENT)
    if level not in own:
        raise _invalid(update, f"this broker supports {own}")
    for broker, registration in sorted(registrations.items()):
        levels = registration.features.get(name, _ABSENT)
        # A level may be lowered even if a broker does not support the lower one, to repair the cluster.
        if level > present and level not in levels:
            raise _invalid(update, f"broker {broker} supports {levels}")
    if level < present and not is_downgrade:
        raise _invalid(
            update, f"the present level is {present}; a lower one must be requested as a downgrade"
        )
    if level > present and is_downgrade:
        raise _invalid(update, f"the present level is {present}; a downgrade to a higher one was requested")


def _invalid(update: FeatureUpdateKey, reason: str) -> ApiError:
    return api_error(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"level {update.max_version_level} for the feature {update.feature!r} is refused: {reason}",
    )
