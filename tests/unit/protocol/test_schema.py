"""The declarations against the facts of Kafka's protocol, and the rules that every declaration keeps.

The table was taken down from the message definitions of Apache Kafka 3.9, clipped to the versions that we
serve: order, names, types, versions, nullability, tags, and the defaults where Kafka sets one. Two tagged
fields are left out on purpose: `snapshot_id` in Fetch and `zk_migration_ready` in ApiVersions are KRaft's.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from typing import Any, NamedTuple

import pytest

from barnabas.protocol.schema import (
    APIS,
    NATIVE_ONLY,
    Api,
    ApiKey,
    RequestOf,
    WireType,
    array,
    int32,
    message,
    request,
    string,
    wire_fields,
)

FACTS = """
0 Produce versions 0-9 flexible 9
  request
    transactional_id string 3-9 null:3 =None
    acks int16
    timeout_ms int32
    topic_data []struct
      name string
      partition_data []struct
        index int32
        records records null:0
  response
    responses []struct
      name string
      partition_responses []struct
        index int32
        error_code int16
        base_offset int64
        log_append_time_ms int64 2-9 =-1
        log_start_offset int64 5-9 =-1
        record_errors []struct 8-9
          batch_index int32 8-9
          batch_index_error_message string 8-9 null:8 =None
        error_message string 8-9 null:8 =None
    throttle_time_ms int32 1-9 =0
1 Fetch versions 4-13 flexible 12
  request
    cluster_id string 12-13 null:12 tag:0 =None
    replica_id int32 =-1
    max_wait_ms int32
    min_bytes int32
    max_bytes int32 =2147483647
    isolation_level int8 =0
    session_id int32 7-13 =0
    session_epoch int32 7-13 =-1
    topics []struct
      topic string 4-12
      topic_id uuid 13-13
      partitions []struct
        partition int32
        current_leader_epoch int32 9-13 =-1
        fetch_offset int64
        last_fetched_epoch int32 12-13 =-1
        log_start_offset int64 5-13 =-1
        partition_max_bytes int32
    forgotten_topics_data []struct 7-13
      topic string 7-12
      topic_id uuid 13-13
      partitions []int32 7-13
    rack_id string 11-13 =''
  response
    throttle_time_ms int32
    error_code int16 7-13
    session_id int32 7-13 =0
    responses []struct
      topic string 4-12
      topic_id uuid 13-13
      partitions []struct
        partition_index int32
        error_code int16
        high_watermark int64
        last_stable_offset int64 =-1
        log_start_offset int64 5-13 =-1
        diverging_epoch struct 12-13 tag:0
          epoch int32 12-13 =-1
          end_offset int64 12-13 =-1
        current_leader struct 12-13 tag:1
          leader_id int32 12-13 =-1
          leader_epoch int32 12-13 =-1
        aborted_transactions []struct null:4
          producer_id int64
          first_offset int64
        preferred_read_replica int32 11-13 =-1
        records records null:4
2 ListOffsets versions 1-8 flexible 6
  request
    replica_id int32
    isolation_level int8 2-8
    topics []struct
      name string
      partitions []struct
        partition_index int32
        current_leader_epoch int32 4-8 =-1
        timestamp int64
  response
    throttle_time_ms int32 2-8
    topics []struct
      name string
      partitions []struct
        partition_index int32
        error_code int16
        timestamp int64 =-1
        offset int64 =-1
        leader_epoch int32 4-8 =-1
3 Metadata versions 0-12 flexible 9
  request
    topics []struct null:1
      topic_id uuid 10-12
      name string null:10
    allow_auto_topic_creation boolean 4-12 =True
    include_cluster_authorized_operations boolean 8-10
    include_topic_authorized_operations boolean 8-12
  response
    throttle_time_ms int32 3-12
    brokers []struct
      node_id int32
      host string
      port int32
      rack string 1-12 null:1 =None
    cluster_id string 2-12 null:2 =None
    controller_id int32 1-12 =-1
    topics []struct
      error_code int16
      name string null:12
      topic_id uuid 10-12
      is_internal boolean 1-12 =False
      partitions []struct
        error_code int16
        partition_index int32
        leader_id int32
        leader_epoch int32 7-12 =-1
        replica_nodes []int32
        isr_nodes []int32
        offline_replicas []int32 5-12
      topic_authorized_operations int32 8-12 =-2147483648
    cluster_authorized_operations int32 8-10 =-2147483648
