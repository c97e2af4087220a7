"""UpdateFeatures, served by any broker: the levels are changed by compare-and-set in ZooKeeper (KIP-584).

All updates of a request take effect, or none. The answering broker knows the new levels before it answers;
the others learn of them from ZooKeeper within milliseconds.
"""

from __future__ import annotations

import logging

from barnabas.broker.cluster.features import updated
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError
from barnabas.protocol.messages.features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpgradeType,
)
from barnabas.zookeeper.features import Levels, Registrations

logger = logging.getLogger(__name__)


def handle(services: Services, request: ApiRequest) -> None:
    request.run_slowly(services.slow_work, _update, services, request)


def _update(services: Services, request: ApiRequest) -> None:
    body: UpdateFeaturesRequest = request.body
    for update in body.feature_updates:
        # Version 0 has a flag in place of the type.
        if update.allow_downgrade:
            update.upgrade_type = UpgradeType.SAFE_DOWNGRADE.value

    def edit(levels: Levels, registrations: Registrations) -> Levels:
        result = updated(levels, body.feature_updates, registrations)
        return levels if body.validate_only else result

    try:
        services.features.change(edit)
    except ApiError as error:
        request.respond(UpdateFeaturesResponse(error_code=error.code, error_message=error.text))
        return
    if not body.validate_only:
        levels = {update.feature: update.max_version_level for update in body.feature_updates}
        logger.info("%s changed the levels of features: %s", request, levels)
    results = [UpdatableFeatureResult(feature=update.feature) for update in body.feature_updates]
    request.respond(UpdateFeaturesResponse(results=results))
