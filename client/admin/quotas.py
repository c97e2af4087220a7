"""Quotas of users, clients and addresses: the requests that list and change them (KIP-546).

Belongs to the event loop of the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.client.admin.base import AdminBase, error_of, raise_errors
from barnabas.client.arguments import check_mapping, several
from barnabas.client.ask import ToBroker
from barnabas.protocol.errors import ApiError
from barnabas.protocol.messages import client_quotas as wire
from barnabas.protocol.messages.client_quotas import QuotaMatch

Name = str | QuotaMatch | None
"""A name; `QuotaMatch.DEFAULT` for all without quotas of their own; in filters also `QuotaMatch.ANY`."""

_TYPES: Final = {"user": "user", "client_id": "client-id", "ip": "ip"}


class ClientQuotaEntity(NamedTuple):
    """Whom a quota binds: a user, a client id, both together, or an address."""

    user: Name = None
    client_id: Name = None
    ip: Name = None

    def __str__(self) -> str:
        shown = {QuotaMatch.DEFAULT: "<default>", QuotaMatch.ANY: "<any>"}
        return ", ".join(
            f"{kind} {shown[name] if isinstance(name, QuotaMatch) else name}" for kind, name in self.parts()
        )

    def parts(self) -> Iterator[tuple[str, str | QuotaMatch]]:
        """The parts that are given, with Kafka's names of their types."""
        for attribute, kind in _TYPES.items():
            name: Name = getattr(self, attribute)
            if name is not None:
                yield kind, name


class QuotaAdmin(AdminBase):
    """The methods of `Admin` for quotas."""

    async def describe_client_quotas(
        self,
        entity: ClientQuotaEntity | None = None,
        *,
        strict: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """The quotas of all entities that have the given parts, and with ``strict`` no others."""
        (chosen,) = several("entity", entity or ClientQuotaEntity(), ClientQuotaEntity)
        request = wire.DescribeClientQuotasRequest(
            components=[
                wire.QuotaFilterComponent(
                    entity_type=kind,
                    match_type=name if isinstance(name, QuotaMatch) else QuotaMatch.EXACT,
                    match=None if isinstance(name, QuotaMatch) else name,
                )
                for kind, name in chosen.parts()
            ],
            strict=strict,
        )
        response = (await self._ask(ToBroker(self._open()), request, timeout_ms)).response
        if error := error_of(response, "the quotas were not listed"):
            raise error
        return {
            _entity(entry.entity): {value.key: value.value for value in entry.values}
            for entry in response.entries or ()
        }

    async def alter_client_quotas(
        self,
        changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set quotas, such as ``producer_byte_rate``; None removes one. Other quotas stay.

        Raises the error of a single entity, and TopicErrors if some of several failed.
        """
        check_mapping("changes", changes, "entities to quotas")
        for entity in several("changes", changes, ClientQuotaEntity):
            check_mapping(f"the quotas of {entity}", changes[entity], "quotas to rates")
            if QuotaMatch.ANY in entity:
                raise ValueError(f"changes: {entity} is a filter, not an entity")
        request = wire.AlterClientQuotasRequest(
            entries=[
                wire.AlterQuotaEntry(
                    entity=[
                        wire.QuotaEntity(
                            entity_type=kind, entity_name=None if isinstance(name, QuotaMatch) else name
                        )
                        for kind, name in entity.parts()
                    ],
                    ops=[
                        wire.QuotaChange(key=key, value=value or 0.0, remove=value is None)
                        for key, value in quotas.items()
                    ],
                )
                for entity, quotas in changes.items()
            ],
            validate_only=validate_only,
        )
        # Changes are idempotent, so a retry is harmless.
        response = (await self._ask(ToBroker(self._open()), request, timeout_ms)).response
        outcomes: dict[str, ApiError | None] = {}
        for result in response.entries:
            entity = _entity(result.entity)
            outcomes[str(entity)] = error_of(result, f"the quotas of {entity} were not changed")
        raise_errors(outcomes, len(changes))


def _entity(parts: Iterable[wire.QuotaEntity]) -> ClientQuotaEntity:
    """Types that are not known here are left out."""
    names = {
        part.entity_type: QuotaMatch.DEFAULT if part.entity_name is None else part.entity_name
        for part in parts
    }
    return ClientQuotaEntity(**{attribute: names.get(kind) for attribute, kind in _TYPES.items()})
