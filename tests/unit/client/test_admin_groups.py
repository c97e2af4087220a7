"""Groups as operators ask about them, against a fake cluster."""

import argparse
import asyncio
import json
from typing import Any

import pytest

from barnabas.cli.main import build_parser
from barnabas.client.admin.groups import GroupListing, SurveyedGroup
from barnabas.client.errors import ApiError, ConnectionClosed, ErrorCode, GroupErrors
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.protocol.errors import GroupIdNotFoundError
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
)
from barnabas.protocol.messages.offsets import (
    OffsetCommitResponse,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from barnabas.protocol.messages.partitions import PartitionResult, TopicResult
from barnabas.protocol.schema import ApiKey
from tests.support.admins import quick_admin
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.waiting import until


def _describe(broker: FakeBroker, body: Any) -> Any:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=name, group_state="Empty") for name in body.groups]
    )


def _list(broker: FakeBroker, body: Any) -> Any:
    return ListGroupsResponse(groups=[ListedGroup(group_id=f"of-{broker.node_id}", protocol_type="consumer")])


def _delete(broker: FakeBroker, body: Any) -> Any:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(
                group_id=name, error_code=ErrorCode.NON_EMPTY_GROUP if name.startswith("used") else 0
            )
            for name in body.groups_names
        ]
    )


def _committed(broker: FakeBroker, body: Any) -> Any:
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                group_id=requested.group_id,
                topics=[
                    OffsetFetchResponseTopic(
                        name="t",
                        partitions=[OffsetFetchResponsePartition(partition_index=0, committed_offset=3)],
                    )
                ],
            )
            for requested in body.groups
        ]
    )


def with_groups(cluster: FakeCluster) -> FakeCluster:
    cluster.intercept.update(
        {
            ApiKey.DESCRIBE_GROUPS: _describe,
            ApiKey.LIST_GROUPS: _list,
            ApiKey.DELETE_GROUPS: _delete,
            ApiKey.OFFSET_FETCH: _committed,
        }
    )
    return cluster


async def test_all_brokers_are_asked_for_their_groups_at_once() -> None:
    async with FakeCluster(3) as cluster:
        with_groups(cluster)
        gates = [broker.gate(ApiKey.LIST_GROUPS) for broker in cluster.brokers.values()]
        async with quick_admin(cluster) as admin:
            listing = asyncio.create_task(admin.list_groups())
            await until(lambda: len(cluster.requests(ApiKey.LIST_GROUPS)) == 3)
            for gate in gates:
                gate.set()
            assert [group.group_id for group in await listing] == ["of-1", "of-2", "of-3"]


async def test_listed_groups_are_surveyed_by_two_requests_to_each_coordinator() -> None:
    def describe(broker: FakeBroker, body: Any) -> Any:
        answer = _describe(broker, body)
        answer.groups[-1].error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return answer

    names = [f"g-{number}" for number in range(250)]
    listings = [GroupListing(name, "consumer", "Empty", BrokerId(1)) for name in names]
    async with FakeCluster(2) as cluster:
        cluster.intercept |= {ApiKey.DESCRIBE_GROUPS: describe, ApiKey.OFFSET_FETCH: _committed}
        async with quick_admin(cluster) as admin:
            surveyed = await admin.survey_groups([*listings, GroupListing("h", "", "", BrokerId(2))])
            await cluster.brokers[2].stop()
            later = await admin.survey_groups([GroupListing("h", "", "", BrokerId(2))], timeout_ms=500)
    assert len(cluster.requests(ApiKey.DESCRIBE_GROUPS)) == len(cluster.requests(ApiKey.OFFSET_FETCH)) == 3
    assert list(surveyed) == [*names, "h"]
    refused = surveyed.pop("g-199")
    assert "GROUP_AUTHORIZATION_FAILED" in str(refused)
    group = surveyed["g-0"]
    assert isinstance(group, SurveyedGroup)
    assert (group.description.coordinator, group.committed) == (1, {("t", 0): OffsetAndMetadata(3)})
    assert isinstance(later["h"], ConnectionClosed)


@pytest.mark.parametrize("api", [ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH])
async def test_a_surveyed_group_that_an_answer_lacks_has_an_error(api: ApiKey) -> None:
    answers = {ApiKey.DESCRIBE_GROUPS: _describe, ApiKey.OFFSET_FETCH: _committed}

    def shorter(broker: FakeBroker, body: Any) -> Any:
        answer = answers[api](broker, body)
        answer.groups.pop()
        return answer

    async with FakeCluster() as cluster:
        cluster.intercept |= answers | {api: shorter}
        async with quick_admin(cluster) as admin:
            listings = [GroupListing(name, "", "", BrokerId(1)) for name in ("g", "h")]
            surveyed = await admin.survey_groups(listings)
    assert isinstance(surveyed["g"], SurveyedGroup)
    assert "did not answer for group 'h'" in str(surveyed["h"])


