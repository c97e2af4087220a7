"""Consumer groups: members, assignment, lag, and the reset of offsets with its dry run beside the form.

The part ``groups`` of the stream and the pages come from the same survey. The button of a reset carries the
offsets that the dry run showed; they are applied as shown, or not at all if the group or the log has changed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.client.admin.admin import Admin, GroupDescription, SurveyedGroup
from barnabas.client.admin.group_lag import PartitionLag, lag_text, lags_of, total_lag
from barnabas.client.admin.offset_reset import (
    PlannedOffset,
    ShiftBy,
    Start,
    ToOffset,
    ToOffsets,
    ago,
    chosen_partitions,
    members_problem,
    partition_counts,
    plan_reset,
    time_ms,
)
from barnabas.client.offsets import EARLIEST, LATEST
from barnabas.common.settings import LONG_MAX
from barnabas.common.texts import count, first_of
from barnabas.protocol.errors import BarnabasError, InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.ui.asking import TIMEOUT_MS, Conflict, State, answer_change, paced, tried
from barnabas.ui.context import Context, context_of, form_of, is_refresh, render
from barnabas.ui.message_query import parse_number
from barnabas.ui.sampler import Sampler

MAX_GROUPS: Final = 500
MAX_ROWS: Final = 1_000
_MAX_LINES: Final = 32
STARTS: Final = {
    "earliest": ("the first offset", ""),
    "latest": ("the end", ""),
    "offset": ("an offset", "42"),
    "datetime": ("a time (UTC)", "2026-01-31T12:00:00"),
    "duration": ("a time ago", "PT1H30M"),
    "shift": ("shift by records", "-100"),
}
"""The kinds of start by their value in the form: the text of the choice, and an example of its value."""

# -- the part of the stream --------------------------------------------------------------------------------


async def groups_now(
    admin: Admin, led: Collection[TopicPartition] | None = None, timeout_ms: int = TIMEOUT_MS
) -> State:
    """``{"groups": {id: entry}, "groups_note": sentence or None}``; at most `MAX_GROUPS` by name.

    `led`: the partitions that have a leader, if the caller knows them.
    """
    listed = await admin.list_groups(timeout_ms=timeout_ms)
    surveyed = await admin.survey_groups(listed[:MAX_GROUPS], timeout_ms=timeout_ms)
    known = {name: group for name, group in surveyed.items() if isinstance(group, SurveyedGroup)}
    descriptions = {name: group.description for name, group in known.items()}
    committed = {name: group.committed for name, group in known.items()}
    lags = await lags_of(admin, descriptions, committed, led, timeout_ms)
    return {
        "groups": {name: group_entry(descriptions[name], lags[name]) for name in sorted(known)},
        "groups_note": survey_note(len(listed), surveyed),
    }


def survey_note(listed: int, surveyed: Mapping[str, SurveyedGroup | BarnabasError]) -> str | None:
    """A sentence on the groups that are not shown, with the reason; None if all are."""
    notes = []
    if listed > MAX_GROUPS:
        notes.append(f"the first {MAX_GROUPS} of {listed:,} groups, by name")
    errors = [group for group in surveyed.values() if isinstance(group, BarnabasError)]
    if errors:
        notes.append(f"{count(len(errors), 'group')} could not be described, the first: {errors[0]}")
    return "; ".join(notes) or None


def group_entry(group: GroupDescription, lags: Sequence[PartitionLag]) -> State:
    return {
        "id": group.group_id,
        "state": group.state,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "members": [
            {
                "id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "assignment": [str(tp) for tp in member.assignment],
            }
            for member in group.members
        ],
        "lag": total_lag(lags),
        "lag_text": lag_text(lags),
        "partitions": {
            str(lag.partition): {
                "committed": lag.committed_offset,
                "end": lag.log_end_offset,
                "lag": lag.lag,
                "client_id": None if lag.member is None else lag.member.client_id,
            }
            for lag in lags[:MAX_ROWS]
        },
        "partition_count": len(lags),
    }


def led_in(state: State) -> set[TopicPartition]:
    """The partitions that have a leader, by the state of the page."""
    return {
        TopicPartition(partition["topic"], partition["partition"])
        for partition in state.get("partitions", {}).values()
        if partition["leader"] is not None
    }


def lag_figures(groups: Mapping[str, State]) -> dict[str, tuple[str, float]]:
    """The newest points of the lines of lag; a page draws the line of any other group by itself."""
    known = [(name, group["lag"]) for name, group in groups.items() if group["lag"] is not None]
    return {f"lag:{name}": ("records", lag) for name, lag in known[:_MAX_LINES]}


def make_part(context: Context) -> Callable[[State], Awaitable[State]]:
    """The part ``groups`` of the stream."""

    async def look(state: State) -> State:
        now = await groups_now(context.admin, led_in(state) if "partitions" in state else None)
        return now | {"figures": lag_figures(now["groups"])}

    return paced(look, "groups_note")


# -- pages -------------------------------------------------------------------------------------------------


async def _groups(request: Request) -> Response:
    words = request.query_params.get("filter", "")
    now, problem = request.app.state.sampler.recent(), ""
    if "groups" not in now or not is_refresh(request):
        now, problem = await tried(groups_now(context_of(request).admin))
    groups = [] if now is None else [group for name, group in now["groups"].items() if words in name]
    note = problem or now["groups_note"]
    return render(request, "groups.html", groups=groups, note=note, words=words)


async def _group_entry(admin: Admin, group_id: str) -> State:
    groups = await admin.describe_groups(group_id, timeout_ms=TIMEOUT_MS)
    committed = {group_id: await admin.group_offsets(group_id, timeout_ms=TIMEOUT_MS)}
    return group_entry(groups[group_id], (await lags_of(admin, groups, committed))[group_id])


async def _group(request: Request) -> Response:
    """A group with the form of the reset; with a start in the query, also with its dry run."""
    admin, query = context_of(request).admin, request.query_params
    group_id, kind = query.get("id", ""), query.get("to", "")
    sampler: Sampler = request.app.state.sampler
    group, problem = sampler.recent().get("groups", {}).get(group_id), ""
    if group is None or not is_refresh(request):
        group, problem = await tried(_group_entry(admin, group_id))
    plan: list[PlannedOffset] | None = None
    refusal = plan_problem = ""
    if kind:
        plan, plan_problem = await tried(
            _plan(admin, group_id, kind, query.get("value", ""), query.get("topics", ""))
        )
        refusal, members = await tried(members_problem(admin, group_id))
        refusal = refusal or members or ""
    return render(
        request,
        "group.html",
        group_id=group_id,
        group=group,
        problem=problem,
        events=sampler.events(),
        starts=STARTS,
        kind=kind,
        value=query.get("value", ""),
        topics=query.get("topics", ""),
        plan=plan,
        plan_problem=plan_problem,
        plan_text=plan_text(plan or []),
        effect=effect_of,
        refusal=refusal,
    )


async def _plan(admin: Admin, group_id: str, kind: str, value: str, topics: str) -> list[PlannedOffset]:
    start = start_of(kind, value)
    counts = await partition_counts(admin)
    partitions = chosen_partitions(topics.split(), counts) if topics.strip() else None
    plan = await plan_reset(admin, group_id, start, partitions, counts)
    if not plan:
        raise InvalidConfiguration(
            f"group {group_id!r} has committed no offsets there; name topics to give it some, by another "
            "start than a shift"
        )
    return plan


def start_of(kind: str, value: str) -> Start:
    """Raises ValueError naming the value."""
    value = value.strip()
    match kind:
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case "datetime":
            return time_ms(value)
        case "duration":
            return ago(value)
        case "offset" | "shift":
            least = 0 if kind == "offset" else -LONG_MAX
            number = parse_number(kind, value, least, LONG_MAX)
            return ToOffset(number) if kind == "offset" else ShiftBy(number)
    raise InvalidConfiguration(f"start {kind!r}: expected one of {', '.join(STARTS)}")


def effect_of(entry: PlannedOffset) -> str:
    """The records of one partition that the reset skips or redelivers."""
    if entry.before is None:
        return f"{count(entry.end - entry.after, 'record')} to read"
    moved = entry.after - entry.before
    if not moved:
        return "unchanged"
    if entry.before > entry.end:
        return f"from an offset beyond the end; {count(entry.end - entry.after, 'record')} to read"
    kept = max(entry.before, entry.first)
    if moved > 0:
        lost = kept - entry.before
        gone = f", {count(lost, 'record')} of them deleted already" if lost else ""
        return f"{count(moved, 'record')} skipped{gone}"
    return f"{count(-moved, 'record')} redelivered"


# -- the reset ---------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """A line of the dry run."""

    partition: TopicPartition
    before: int | None
    after: int


def plan_text(plan: Sequence[PlannedOffset]) -> str:
    """The plan as a field of the form."""
    return json.dumps([[*entry.partition, entry.before, entry.after] for entry in plan])


def shown_plan(text: str) -> list[Shown]:
    """The plan that a form carries. Raises InvalidConfiguration."""
    try:
        shown = []
        for topic, partition, before, after in json.loads(text):
            offsets = [after] if before is None else [before, after]
            if type(topic) is not str or any(type(number) is not int for number in (partition, *offsets)):
                raise ValueError(topic)
            # JSON can have half of a surrogate pair, which no answer can carry.
            topic.encode()
            shown.append(Shown(TopicPartition(topic, partition), before, after))
    except (TypeError, ValueError, RecursionError):
        raise InvalidConfiguration("the plan of the form is not readable: open the dry run again") from None
    if not shown:
        raise InvalidConfiguration("the plan of the form is empty: open the dry run again")
    return shown


def changes_since(shown: Sequence[Shown], now: Sequence[PlannedOffset]) -> list[str]:
    """Why the plan that was shown is no longer true: the plan for the same offsets now differs."""
    by_partition = {entry.partition: entry for entry in now}
    changes = []
    for entry in shown:
        present = by_partition.get(entry.partition)
        if present is None:
            changes.append(f"there is no partition {entry.partition} any more")
        elif present.before != entry.before:
            changes.append(
                f"the committed offset of {entry.partition} was {entry.before} and is {present.before}"
            )
        elif present.after != entry.after:
            changes.append(
                f"{entry.partition} has only offsets {present.first} to {present.end} now, not {entry.after}"
            )
    return changes


async def _apply(admin: Admin, group_id: str, text: str) -> str:
    shown = shown_plan(text)
    if (problem := await members_problem(admin, group_id)) is not None:
        raise Conflict(problem)
    offsets = {entry.partition: entry.after for entry in shown}
    now = await plan_reset(admin, group_id, ToOffsets(offsets), None, await partition_counts(admin))
    if changes := changes_since(shown, now):
        raise Conflict(f"since the dry run {first_of(changes, 3, '; ')}")
    await admin.alter_group_offsets(group_id, offsets, timeout_ms=TIMEOUT_MS)
    return f"The offsets of {count(len(shown), 'partition')} are set as the dry run showed."


async def _reset(request: Request) -> Response:
    form = await form_of(request)
    group_id = form.get("id", "")
    applied = _apply(context_of(request).admin, group_id, form.get("plan", ""))
    return await answer_change(request, applied, f"group?{urlencode({'id': group_id})}")


ROUTES: Final = [
    Route("/groups", _groups),
    Route("/group", _group),
    Route("/reset-offsets", _reset, methods=["POST"]),
]
