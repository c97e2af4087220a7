"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

The credentials are settings of users in ZooKeeper, in Kafka's format; all brokers learn a change from its
notification. The changes of one user are made together or not at all. Only the controller changes them, as in
Apache Kafka in ZooKeeper mode. The handlers run on the slow-work thread, because they wait for ZooKeeper.

Source: Kafka's `ZkAdminManager`, whose texts tools show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.common.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramError,
    ScramMechanism,
    credential_of,
)
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.messages import authentication as wire
from barnabas.zookeeper.configs import Entity, EntityKind

_NO_NAME: Final = "Username must not be empty"
_TWICE: Final = "Cannot describe SCRAM credentials for the same user twice in a single request: "
_UNKNOWN: Final = "Attempt to describe a user credential that does not exist: "

Change = wire.ScramCredentialDeletion | wire.ScramCredentialUpsertion


# Describing


def handle_describe(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeUserScramCredentialsRequest = request.body
    names = [user.name for user in body.users or ()]
    texts = ErrorTexts()
    try:
        results = (
            [_describe_named(services, name, count, texts) for name, count in Counter(names).items()]
            if names
            else _describe_all(services, texts)
        )
    except ApiError as error:
        answer = wire.DescribeUserScramCredentialsResponse(
            error_code=error.code, error_message=texts.of(error), results=[]
        )
    else:
        answer = wire.DescribeUserScramCredentialsResponse(results=results)
    request.respond(answer)


def _describe_all(services: Services, texts: ErrorTexts) -> list[wire.DescribeUserScramCredentialsResult]:
    stored = services.configs.values_of_kind(EntityKind.USER)
    by_name = {name: values for entity, values in stored.items() if (name := entity.user_name) is not None}
    described = (_described(name, by_name[name], texts) for name in sorted(by_name))
    return [result for result in described if result.credential_infos or result.error_code]


def _describe_named(
    services: Services, name: str, count: int, texts: ErrorTexts
) -> wire.DescribeUserScramCredentialsResult:
    try:
        if not name:
            raise api_error(ErrorCode.RESOURCE_NOT_FOUND, _NO_NAME)
        if count > 1:
            raise api_error(ErrorCode.DUPLICATE_RESOURCE, _TWICE + name)
        entity = Entity.user(name)
        result = _described(name, services.configs.values([entity])[entity], texts)
        if not result.credential_infos and not result.error_code:
            raise api_error(ErrorCode.RESOURCE_NOT_FOUND, _UNKNOWN + name)
    except ApiError as error:
        return wire.DescribeUserScramCredentialsResult(
            user=name, error_code=error.code, error_message=texts.of(error)
        )
    return result


def _described(
    name: str, settings: Mapping[str, str], texts: ErrorTexts
) -> wire.DescribeUserScramCredentialsResult:
    """The mechanisms that a user has a credential for; none if there are none."""
    result = wire.DescribeUserScramCredentialsResult(user=name, error_code=0)
    try:
        result.credential_infos = [
            wire.ScramCredentialInfo(
                mechanism=mechanism.number, iterations=ScramCredential.parse(text).iterations
            )
            for mechanism in ScramMechanism
            if (text := settings.get(mechanism.value)) is not None
        ]
    except ScramError as error:
        result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        result.error_message = texts.take(f"a stored credential is not usable: {error}")
    return result


# Altering


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: wire.AlterUserScramCredentialsRequest = request.body
    changes: dict[str, list[Change]] = {}
    # In Kafka the problem of an upsertion is told rather than that of a deletion.
    given: list[Change] = [*body.upsertions, *body.deletions]
    for change in given:
        changes.setdefault(change.name, []).append(change)
    texts = ErrorTexts()
    results = []
    for name, of_user in changes.items():
        error = _alter(services, name, of_user)
        results.append(
            wire.AlterUserScramCredentialsResult(user=name, error_code=0)
            if error is None
            else wire.AlterUserScramCredentialsResult(
                user=name, error_code=error.code, error_message=texts.of(error)
            )
        )
    request.respond(wire.AlterUserScramCredentialsResponse(results=results))


def _alter(services: Services, name: str, changes: list[Change]) -> ApiError | None:
    try:
        if not services.controller.is_active:
            raise api_error(ErrorCode.NOT_CONTROLLER, "the controller changes the credentials of users")
        _check(name, changes)
        services.configs.change(Entity.user(name), lambda settings: _changed(settings, changes))
    except ApiError as error:
        return error
    return None


def _check(name: str, changes: Iterable[Change]) -> None:
    if not name:
        raise api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, _NO_NAME)
    for change in changes:
        if ScramMechanism.of_number(change.mechanism) is None:
            raise api_error(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, wire.ScramCredentialDeletion):
            continue
        if not change.salt or not change.salted_password:
            raise api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Empty salt or password")
        if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
            word = "few" if change.iterations < MIN_ITERATIONS else "many"
            raise api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {word} iterations")
    if max(Counter(change.mechanism for change in changes).values()) > 1:
        text = "A user credential cannot be altered twice in the same request"
        raise api_error(ErrorCode.DUPLICATE_RESOURCE, text)


def _changed(settings: Mapping[str, str], changes: Iterable[Change]) -> Mapping[str, str]:
    changed = dict(settings)
    for change in changes:
        mechanism = ScramMechanism.of_number(change.mechanism)
        if mechanism is None:
            continue
        if isinstance(change, wire.ScramCredentialUpsertion):
            changed[mechanism.value] = credential_of(
                mechanism, change.salted_password, change.salt, change.iterations
            ).text
        elif changed.pop(mechanism.value, None) is None:
            text = "Attempt to delete a user credential that does not exist"
            raise api_error(ErrorCode.RESOURCE_NOT_FOUND, text)
    return changed
