"""The pages of settings, against brokers in the test's own loop."""

import html
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

from barnabas.client.admin.admin import Admin, ConfigEntry
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    ConfigResourceType,
    ConfigSource,
    ConfigType,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsResponse,
)
from barnabas.protocol.schema import ApiKey
from barnabas.ui import settings
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from barnabas.ui.settings import chosen
from tests.support.admins import quick_admin
from tests.support.asgi import get, post
from tests.support.fake_broker import FakeBroker, FakeCluster

BAD = "<script>alert(1)</script>"


class Pages(NamedTuple):
    cluster: FakeCluster
    admin: Admin
    app: Any


def entries() -> list[DescribeConfigsResourceResult]:
    def entry(name: str, value: str | None, **settings: Any) -> DescribeConfigsResourceResult:
        defaults = {"read_only": False, "config_source": ConfigSource.DEFAULT_CONFIG, "is_sensitive": False}
        return DescribeConfigsResourceResult(name=name, value=value, **{**defaults, **settings})

    return [
        entry("retention.ms", BAD, config_source=ConfigSource.DYNAMIC_TOPIC_CONFIG, documentation="How long"),
        entry("ssl.key.password", None, is_sensitive=True),
        entry("log.dirs", "/data", read_only=True),
        entry("flag", "true", config_type=ConfigType.BOOLEAN),
    ]


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    def describe(broker: FakeBroker, body: Any) -> Any:
        (asked,) = body.resources
        result = DescribeConfigsResult(
            error_code=0,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=entries(),
        )
        return DescribeConfigsResponse(results=[result])

    def alter(broker: FakeBroker, body: Any) -> Any:
        (asked,) = body.resources
        is_bad = asked.configs[0].value == "bad"
        result = AlterConfigsResourceResponse(
            error_code=40 if is_bad else 0,
            error_message=f"retention.ms={BAD}: expected a number" if is_bad else None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
        return IncrementalAlterConfigsResponse(responses=[result])

    async with FakeCluster() as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("t")
        cluster.intercept |= {ApiKey.DESCRIBE_CONFIGS: describe, ApiKey.INCREMENTAL_ALTER_CONFIGS: alter}
        context = Context(admin=admin, bootstrap=cluster.bootstrap, settings={})
        yield Pages(cluster, admin, make_app(context))


@pytest.mark.parametrize("of", ["topic=t", "broker=1", ""])
async def test_settings_are_escaped_hidden_and_read_only(of: str, pages: Pages) -> None:
    page = await get(pages.app, f"settings?{of}")
    assert "4 of 4" in page.text
    assert "<script>alert" not in page.text
    assert "<em>hidden</em>" in page.text
    assert "by a restart" in page.text
    assert f"setting?{of}{'&amp;' if of else ''}name=retention.ms" in page.text
    assert "name=log.dirs" not in page.text
    assert "1 of 4" in (await get(pages.app, f"settings?{of}&changed=1")).text
    assert "1 of 4" in (await get(pages.app, f"settings?{of}&filter=how+LONG")).text


async def test_a_change_is_validated_before_it_is_made(pages: Pages) -> None:
    fields = {"topic": "t", "name": "retention.ms"}
    answer = await post(pages.app, "save-setting", **fields, value="60000")
    assert answer.location.startswith("settings?topic=t&outcome=")
    assert "topic t: retention.ms is changed." in unquote(answer.location)
    reset = await post(pages.app, "save-setting", **fields, value="1", action="reset")
    assert "has its default again" in unquote(reset.location)
    refused = await post(pages.app, "save-setting", **fields, value="bad")
    assert refused.status == 400
    assert f"retention.ms={BAD}: expected a number" in html.unescape(refused.text)
    assert "<script>alert" not in refused.text
    assert 'name="value" value="bad"' in refused.text
    sent = pages.cluster.requests(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    assert [(body.validate_only, body.resources[0].configs[0].value) for body in sent] == [
        (True, "60000"),
        (False, "60000"),
        (True, None),
        (False, None),
        (True, "bad"),
    ]


async def test_a_refused_setting_of_all_brokers_keeps_its_form(pages: Pages) -> None:
    refused = await post(pages.app, "save-setting", name="new.setting", value="bad")
    assert refused.status == 400
    assert refused.text.count("Nothing was changed: ") == 1
    form = refused.text.partition("Set one for all brokers")[2].partition("</form>")[0]
    assert 'value="new.setting"' in form
    assert 'value="bad"' in form


async def test_a_form_that_the_user_may_not_send_comes_back_as_forbidden(pages: Pages) -> None:
    refusal = AlterConfigsResourceResponse(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        resource_type=ConfigResourceType.TOPIC,
        resource_name="t",
    )
    answer = IncrementalAlterConfigsResponse(responses=[refusal])
    pages.cluster.intercept[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda broker, body: answer
    refused = await post(pages.app, "save-setting", topic="t", name="retention.ms", value="5")
    assert refused.status == 403
    assert 'name="value" value="5"' in refused.text


async def test_topics_that_the_list_leaves_out_are_counted(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "The list suggests" not in (await get(pages.app, "settings")).text
    monkeypatch.setattr(settings, "MAX_TOPICS_LISTED", 0)
    assert "one of the 1 others" in (await get(pages.app, "settings")).text


async def test_a_typed_password_is_not_shown_again(pages: Pages) -> None:
    await get(pages.app, "setting?broker=1&name=ssl.key.password")
    fields = {"broker": "1", "name": "ssl.key.password"}
    refused = await post(pages.app, "save-setting", **fields, value="bad")
    assert 'name="value" value="" type="password"' in refused.text
    saved = await post(pages.app, "save-setting", **fields, value="hunter2")
    assert "hunter2" not in saved.location


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("settings?topic=nosuch", "there is no topic 'nosuch'"),
        ("settings?broker=9", "there is no live broker 9; live are 1"),
        ("settings?broker=x", "broker 'x': expected a whole number"),
        ("setting?topic=t&name=retention.mss", "did you mean retention.ms?"),
    ],
)
async def test_what_does_not_exist_is_a_sentence_in_the_page(path: str, said: str, pages: Pages) -> None:
    page = await get(pages.app, path)
    assert page.status == 200
    assert said in html.unescape(page.text)


def test_settings_are_chosen_by_words_in_names_and_descriptions() -> None:
    def entry(name: str, text: str) -> ConfigEntry:
        return ConfigEntry(name, "", ConfigSource.DEFAULT_CONFIG, ConfigType.STRING, False, False, (), text)

    both = [entry("b.ms", "Time"), entry("a.bytes", "Size")]
    assert [each.name for each in chosen(both, "", only_changed=False)] == ["a.bytes", "b.ms"]
    assert [each.name for each in chosen(both, "time", only_changed=False)] == ["b.ms"]
    assert chosen(both, "", only_changed=True) == []