8 OffsetCommit versions 2-8 flexible 8
  request
    group_id string
    generation_id_or_member_epoch int32 =-1
    member_id string
    group_instance_id string 7-8 null:7 =None
    retention_time_ms int64 2-4 =-1
    topics []struct
      name string
      partitions []struct
        partition_index int32
        committed_offset int64
        committed_leader_epoch int32 6-8 =-1
        committed_metadata string null:2
  response
    throttle_time_ms int32 3-8
    topics []struct
      name string
      partitions []struct
        partition_index int32
        error_code int16
9 OffsetFetch versions 1-8 flexible 6
  request
    group_id string 1-7
    topics []struct 1-7 null:2
      name string 1-7
      partition_indexes []int32 1-7
    groups []struct 8-8
      group_id string 8-8
      topics []struct 8-8 null:8
        name string 8-8
        partition_indexes []int32 8-8
    require_stable boolean 7-8 =False
  response
    throttle_time_ms int32 3-8
    topics []struct 1-7
      name string 1-7
      partitions []struct 1-7
        partition_index int32 1-7
        committed_offset int64 1-7
        committed_leader_epoch int32 5-7 =-1
        metadata string 1-7 null:1
        error_code int16 1-7
    error_code int16 2-7 =0
    groups []struct 8-8
      group_id string 8-8
      topics []struct 8-8
        name string 8-8
        partitions []struct 8-8
          partition_index int32 8-8
          committed_offset int64 8-8
          committed_leader_epoch int32 8-8 =-1
          metadata string 8-8 null:8
          error_code int16 8-8
      error_code int16 8-8 =0
10 FindCoordinator versions 0-4 flexible 3
  request
    key string 0-3
    key_type int8 1-4 =0
    coordinator_keys []string 4-4
  response
    throttle_time_ms int32 1-4
    error_code int16 0-3
    error_message string 1-3 null:1
    node_id int32 0-3
    host string 0-3
    port int32 0-3
    coordinators []struct 4-4
      key string 4-4
      node_id int32 4-4
      host string 4-4
      port int32 4-4
      error_code int16 4-4
      error_message string 4-4 null:4
11 JoinGroup versions 0-9 flexible 6
  request
    group_id string
    session_timeout_ms int32
    rebalance_timeout_ms int32 1-9 =-1
    member_id string
    group_instance_id string 5-9 null:5 =None
    protocol_type string
    protocols []struct
      name string
      metadata bytes
    reason string 8-9 null:8 =None
  response
    throttle_time_ms int32 2-9
    error_code int16
    generation_id int32 =-1
    protocol_type string 7-9 null:7 =None
    protocol_name string null:7
    leader string
    skip_assignment boolean 9-9 =False
    member_id string
    members []struct
      member_id string
      group_instance_id string 5-9 null:5 =None
      metadata bytes
12 Heartbeat versions 0-4 flexible 4
  request
    group_id string
    generation_id int32
    member_id string
    group_instance_id string 3-4 null:3 =None
  response
    throttle_time_ms int32 1-4
    error_code int16
13 LeaveGroup versions 0-5 flexible 4
  request
    group_id string
    member_id string 0-2
    members []struct 3-5
      member_id string 3-5
      group_instance_id string 3-5 null:3 =None
      reason string 5-5 null:5 =None
  response
    throttle_time_ms int32 1-5
    error_code int16
    members []struct 3-5
      member_id string 3-5
      group_instance_id string 3-5 null:3
      error_code int16 3-5
