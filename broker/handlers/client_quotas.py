"""DescribeClientQuotas and AlterClientQuotas (KIP-546): the stored quotas of users, client ids and addresses.

Any broker serves them; the work waits for ZooKeeper, on the slow-work thread. Error texts are Kafka's,
because its tools show them. Unlike Kafka, a quota below 0 is refused, and only quotas can be removed: the
settings of a user also hold its SCRAM credentials.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.security.client_quotas import QUOTA_TYPES
from barnabas.broker.security.connection_rates import CONNECTION_CREATION_RATE
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.messages import client_quotas as wire
from barnabas.zookeeper.configs import DEFAULT_NAME, Entity, EntityKind, desanitize

_USER: Final = "user"
_CLIENT: Final = "client-id"
_IP: Final = "ip"
_DUPLICATE: Final = {_USER: "user", _CLIENT: "client", _IP: "ip"}
"""The words of Kafka's errors for the entity types."""
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_EPSILON: Final = 1e-6
"""By how much a number in a request may differ from the whole one that it is taken for."""


class _QuotaType(NamedTuple):
    """A whole number of a type of Kafka's, up to the most; any number without a type."""

    name: str | None = None
    most: int = 0


_OF_CLIENTS: Final[Mapping[str, _QuotaType]] = {
    name: _QuotaType("LONG", _LONG_MAX) if parse is int else _QuotaType()
    for name, parse in QUOTA_TYPES.items()
}
_OF_IPS: Final[Mapping[str, _QuotaType]] = {CONNECTION_CREATION_RATE: _QuotaType("INT", _INT_MAX)}


def _quotas_of(entity: Entity) -> Mapping[str, _QuotaType]:
    return _OF_IPS if entity.kind is EntityKind.IP else _OF_CLIENTS


def _invalid(text: str) -> ApiError:
    return api_error(ErrorCode.INVALID_REQUEST, text)


# Describing