async def test_a_broker_that_dies_while_groups_are_listed_is_left_out() -> None:
    async with FakeCluster(3) as cluster:
        with_groups(cluster)
        dying = cluster.brokers[3]
        dying.gate(ApiKey.LIST_GROUPS)
        async with quick_admin(cluster) as admin:
            listing = asyncio.create_task(admin.list_groups())
            await until(lambda: len(cluster.requests(ApiKey.LIST_GROUPS)) == 3)
            cluster.hide(3)
            await dying.stop()
            assert [group.group_id for group in await listing] == ["of-1", "of-2"]


async def test_offsets_of_a_group_are_set_unless_it_has_members() -> None:
    def answer(broker: FakeBroker, body: Any) -> Any:
        code = ErrorCode.UNKNOWN_MEMBER_ID if body.group_id == "used" else ErrorCode.NONE
        partition = PartitionResult(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=[TopicResult(name="t", partitions=[partition])])

    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        cluster.intercept[ApiKey.OFFSET_COMMIT] = answer
        async with quick_admin(cluster) as admin:
            await admin.alter_group_offsets("g", {("t", 0): 7})
            with pytest.raises(ApiError, match="group 'used' has members") as caught:
                await admin.alter_group_offsets("used", {("t", 0): 7})
        assert caught.value.code == ErrorCode.NON_EMPTY_GROUP
        first, _ = cluster.requests(ApiKey.OFFSET_COMMIT)
        assert (first.group_id, first.topics[0].partitions[0].committed_offset) == ("g", 7)


async def test_deleting_continues_after_a_group_that_is_in_use() -> None:
    async with FakeCluster() as cluster:
        with_groups(cluster)
        async with quick_admin(cluster) as admin:
            await admin.delete_groups(["a", "b"])
            with pytest.raises(GroupErrors) as caught:
                await admin.delete_groups(["used-1", "c", "used-2", "d"])
            with pytest.raises(ApiError, match="group 'used-1' has members"):
                await admin.delete_groups("used-1")
        assert sorted(caught.value.errors) == ["used-1", "used-2"]
        assert sorted(caught.value.results) == ["c", "d"]
        requested = {
            name for request in cluster.requests(ApiKey.DELETE_GROUPS) for name in request.groups_names
        }
        assert requested == {"a", "b", "used-1", "c", "used-2", "d"}


def parsed(*words: str) -> argparse.Namespace:
    """The options of `barnabas groups`."""
    return build_parser("groups").parse_args(["groups", *words])


async def test_the_command_says_which_groups_were_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeCluster() as cluster:
        with_groups(cluster)
        options = parsed("delete", "used", "a", "b", "-b", cluster.bootstrap)
        with pytest.raises(GroupErrors, match=r"used: .*has members"):
            await asyncio.to_thread(options.run, options)
    assert capsys.readouterr().out == "group a deleted\ngroup b deleted\n"


async def test_many_groups_are_described_with_one_look_at_all_topics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [f"g{number}" for number in range(50)]
    async with FakeCluster() as cluster:
        with_groups(cluster)
        cluster.add_topic("t")
        options = parsed("describe", *names, "--json", "-b", cluster.bootstrap)
        await asyncio.to_thread(options.run, options)
        assert sum(request.topics is None for request in cluster.requests(ApiKey.METADATA)) == 1
        assert len(cluster.requests(ApiKey.LIST_OFFSETS)) == 1
    described = json.loads(capsys.readouterr().out)
    assert [group["group"] for group in described] == names
    assert all(group["partitions"][0]["committed_offset"] == 3 for group in described)


@pytest.mark.parametrize("require_stable", [False, True])
async def test_an_admin_waits_for_open_transactions_only_if_it_is_told_to(require_stable: bool) -> None:
    async with FakeCluster() as cluster:
        with_groups(cluster)

        def unstable(body: Any) -> Any:
            answer = _committed(cluster.brokers[1], body)
            if body.require_stable:
                answer.groups[0].topics[0].partitions[0].error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            return answer

        cluster.brokers[1].script(ApiKey.OFFSET_FETCH, unstable, unstable)
        async with quick_admin(cluster) as admin:
            offsets = await admin.group_offsets("g", require_stable=require_stable)
        assert [offset and offset.offset for offset in offsets.values()] == [3]
        assert len(cluster.requests(ApiKey.OFFSET_FETCH)) == (3 if require_stable else 1)


@pytest.mark.parametrize(("wire", "kind"), [("native", ""), ("kafka", " of the classic group protocol")])
async def test_a_dead_group_is_missing_or_has_the_new_protocol_of_kafka(wire: str, kind: str) -> None:
    def dead(broker: FakeBroker, body: Any) -> Any:
        return DescribeGroupsResponse(
            groups=[DescribedGroup(group_id=name, group_state="Dead") for name in body.groups]
        )

    async with FakeCluster() as cluster:
        cluster.intercept |= {ApiKey.DESCRIBE_GROUPS: dead, ApiKey.OFFSET_FETCH: _committed}
        async with quick_admin(cluster, wire=wire) as admin:
            surveyed = await admin.survey_groups(GroupListing("g", "", "", BrokerId(1)))
            with pytest.raises(GroupIdNotFoundError) as caught:
                await admin.describe_groups("g")
    assert str(surveyed["g"]) == str(caught.value) == f"GROUP_ID_NOT_FOUND: there is no group 'g'{kind}"
