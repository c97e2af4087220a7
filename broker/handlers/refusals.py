"""The answers that refuse a whole request, or entries of its list, with an error code.

They have the names in the request and the error code, and nothing else. Where an answer has no code of the
whole request, or not in every version, each of its entries has the code too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.messages import (
    acls,
    authentication,
    client_quotas,
    find_coordinator,
    groups,
    offsets,
    placement,
    topics,
    transactions,
)
from barnabas.protocol.messages import replicas as log_dirs
from barnabas.protocol.messages.partitions import TopicResult
from barnabas.protocol.partition_entries import outcomes_in_topics, partitions_of
from barnabas.protocol.schema import APIS, ApiKey, WireType, wire_fields

_NULL_PROTOCOL_SINCE: Final = 7


def refusal_of(request: ApiRequest, code: ErrorCode) -> Any:
    """The answer that refuses a whole request with one code, as Kafka's `getErrorResponse` makes it."""
    make = _OF_ENTRIES.get(request.api_key)
    if make is not None:
        return make(request.body, code)
    response_class = APIS[request.api_key].response
    fields = wire_fields(response_class)
    required: dict[str, Any] = {
        name: [] if wire.is_array else ""
        for name, wire, default in fields
        if not default and (wire.is_array or wire.kind is WireType.STRING)
    }
    if any(name == "error_message" for name, _, _ in fields):
        required["error_message"] = api_error(code).text
    response = response_class(error_code=code, **required)
    if isinstance(response, groups.JoinGroupResponse) and request.is_since(_NULL_PROTOCOL_SINCE):
        response.protocol_name = None
    return response


def _of_partitions(topic_class: type[Any], topics: Iterable[Any], code: ErrorCode) -> list[Any]:
    return outcomes_in_topics(topic_class, dict.fromkeys(partitions_of(topics), code))


_Maker = Callable[[Any, ErrorCode], Any]


def _each_partition(field: str) -> _Maker:
    """The answer about each partition of the topics in a field of the request."""

    def make(body: Any, code: ErrorCode) -> Any:
        name, topic_class = list_of(body.response_type)
        return body.response_type(**{name: _of_partitions(topic_class, getattr(body, field), code)})

    return make


def _each_name(field: str) -> _Maker:
    """The answer about each name in a field of the request."""

    def make(body: Any, code: ErrorCode) -> Any:
        name, result_class = list_of(body.response_type)
        return body.response_type(**{name: refused_entries(result_class, getattr(body, field), code)})

    return make


def _resources(body: Any, code: ErrorCode) -> Any:
    name, result_class = list_of(body.response_type)
    results = [
        result_class(
            error_code=code, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        for resource in body.resources
    ]
    return body.response_type(**{name: results})


def _fetched_offsets(body: offsets.OffsetFetchRequest, code: ErrorCode) -> offsets.OffsetFetchResponse:
    return offsets.OffsetFetchResponse(
        error_code=code,
        topics=_of_partitions(offsets.OffsetFetchResponseTopic, body.topics or (), code),
        groups=[
            offsets.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
            for group in body.groups
        ],
    )


def _coordinators(
    body: find_coordinator.FindCoordinatorRequest, code: ErrorCode
) -> find_coordinator.FindCoordinatorResponse:
    return find_coordinator.FindCoordinatorResponse(
        error_code=code,
        coordinators=[
            find_coordinator.Coordinator(key=key, error_code=code) for key in body.coordinator_keys
        ],
    )


def _deletions(body: topics.DeleteTopicsRequest, code: ErrorCode) -> topics.DeleteTopicsResponse:
    requested = [*body.topics, *(topics.DeleteTopicState(name=name) for name in body.topic_names)]
    return topics.DeleteTopicsResponse(
        responses=[
            topics.DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
            for topic in requested
        ]
    )


def _added_partitions(
    body: transactions.AddPartitionsToTxnRequest, code: ErrorCode
) -> transactions.AddPartitionsToTxnResponse:
    topic_class = transactions.AddPartitionsToTxnTopicResult
    return transactions.AddPartitionsToTxnResponse(
        error_code=code,
        results_by_transaction=[
            transactions.AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=_of_partitions(topic_class, each.topics, code),
            )
            for each in body.transactions
        ],
        results_by_topic_v3_and_below=_of_partitions(topic_class, body.v3_and_below_topics, code),
    )


def _elections(body: placement.ElectLeadersRequest, code: ErrorCode) -> placement.ElectLeadersResponse:
    # Version 0 has no code of the whole request.
    results = _of_partitions(placement.ReplicaElectionResult, body.topic_partitions or (), code)
    return placement.ElectLeadersResponse(error_code=code, replica_election_results=results)