14 SyncGroup versions 0-5 flexible 4
  request
    group_id string
    generation_id int32
    member_id string
    group_instance_id string 3-5 null:3 =None
    protocol_type string 5-5 null:5 =None
    protocol_name string 5-5 null:5 =None
    assignments []struct
      member_id string
      assignment bytes
  response
    throttle_time_ms int32 1-5
    error_code int16
    protocol_type string 5-5 null:5 =None
    protocol_name string 5-5 null:5 =None
    assignment bytes
15 DescribeGroups versions 0-5 flexible 5
  request
    groups []string
    include_authorized_operations boolean 3-5
  response
    throttle_time_ms int32 1-5
    groups []struct
      error_code int16
      group_id string
      group_state string
      protocol_type string
      protocol_data string
      members []struct
        member_id string
        group_instance_id string 4-5 null:4 =None
        client_id string
        client_host string
        member_metadata bytes
        member_assignment bytes
      authorized_operations int32 3-5 =-2147483648
16 ListGroups versions 0-5 flexible 3
  request
    states_filter []string 4-5
    types_filter []string 5-5
  response
    throttle_time_ms int32 1-5
    error_code int16
    groups []struct
      group_id string
      protocol_type string
      group_state string 4-5
      group_type string 5-5
18 ApiVersions versions 0-4 flexible 3
  request
    client_software_name string 3-4
    client_software_version string 3-4
  response
    error_code int16
    api_keys []struct
      api_key int16
      min_version int16
      max_version int16
    throttle_time_ms int32 1-4
    supported_features []struct 3-4 tag:0
      name string 3-4
      min_version int16 3-4
      max_version int16 3-4
    finalized_features_epoch int64 3-4 tag:1 =-1
    finalized_features []struct 3-4 tag:2
      name string 3-4
      max_version_level int16 3-4
      min_version_level int16 3-4
19 CreateTopics versions 2-7 flexible 5
  request
    topics []struct
      name string
      num_partitions int32
      replication_factor int16
      assignments []struct
        partition_index int32
        broker_ids []int32
      configs []struct
        name string
        value string null:2
    timeout_ms int32 =60000
    validate_only boolean =False
  response
    throttle_time_ms int32
    topics []struct
      name string
      topic_id uuid 7-7
      error_code int16
      error_message string null:2
      topic_config_error_code int16 5-7 tag:0
      num_partitions int32 5-7 =-1
      replication_factor int16 5-7 =-1
      configs []struct 5-7 null:5
        name string 5-7
        value string 5-7 null:5
        read_only boolean 5-7
        config_source int8 5-7 =-1
        is_sensitive boolean 5-7
20 DeleteTopics versions 1-6 flexible 4
  request
    topics []struct 6-6
      name string 6-6 null:6 =None
      topic_id uuid 6-6
    topic_names []string 1-5
    timeout_ms int32
  response
    throttle_time_ms int32
    responses []struct
      name string null:6
      topic_id uuid 6-6
      error_code int16
      error_message string 5-6 null:5 =None
21 DeleteRecords versions 0-2 flexible 2
  request
    topics []struct
      name string
      partitions []struct
        partition_index int32
        offset int64
    timeout_ms int32
  response
    throttle_time_ms int32
    topics []struct
      name string
      partitions []struct
        partition_index int32
        low_watermark int64
        error_code int16
22 InitProducerId versions 0-4 flexible 2
  request
    transactional_id string null:0
    transaction_timeout_ms int32
    producer_id int64 3-4 =-1
    producer_epoch int16 3-4 =-1
  response
    throttle_time_ms int32
    error_code int16
    producer_id int64 =-1
    producer_epoch int16
23 OffsetForLeaderEpoch versions 2-4 flexible 4
  request
    replica_id int32 3-4 =-2
    topics []struct
      topic string
      partitions []struct
        partition int32
        current_leader_epoch int32 =-1
        leader_epoch int32
  response
    throttle_time_ms int32
    topics []struct
      topic string
      partitions []struct
        error_code int16
        partition int32
        leader_epoch int32 =-1
        end_offset int64 =-1
