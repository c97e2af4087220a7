"""Settings of topics, of brokers and of all brokers: a table, and a form for each that may be changed.

The broker validates a change before it is made, and its sentence is shown beside the value that was typed.
Sensitive values never leave the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.client.admin.admin import Admin, ConfigEntry, ConfigResource
from barnabas.common.settings import INT_MAX
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.messages.configs import ConfigResourceType, ConfigType
from barnabas.ui.asking import TIMEOUT_MS, answer_change, tried
from barnabas.ui.context import context_of, form_of, render
from barnabas.ui.message_query import parse_number

MAX_TOPICS_LISTED: Final = 1_000


def resource_of(fields: Mapping[str, str]) -> ConfigResource:
    """The resource of a query or a form; without ``topic`` and ``broker`` all brokers."""
    if topic := fields.get("topic", ""):
        return ConfigResource.topic(topic)
    broker = fields.get("broker", "")
    if not broker:
        return ConfigResource.all_brokers()
    return ConfigResource.broker(parse_number("broker", broker, 0, INT_MAX))


def fields_of(resource: ConfigResource) -> dict[str, str]:
    """The opposite of `resource_of`."""
    if resource.kind is ConfigResourceType.TOPIC:
        return {"topic": resource.name}
    return {"broker": resource.name} if resource.name else {}


def chosen(entries: Iterable[ConfigEntry], words: str, *, only_changed: bool) -> list[ConfigEntry]:
    """By name; `words` are looked for in names and descriptions."""
    return [
        entry
        for entry in sorted(entries, key=lambda entry: entry.name)
        if words.lower() in f"{entry.name} {entry.documentation or ''}".lower()
        and not (only_changed and entry.is_default)
    ]


async def _described(admin: Admin, resource: ConfigResource) -> dict[str, ConfigEntry]:
    described = await admin.describe_configs(resource, include_documentation=True, timeout_ms=TIMEOUT_MS)
    return described[resource]


async def _settings_now(
    admin: Admin, fields: Mapping[str, str]
) -> tuple[ConfigResource, dict[str, ConfigEntry]]:
    resource = resource_of(fields)
    if resource.kind is ConfigResourceType.TOPIC:
        # Raises at once for a topic that does not exist, with similar names.
        await admin.describe_topics(resource.name)
    elif resource.name:
        nodes = [node.node_id for node in (await admin.describe_cluster()).nodes]
        if int(resource.name) not in nodes:
            live = ", ".join(map(str, nodes)) or "none"
            raise InvalidConfiguration(f"there is no live broker {resource.name}; live are {live}")
    return resource, await _described(admin, resource)


async def _names(admin: Admin) -> tuple[list[str], list[int]]:
    topics = sorted(await admin.list_topics())
    return topics, [node.node_id for node in (await admin.describe_cluster()).nodes]


async def _settings(request: Request) -> Response:
    return await _settings_page(request, request.query_params)


async def _settings_page(
    request: Request, query: Mapping[str, str], refusal: str = "", status: int = 200
) -> Response:
    """`refusal`: of the name and the value in `query`, which are for all brokers."""
    admin = context_of(request).admin
    names, names_problem = await tried(_names(admin))
    topics, brokers = names or ([], [])
    now, problem = await tried(_settings_now(admin, query))
    resource, entries = now or (None, {})
    fields = {} if resource is None else fields_of(resource)
    words, only_changed = query.get("filter", ""), bool(query.get("changed"))
    return render(
        request,
        "settings.html",
        status=status,
        refusal=refusal,
        topics=topics[:MAX_TOPICS_LISTED],
        unlisted=len(topics[MAX_TOPICS_LISTED:]),
        brokers=brokers,
        query=query,
        resource=resource,
        total=len(entries),
        entries=chosen(entries.values(), words, only_changed=only_changed),
        words=words,
        only_changed=only_changed,
        problem=problem or names_problem,
        link=lambda entry: urlencode({**fields, "name": entry.name}),
    )


async def _entry(admin: Admin, fields: Mapping[str, str]) -> tuple[ConfigResource, ConfigEntry]:
    resource, entries = await _settings_now(admin, fields)
    name = fields.get("name", "")
    if name not in entries:
        raise InvalidConfiguration(f"{resource}: no setting {name!r}{did_you_mean(name, entries)}")
    return resource, entries[name]


async def _setting(request: Request) -> Response:
    """One setting with its form."""
    return await _setting_page(request, request.query_params)


async def _setting_page(
    request: Request,
    fields: Mapping[str, str],
    typed: str | None = None,
    refusal: str = "",
    status: int = 200,
) -> Response:
    now, problem = await tried(_entry(context_of(request).admin, fields))
    if now is None and refusal and not (fields.get("topic") or fields.get("broker")):
        # The page of all brokers has a form for a setting that they do not share yet.
        return await _settings_page(request, fields, refusal, status)
    resource, entry = now or (None, None)
    if entry is None or entry.is_sensitive:
        typed = None
    value = typed if typed is not None or entry is None else entry.value
    own = {} if resource is None else fields_of(resource)
    return render(
        request,
        "setting.html",
        status=status,
        resource=resource,
        fields=own,
        back=f"settings?{urlencode(own)}",
        entry=entry,
        value=value or "",
        is_boolean=entry is not None and entry.type is ConfigType.BOOLEAN,
        refusal=refusal,
        problem=problem,
    )


async def _change(admin: Admin, fields: Mapping[str, str]) -> str:
    resource, name = resource_of(fields), fields.get("name", "").strip()
    if not name:
        raise InvalidConfiguration("the name of a setting is missing")
    value = None if fields.get("action") == "reset" else fields.get("value", "")
    changes = {resource: {name: value}}
    await admin.alter_configs(changes, validate_only=True, timeout_ms=TIMEOUT_MS)
    await admin.alter_configs(changes, timeout_ms=TIMEOUT_MS)
    # Without the value, which may be a password: the sentence goes through a URL.
    return f"{resource}: {name} " + ("has its default again." if value is None else "is changed.")


async def _save(request: Request) -> Response:
    form = await form_of(request)
    place = urlencode({name: form[name] for name in ("topic", "broker") if form.get(name)})
    page = partial(_setting_page, request, form, form.get("value", ""))
    return await answer_change(request, _change(context_of(request).admin, form), f"settings?{place}", page)


ROUTES: Final = [
    Route("/settings", _settings),
    Route("/setting", _setting),
    Route("/save-setting", _save, methods=["POST"]),
]