def _moves(
    body: log_dirs.AlterReplicaLogDirsRequest, code: ErrorCode
) -> log_dirs.AlterReplicaLogDirsResponse:
    topics = [topic for log_dir in body.dirs for topic in log_dir.topics]
    return log_dirs.AlterReplicaLogDirsResponse(
        results=_of_partitions(log_dirs.AlterReplicaLogDirTopicResult, topics, code)
    )


def _markers(
    body: transactions.WriteTxnMarkersRequest, code: ErrorCode
) -> transactions.WriteTxnMarkersResponse:
    return transactions.WriteTxnMarkersResponse(
        markers=[
            transactions.WritableTxnMarkerResult(
                producer_id=marker.producer_id, topics=_of_partitions(TopicResult, marker.topics, code)
            )
            for marker in body.markers
        ]
    )


def _scram_users(
    body: authentication.AlterUserScramCredentialsRequest, code: ErrorCode
) -> authentication.AlterUserScramCredentialsResponse:
    users = dict.fromkeys([change.name for change in body.deletions])
    users |= dict.fromkeys([change.name for change in body.upsertions])
    return authentication.AlterUserScramCredentialsResponse(
        results=[authentication.AlterUserScramCredentialsResult(user=user, error_code=code) for user in users]
    )


_OF_ENTRIES: Final[Mapping[ApiKey, _Maker]] = {
    ApiKey.PRODUCE: _each_partition("topic_data"),
    ApiKey.LIST_OFFSETS: _each_partition("topics"),
    ApiKey.DELETE_RECORDS: _each_partition("topics"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _each_partition("topics"),
    ApiKey.OFFSET_COMMIT: _each_partition("topics"),
    ApiKey.OFFSET_FETCH: _fetched_offsets,
    ApiKey.TXN_OFFSET_COMMIT: _each_partition("topics"),
    ApiKey.ADD_PARTITIONS_TO_TXN: _added_partitions,
    ApiKey.DESCRIBE_PRODUCERS: _each_partition("topics"),
    ApiKey.FIND_COORDINATOR: _coordinators,
    ApiKey.CREATE_TOPICS: _each_name("topics"),
    ApiKey.CREATE_PARTITIONS: _each_name("topics"),
    ApiKey.DELETE_TOPICS: _deletions,
    ApiKey.DESCRIBE_GROUPS: _each_name("groups"),
    ApiKey.DELETE_GROUPS: _each_name("groups_names"),
    ApiKey.DESCRIBE_TRANSACTIONS: _each_name("transactional_ids"),
    ApiKey.DESCRIBE_CONFIGS: _resources,
    ApiKey.ALTER_CONFIGS: _resources,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _resources,
    ApiKey.ELECT_LEADERS: _elections,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _moves,
    ApiKey.WRITE_TXN_MARKERS: _markers,
    ApiKey.CREATE_ACLS: lambda body, code: acls.CreateAclsResponse(
        results=[acls.AclCreationResult(error_code=code) for _ in body.creations]
    ),
    ApiKey.DELETE_ACLS: lambda body, code: acls.DeleteAclsResponse(
        filter_results=[acls.DeleteAclsFilterResult(error_code=code) for _ in body.filters]
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda body, code: client_quotas.AlterClientQuotasResponse(
        entries=[
            client_quotas.AlterQuotaResult(error_code=code, entity=entry.entity) for entry in body.entries
        ]
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _scram_users,
}
"""The APIs whose answers have no code of the whole request, or not in every version.

The handlers of Fetch and Metadata make their own."""


# ---- entries


def list_of(response_class: type[Any]) -> tuple[str, type[Any]]:
    """The first list of an answer, which has the results of the request's entries, and their class."""
    return next(
        (name, wire.struct) for name, wire, _ in wire_fields(response_class) if wire.struct is not None
    )


def name_field(entry_class: type[Any]) -> str:
    """The first string of a class, which is the name of its entries."""
    return next(name for name, wire, _ in wire_fields(entry_class) if wire.kind is WireType.STRING)


def name_of(entry: Any) -> str:
    """The name of an entry of a list, or the entry itself where the list has names alone."""
    return entry if isinstance(entry, str) else getattr(entry, name_field(type(entry)))


def refused_entries(result_class: type[Any], entries: Iterable[Any], code: ErrorCode) -> list[Any]:
    """The results of refused entries, each name once: with the code, or with it for each partition."""
    if any(name == "error_code" for name, _, _ in wire_fields(result_class)):
        names = dict.fromkeys(map(name_of, entries))
        return [result_class(**{name_field(result_class): name, "error_code": code}) for name in names]
    return _of_partitions(result_class, entries, code)