32 DescribeConfigs versions 1-4 flexible 4
  request
    resources []struct
      resource_type int8
      resource_name string
      configuration_keys []string null:1
    include_synonyms boolean =False
    include_documentation boolean 3-4 =False
  response
    throttle_time_ms int32
    results []struct
      error_code int16
      error_message string null:1
      resource_type int8
      resource_name string
      configs []struct
        name string
        value string null:1
        read_only boolean
        config_source int8 =-1
        is_sensitive boolean
        synonyms []struct
          name string
          value string null:1
          source int8
        config_type int8 3-4 =0
        documentation string 3-4 null:3
33 AlterConfigs versions 0-2 flexible 2
  request
    resources []struct
      resource_type int8
      resource_name string
      configs []struct
        name string
        value string null:0
    validate_only boolean
  response
    throttle_time_ms int32
    responses []struct
      error_code int16
      error_message string null:0
      resource_type int8
      resource_name string
35 DescribeLogDirs versions 0-4 flexible 2
  request
    topics []struct null:0
      topic string
      partitions []int32
  response
    throttle_time_ms int32
    error_code int16 3-4
    results []struct
      error_code int16
      log_dir string
      topics []struct
        name string
        partitions []struct
          partition_index int32
          partition_size int64
          offset_lag int64
          is_future_key boolean
      total_bytes int64 4-4 =-1
      usable_bytes int64 4-4 =-1
37 CreatePartitions versions 0-3 flexible 2
  request
    topics []struct
      name string
      count int32
      assignments []struct null:0
        broker_ids []int32
    timeout_ms int32
    validate_only boolean
  response
    throttle_time_ms int32
    results []struct
      name string
      error_code int16
      error_message string null:0 =None
42 DeleteGroups versions 0-2 flexible 2
  request
    groups_names []string
  response
    throttle_time_ms int32
    results []struct
      group_id string
      error_code int16
44 IncrementalAlterConfigs versions 0-1 flexible 1
  request
    resources []struct
      resource_type int8
      resource_name string
      configs []struct
        name string
        config_operation int8
        value string null:0
    validate_only boolean
  response
    throttle_time_ms int32
    responses []struct
      error_code int16
      error_message string null:0
      resource_type int8
      resource_name string
47 OffsetDelete versions 0-0 flexible none
  request
    group_id string
    topics []struct
      name string
      partitions []struct
        partition_index int32
  response
    error_code int16
    throttle_time_ms int32
    topics []struct
      name string
      partitions []struct
        partition_index int32
        error_code int16
60 DescribeCluster versions 0-1 flexible 0
  request
    include_cluster_authorized_operations boolean
    endpoint_type int8 1-1 =1
  response
    throttle_time_ms int32
    error_code int16
    error_message string null:0 =None
    endpoint_type int8 1-1 =1
    cluster_id string
    controller_id int32 =-1
    brokers []struct
      broker_id int32
      host string
      port int32
      rack string null:0 =None
    cluster_authorized_operations int32 =-2147483648
