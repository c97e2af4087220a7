"""Asks the authorizer about the operations of a request, by the table `api_operations`.

`authorize` runs before the handler. It refuses the whole request; or it takes refused entries out of it and
adds their refusals to the handler's answer; or it leaves entries out of the answer that the principal may not
see. So a handler never meets a name that it would have to hide. Handlers ask other questions themselves, by
`allows` and `check`.

Without an authorizer everything is allowed, and `authorize` is not called. A request that waits keeps the
decisions that were made when it came. On the request's thread; nothing waits.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.refusals import list_of, name_of, refusal_of, refused_entries
from barnabas.broker.handlers.services import Services
from barnabas.broker.security.api_operations import API_OPERATIONS, DENIED, Question, Where
from barnabas.common.security.acl import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType
from barnabas.protocol.errors import api_error
from barnabas.protocol.schema import APIS

_CLUSTER: Final = ResourceType.CLUSTER
_BEFORE: Final = {
    int(key): tuple(each for each in questions if each.where is not Where.HANDLER)
    for key, questions in API_OPERATIONS.items()
}
"""The questions before the handler, of each API. The keys are plain numbers: Python hashes an Enum slowly."""


class _Any(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True


_ANY: Final = _Any()


# ---- asked by handlers


def allows(
    services: Services,
    request: ApiRequest,
    operation: Operation,
    resource: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    logs_denied: bool = True,
) -> bool:
    """Whether the request's principal may do this.

    ``logs_denied`` is False for a name that is not in the request, and if another permission may allow it.
    """
    authorizer = services.authorizer
    return authorizer is None or authorizer.allows(
        request.raw.peer.session,
        operation,
        resource,
        name,
        request.api_key,
        logs_denied=logs_denied,
    )


def may_act_as_broker(services: Services, request: ApiRequest) -> bool:
    """Whether the request's principal may send requests of brokers."""
    if services.authorizer is None:
        return services.brokers.is_broker(request.raw.peer.session)
    return allows(services, request, Operation.CLUSTER_ACTION, _CLUSTER)


def allows_any(services: Services, request: ApiRequest, operation: Operation, resource: ResourceType) -> bool:
    """Whether the request's principal may do this to at least one resource of the type."""
    authorizer = services.authorizer
    return authorizer is None or authorizer.allows_any(
        request.raw.peer.session, operation, resource, request.api_key
    )


def check(
    services: Services,
    request: ApiRequest,
    operation: Operation,
    resource: ResourceType,
    name: str = CLUSTER_NAME,
) -> None:
    """Raises the authorization error of the resource's type if the principal may not do this."""
    if not allows(services, request, operation, resource, name):
        raise api_error(DENIED[resource])


def permitted(
    services: Services,
    request: ApiRequest,
    operation: Operation,
    resource: ResourceType,
    names: Iterable[str],
    *,
    logs_denied: bool = True,
) -> Container[str]:
    """The names for which the principal may do this; without an authorizer any name."""
    authorizer = services.authorizer
    if authorizer is None:
        return _ANY
    references: dict[str, int] = {}
    for name in names:
        references[name] = references.get(name, 0) + 1
    session, api = request.raw.peer.session, request.api_key
    return {
        name
        for name, count in references.items()
        if authorizer.allows(
            session, operation, resource, name, api, references=count, logs_denied=logs_denied
        )
    }


def authorized_operations(
    services: Services, request: ApiRequest, resource: ResourceType, name: str = CLUSTER_NAME
) -> int:
    """The bits of the operations on a resource that the principal may do (KIP-430).

    Without an authorizer all that the resource supports. None of the cluster without DESCRIBE on it.
    """
    authorizer = services.authorizer
    if authorizer is None:
        return sum(1 << operation for operation in SUPPORTED_OPERATIONS[resource])
    if resource is _CLUSTER and not allows(services, request, Operation.DESCRIBE, _CLUSTER):
        return 0
    return authorizer.authorized_operations(request.raw.peer.session, resource, name)


# ---- before the handler

ASKED_BY_HANDLERS: Final = frozenset(
    api
    for api, questions in API_OPERATIONS.items()
    if all(question.where is Where.HANDLER for question in questions)
)
"""The APIs of which `authorize` would ask nothing."""


def authorize(services: Services, request: ApiRequest) -> bool:
    """Whether the handler may serve the request, as it is now; else it is refused, and answered."""
    for question in _BEFORE[int(request.api_key)]:
        operation, resource, where, field, on_cluster = question
        if on_cluster is not None and allows(services, request, on_cluster, _CLUSTER, logs_denied=False):
            continue
        if where is Where.ANSWER:
            _leave_out(services, request, question)
        elif where is Where.ENTRIES:
            refusals = _take_out(services, request, question)
            if refusals and not getattr(request.body, field):
                # Nothing is left for the handler, which might wait for something before it answers.
                name, _ = list_of(APIS[request.api_key].response)
                request.respond(APIS[request.api_key].response(**{name: refusals}))
                return False
            add_refusals(request, refusals)
        else:
            name = getattr(request.body, field) if field else CLUSTER_NAME
            if not allows(services, request, operation, resource, name):
                request.respond(refusal_of(request, DENIED[resource]))
                return False
    return True


def _take_out(services: Services, request: ApiRequest, question: Question) -> list[Any]:
    """Remove the refused entries from the request's list; returns their results for the answer."""
    operation, resource, _, field, _ = question
    entries = getattr(request.body, field)
    allowed = permitted(services, request, operation, resource, map(name_of, entries))
    refused = [entry for entry in entries if name_of(entry) not in allowed]
    if not refused:
        return []
    setattr(request.body, field, [entry for entry in entries if name_of(entry) in allowed])
    _, result_class = list_of(APIS[request.api_key].response)
    return refused_entries(result_class, refused, DENIED[resource])


def add_refusals(request: ApiRequest, refusals: Sequence[Any]) -> None:
    """Have the answer contain these results too, of entries that were taken out of the request's list."""
    if refusals:
        name, _ = list_of(APIS[request.api_key].response)

        def amend(response: Any) -> None:
            # The handler may keep its own list.
            setattr(response, name, [*getattr(response, name), *refusals])

        request.amendments += (amend,)


def _leave_out(services: Services, request: ApiRequest, question: Question) -> None:
    operation, resource, _, field, _ = question

    def amend(response: Any) -> None:
        entries = getattr(response, field)
        names = map(name_of, entries)
        allowed = permitted(services, request, operation, resource, names, logs_denied=False)
        setattr(response, field, [entry for entry in entries if name_of(entry) in allowed])

    request.amendments += (amend,)