class _Filter:
    """Which entities a request asks for. Raises INVALID_REQUEST or UNSUPPORTED_VERSION."""

    def __init__(self, components: Iterable[wire.QuotaFilterComponent], *, is_strict: bool) -> None:
        self._components: dict[str, wire.QuotaFilterComponent] = {}
        self._is_strict = is_strict
        for component in components:
            kind = component.entity_type
            if not kind:
                raise _invalid("Unexpected empty filter component entity type")
            if kind not in _DUPLICATE:
                raise api_error(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
            if kind in self._components:
                raise _invalid(f"Duplicate {_DUPLICATE[kind]} filter component entity type")
            if component.match_type not in set(wire.QuotaMatch):
                raise _invalid(f"Unexpected match type: {component.match_type}")
            self._components[kind] = component
        if _IP in self._components and len(self._components) > 1:
            raise _invalid(
                "Invalid entity filter component combination, IP filter component should not be used with "
                "user or clientId filter component."
            )

    @property
    def kinds(self) -> Iterator[EntityKind]:
        """The kinds of entities that can match."""
        if _IP not in self._components:
            yield EntityKind.USER
            yield EntityKind.CLIENT
        if not self._components or _IP in self._components:
            yield EntityKind.IP

    @property
    def only(self) -> Entity | None:
        """The one entity that can match, if it is known."""
        exact = wire.QuotaMatch.EXACT, wire.QuotaMatch.DEFAULT
        names = {kind: each.match for kind, each in self._components.items() if each.match_type in exact}
        if not self._is_strict or len(names) < len(self._components):
            return None
        return _entity_of(names) if names else None

    def matches(self, entity: Sequence[wire.QuotaEntity]) -> bool:
        names = {part.entity_type: part.entity_name for part in entity}
        if self._is_strict and names.keys() != self._components.keys():
            return False
        for kind, component in self._components.items():
            if kind not in names:
                return False
            expected = component.match if component.match_type == wire.QuotaMatch.EXACT else None
            if component.match_type != wire.QuotaMatch.ANY and names[kind] != expected:
                return False
        return True


def handle_describe(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeClientQuotasRequest = request.body
    try:
        entries = _described(services, _Filter(body.components, is_strict=body.strict))
    except ApiError as error:
        request.respond(
            wire.DescribeClientQuotasResponse(error_code=error.code, error_message=error.text, entries=None)
        )
        return
    request.respond(wire.DescribeClientQuotasResponse(entries=entries))


def _described(services: Services, wanted: _Filter) -> list[wire.QuotaEntry]:
    if wanted.only is not None:
        stored = services.configs.values([wanted.only])
    else:
        stored = {}
        for kind in wanted.kinds:
            stored |= services.configs.values_of_kind(kind)
    entries = []
    for entity, settings in stored.items():
        values = list(_values(entity, settings))
        named = _named(entity)
        if values and wanted.matches(named):
            entries.append(wire.QuotaEntry(entity=named, values=values))
    return entries


def _values(entity: Entity, settings: Mapping[str, str]) -> Iterator[wire.QuotaValue]:
    for key in _quotas_of(entity):
        if key in settings:
            try:
                yield wire.QuotaValue(key=key, value=float(settings[key]))
            except ValueError:
                raise api_error(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"{key} of {entity.key} is not a number in ZooKeeper"
                ) from None


def _named(entity: Entity) -> list[wire.QuotaEntity]:
    parts = [(_TYPE_OF[entity.kind], entity.name)]
    if entity.client is not None:
        parts.append((_CLIENT, entity.client))
    return [
        wire.QuotaEntity(entity_type=kind, entity_name=None if name == DEFAULT_NAME else desanitize(name))
        for kind, name in parts
    ]


_TYPE_OF: Final = {EntityKind.USER: _USER, EntityKind.CLIENT: _CLIENT, EntityKind.IP: _IP}


# Altering


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: wire.AlterClientQuotasRequest = request.body
    texts, results = ErrorTexts(), []
    for entry in body.entries:
        result = wire.AlterQuotaResult(error_code=ErrorCode.NONE, entity=entry.entity)
        try:
            entity = _entity(entry.entity)
            changes = _changes(entity, entry.ops)
            if not body.validate_only:
                services.configs.change(entity, partial(_changed, changes))
        except ApiError as error:
            result.error_code, result.error_message = error.code, texts.of(error)
        results.append(result)
    request.respond(wire.AlterClientQuotasResponse(entries=results))


def _entity(parts: Iterable[wire.QuotaEntity]) -> Entity:
    names = {part.entity_type: part.entity_name for part in parts}
    if not names:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in names.items():
        if kind not in _DUPLICATE:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    address = names.get(_IP)
    if _IP in names and len(names) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity should not be used with user/client ID entity."
        )
    if address is not None and not _is_host(address):
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return _entity_of(names)


def _entity_of(names: Mapping[str, str | None]) -> Entity:
    """The entity of these names by type, at least one; None is a default."""
    match names:
        case {"user": user, "client-id": client}:
            return Entity.user(user, client)
        case {"user": user}:
            return Entity.user(user)
        case {"client-id": client}:
            return Entity.client_id(client)
    return Entity.ip(names[_IP])


def _is_host(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    return True


def _changes(entity: Entity, ops: Iterable[wire.QuotaChange]) -> dict[str, str | None]:
    """The new text of each changed quota; None removes it. Raises INVALID_REQUEST."""
    changes: dict[str, str | None] = {}
    quotas = _quotas_of(entity)
    for change in ops:
        quota = quotas.get(change.key)
        if change.remove:
            if quota is not None:
                changes[change.key] = None
            continue
        if quota is None:
            raise _invalid(f"Invalid configuration key {change.key}")
        changes[change.key] = _text(change, quota)
    return changes


def _text(change: wire.QuotaChange, quota: _QuotaType) -> str:
    value = change.value
    if 0 <= value < math.inf:
        if quota.name is None:
            return str(value)
        # The most of a LONG comes as the next double, which is one above it.
        whole = min(int(value + _EPSILON), quota.most)
        if abs(float(whole) - value) <= _EPSILON:
            return str(whole)
    expected = "number of at least 0" if quota.name is None else f"{quota.name} value"
    raise _invalid(f"Configuration {change.key} must be a {expected}")


def _changed(changes: Mapping[str, str | None], settings: Mapping[str, str]) -> dict[str, str]:
    merged = {**settings, **changes}
    return {key: value for key, value in merged.items() if value is not None}