"""

API_LINE = re.compile(
    r"(?P<key>\d+) (?P<name>\w+) versions (?P<low>\d+)-(?P<high>\d+) flexible (?P<flexible>\d+|none)"
)
FIELD_LINE = re.compile(
    r"(?P<indent> *)(?P<name>\w+) (?P<array>\[\])?(?P<kind>\w+)"
    r"(?: (?P<since>\d+)-(?P<until>\d+))?(?: null:(?P<null>\d+))?(?: tag:(?P<tag>\d+))?(?: =(?P<default>.*))?"
)


class Field(NamedTuple):
    """A field as both sides describe it; ``depth`` tells which structure it belongs to."""

    depth: int
    name: str
    kind: str
    is_array: bool
    since: int
    until: int
    null_since: int | None
    tag: int | None


class Facts(NamedTuple):
    name: str
    flexible: int | None
    versions: tuple[int, int]
    fields: dict[str, list[Field]]
    defaults: dict[str, dict[int, Any]]


def read_facts() -> dict[int, Facts]:
    found: dict[int, Facts] = {}
    side = ""
    for line in FACTS.strip("\n").split("\n"):
        if api := API_LINE.fullmatch(line):
            versions = (int(api["low"]), int(api["high"]))
            flexible = None if api["flexible"] == "none" else int(api["flexible"])
            facts = Facts(api["name"], flexible, versions, {}, {})
            found[int(api["key"])] = facts
        elif line in ("  request", "  response"):
            side = line.strip()
            facts.fields[side], facts.defaults[side] = [], {}
        else:
            field = FIELD_LINE.fullmatch(line)
            assert field is not None, line
            if field["default"]:
                facts.defaults[side][len(facts.fields[side])] = ast.literal_eval(field["default"])
            facts.fields[side].append(
                Field(
                    len(field["indent"]) // 2 - 2,
                    field["name"],
                    field["kind"],
                    field["array"] is not None,
                    int(field["since"] or versions[0]),
                    int(field["until"] or versions[1]),
                    int(field["null"]) if field["null"] else None,
                    int(field["tag"]) if field["tag"] else None,
                )
            )
    return found


KAFKA = read_facts()


def declared_fields(cls: type[Any], low: int, high: int, depth: int = 0) -> list[tuple[Field, Any]]:
    """The fields that Kafka's codec would send in these versions, nested ones too, and default makers."""
    found: list[tuple[Field, Any]] = []
    for name, wire, maker in wire_fields(cls):
        if wire.native_only or wire.since > high:
            continue
        since = max(wire.since, low)
        until = high if wire.until is None else min(wire.until, high)
        null_since = None if wire.nullable_since is None else max(wire.nullable_since, since)
        kind = wire.kind.value
        found.append((Field(depth, name, kind, wire.is_array, since, until, null_since, wire.tag), maker))
        if wire.struct is not None:
            found += declared_fields(wire.struct, since, until, depth + 1)
    return found


def classes_of(api: Api) -> list[type[Any]]:
    """Request, response, and all structures below them."""
    found: list[type[Any]] = []
    to_visit = [api.request, api.response]
    while to_visit:
        cls = to_visit.pop()
        found.append(cls)
        to_visit += [wire.struct for _, wire, _ in wire_fields(cls) if wire.struct is not None]
    return found


ALL_CLASSES = sorted({cls for api in APIS.values() for cls in classes_of(api)}, key=lambda cls: cls.__name__)


def test_the_table_has_every_api_that_kafkas_clients_may_call() -> None:
    assert set(KAFKA) == {key for key, api in APIS.items() if not api.is_native_only}


@pytest.mark.parametrize("key", sorted(KAFKA), ids=lambda key: KAFKA[key].name)
def test_api_keys_and_versions_are_kafkas(key: int) -> None:
    facts, api = KAFKA[key], APIS[key]
    assert api.request.__name__ == f"{facts.name}Request"
    assert api.response.__name__ == f"{facts.name}Response"
    assert api.key == api.request.api_key == key
    assert (api.versions, api.flexible_since) == (facts.versions, facts.flexible)


@pytest.mark.parametrize("side", ["request", "response"])
@pytest.mark.parametrize("key", sorted(KAFKA), ids=lambda key: KAFKA[key].name)
def test_fields_are_kafkas(key: int, side: str) -> None:
    cls = getattr(APIS[key], side)
    declared = declared_fields(cls, *KAFKA[key].versions)
    assert [field for field, _ in declared] == KAFKA[key].fields[side]
    for place, default in KAFKA[key].defaults[side].items():
        field, maker = declared[place]
        assert maker is not None, field
        assert maker() == default, field


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (ApiKey.LEADER_AND_ISR, 4),
        (ApiKey.STOP_REPLICA, 5),
        (ApiKey.UPDATE_METADATA, 6),
        (ApiKey.CONTROLLED_SHUTDOWN, 7),
    ],
)
def test_apis_between_brokers_have_kafkas_numbers_but_no_kafka_versions(key: ApiKey, number: int) -> None:
    assert key == number
    assert APIS[key].is_native_only
    assert APIS[key].versions == NATIVE_ONLY


