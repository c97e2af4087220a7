"""`create.topic.policy.class.name`: a class of the operator decides which topics may be created or may grow.

The class has a method `validate(request)`, which raises ValueError with the reason for a refusal. It may have
`configure(settings)`, which gets the settings of the broker as texts. The controller's broker calls it, on
any thread. Internal topics are not checked. As KIP-108, but growth is checked too.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.topic_names import INTERNAL_TOPICS
from barnabas.zookeeper.znodes import ReplicaAssignment

log = logging.getLogger("barnabas.controller")


class TopicRequest(NamedTuple):
    """A topic to be created, or to get more partitions.

    Of a topic that grows, `assignment` has the added partitions, and `configs` is empty.
    """

    topic: str
    num_partitions: int
    """All partitions that the topic will have."""
    replication_factor: int
    assignment: Mapping[int, ReplicaAssignment]
    configs: Mapping[str, str]
    is_new: bool


TopicPolicy = Callable[[TopicRequest], object]


def load_topic_policy(name: str, settings: Mapping[str, str]) -> TopicPolicy:
    """The policy of the class ``module:Class``. Raises InvalidConfiguration."""
    module, _, attribute = name.partition(":")
    try:
        policy = getattr(importlib.import_module(module), attribute)()
        if hasattr(policy, "configure"):
            policy.configure(settings)
        validate: TopicPolicy = policy.validate
    except Exception as error:
        raise InvalidConfiguration(
            f"create.topic.policy.class.name={name!r}: the class cannot be used: {error!r}"
        ) from error
    return validate


def check_policy(policy: TopicPolicy | None, request: TopicRequest) -> None:
    """Raises POLICY_VIOLATION, or UNKNOWN_SERVER_ERROR if the policy itself fails."""
    if policy is None or request.topic in INTERNAL_TOPICS:
        return
    try:
        policy(request)
    except ApiError:
        raise
    except ValueError as error:
        raise api_error(ErrorCode.POLICY_VIOLATION, str(error)) from error
    except Exception as error:
        log.exception("the policy for topics failed on %s", request)
        raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, "the policy for topics failed") from error