def test_our_own_apis_are_out_of_kafkas_way_and_fit_one_byte() -> None:
    for key, api in APIS.items():
        assert key in KAFKA or key in range(4, 8) or (240 <= key <= 255 and api.is_native_only)


def test_every_api_key_is_declared() -> None:
    assert set(APIS) == set(ApiKey)


@pytest.mark.parametrize("key", sorted(KAFKA), ids=lambda key: KAFKA[key].name)
def test_a_field_that_some_version_lacks_has_a_default(key: int) -> None:
    for cls in classes_of(APIS[key]):
        spans = [(wire.since, wire.until) for _, wire, _ in wire_fields(cls)]
        widest = (min(since for since, _ in spans), None)
        for (name, wire, maker), span in zip(wire_fields(cls), spans, strict=True):
            if span != widest or wire.native_only or wire.tag is not None:
                assert maker is not None, f"{cls.__name__}.{name}"


@pytest.mark.parametrize("cls", ALL_CLASSES, ids=lambda cls: cls.__name__)
def test_annotations_agree_with_wire_types(cls: type[Any]) -> None:
    python_types = {
        WireType.BOOLEAN: "bool",
        WireType.STRING: "str",
        WireType.BYTES: "bytes",
        WireType.UUID: "uuid.UUID",
        WireType.RECORDS: "RecordsToSend",
    }
    module = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
    classes = {node.name: node.body for node in module.body if isinstance(node, ast.ClassDef)}
    annotations = [
        ast.unparse(line.annotation) for line in classes[cls.__name__] if isinstance(line, ast.AnnAssign)
    ]
    for annotation, (name, wire, _) in zip(annotations, wire_fields(cls), strict=True):
        expected = wire.struct.__name__ if wire.struct is not None else python_types.get(wire.kind, "int")
        if wire.is_array:
            expected = f"list[{expected}]"
        if wire.nullable_since is not None and wire.kind is not WireType.RECORDS:
            expected += " | None"
        assert annotation == expected, name


@pytest.mark.parametrize("cls", ALL_CLASSES, ids=lambda cls: cls.__name__)
def test_messages_have_slots_and_take_keywords_alone(cls: type[Any]) -> None:
    made = cls(**{name: None for name, _, _ in wire_fields(cls)})
    with pytest.raises(AttributeError):
        made.no_such_field = 1
    with pytest.raises(TypeError):
        cls(1)


def test_an_api_key_cannot_be_declared_twice() -> None:
    with pytest.raises(ValueError, match="FETCH is declared twice: FetchRequest and Second"):

        @request(ApiKey.FETCH, object, versions=NATIVE_ONLY)
        @message
        class Second(RequestOf[object]):
            number: int = int32()

    assert APIS[ApiKey.FETCH].request.__name__ == "FetchRequest"


def test_a_declaration_gives_its_fields_in_order_with_makers_of_defaults() -> None:
    @message
    class Inner:
        number: int = int32()

    @message
    class Outer:
        inner: list[Inner] = array(Inner, default_factory=list, since=2)
        name: str | None = string(nullable_since=1, default=None)
        numbers: list[int] = array(WireType.INT32)

    (inner, inner_wire, no_inner), (name, name_wire, no_name), (numbers, _, required) = wire_fields(Outer)
    assert (inner, name, numbers) == ("inner", "name", "numbers")
    assert (inner_wire.struct, inner_wire.is_array, inner_wire.since) == (Inner, True, 2)
    assert (name_wire.kind, name_wire.nullable_since) == (WireType.STRING, 1)
    assert no_inner() == []
    assert no_inner() is not no_inner()
    assert no_name() is None
    assert required is None
