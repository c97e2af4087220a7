"""A scenario: a cluster, its load, the faults by their time, and the expectations, read from a TOML file.

docs/cli.md has an example with every key, `scenarios/` the built-in ones.

A broker is its id, ``controller``, ``leader of t-0``, ``a follower of t-0`` or ``target of step 1``.
Faults of any server take ``zookeeper``, too. A link is ``<end> to <end>``, of brokers, ``zookeeper`` and
``clients``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from barnabas.common.suggestions import did_you_mean, suggestion
from barnabas.deploy.faults import FAULTS, TargetKind
from barnabas.deploy.state import ZOOKEEPER
from barnabas.protocol.errors import InvalidConfiguration

TOPIC: Final = "t"
FOLDER: Final = Path(__file__).parent / "scenarios"
"""The built-in scenarios."""
CLIENTS: Final = "clients"
ACKS: Final = ("all", "1")
"""Without an acknowledgement of its offset (acks=0) a record cannot be judged."""
_MOST_VALUE_BYTES: Final = 1 << 16
_MOST_FILE_BYTES: Final = 1 << 16
_MOST_SHOWN: Final = 40
"""Characters of a value in an error."""

_OF_LINKS: Final = (TargetKind.PAIR, TargetKind.ALL_LINKS)

Settings = dict[str, str | int | float | bool]
Count = Annotated[int, Meta(ge=1, le=100)]


class Cluster(Struct, kw_only=True, forbid_unknown_fields=True):
    brokers: Annotated[int, Meta(ge=1, le=9)] = 3
    settings: Settings = {}


class Topic(Struct, kw_only=True, forbid_unknown_fields=True):
    partitions: Count = 3
    replicas: Annotated[int, Meta(ge=1, le=9)] = 3
    settings: Settings = msgspec.field(default_factory=lambda: {"min.insync.replicas": 2})


class LoadPlan(Struct, kw_only=True, forbid_unknown_fields=True):
    records_per_s: Annotated[int, Meta(ge=100, le=20_000)] = 600
    value_bytes: Annotated[int, Meta(ge=1, le=_MOST_VALUE_BYTES)] = 100
    acks: str | int = "all"
    readers: Annotated[int, Meta(ge=0, le=8)] = 1


class Step(Struct, kw_only=True, forbid_unknown_fields=True):
    """`do`: an entry of `barnabas.deploy.faults`; `delay_ms` is of `slow` alone."""

    at: Annotated[float, Meta(ge=0, le=3600)]
    do: str
    target: str | int = ""
    delay_ms: Annotated[float, Meta(ge=0, le=60_000)] | None = None


class Expect(Struct, kw_only=True, forbid_unknown_fields=True):
    may_lose: bool = False
    gap_at_most_ms: Annotated[int, Meta(ge=1)] | None = None


class Scenario(Struct, kw_only=True, forbid_unknown_fields=True):
    title: Annotated[str, Meta(min_length=1)]
    text: str = ""
    seconds: Annotated[float, Meta(gt=0, le=3600)]
    cluster: Cluster = msgspec.field(default_factory=Cluster)
    topic: Topic = msgspec.field(default_factory=Topic)
    load: LoadPlan = msgspec.field(default_factory=LoadPlan)
    steps: list[Step] = []
    expect: Expect = msgspec.field(default_factory=Expect)

    @property
    def needs_links(self) -> bool:
        return any(FAULTS[step.do].kind in _OF_LINKS for step in self.steps)

    @property
    def cluster_settings(self) -> dict[str, str]:
        return as_text(self.cluster.settings)

    @property
    def topic_settings(self) -> dict[str, str]:
        return as_text(self.topic.settings)


class Target(NamedTuple):
    """One end. `role`: a value of `_WORDS`; `number`: of the broker, partition or step (from 0 on)."""

    role: str
    number: int = 0


_WORDS: Final[Mapping[str, str]] = {
    r"([0-9]{1,9})": "id",
    "controller": "controller",
    r"(?:the )?leader of t-([0-9]{1,9})": "leader",
    r"a follower of t-([0-9]{1,9})": "follower",
    r"(?:the )?target of step ([0-9]{1,9})": "step",
    ZOOKEEPER: ZOOKEEPER,
    CLIENTS: CLIENTS,
}
_KINDS_OF: Final = {ZOOKEEPER: (TargetKind.SERVER, TargetKind.PAIR), CLIENTS: (TargetKind.PAIR,)}
"""An end that is no broker is the target of these faults alone."""
_EXAMPLES: Final = (
    "1",
    "controller",
    "leader of t-0",
    "a follower of t-0",
    "target of step 1",
    ZOOKEEPER,
    CLIENTS,
)


def as_text(settings: Settings) -> dict[str, str]:
    """The values as a properties file has them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def builtin_scenarios() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def find_scenario(name: str) -> Path:
    """A built-in scenario by its name, or a file. Raises FileNotFoundError."""
    known = builtin_scenarios()
    if name in known:
        return known[name]
    if Path(name).is_file():
        return Path(name)
    raise FileNotFoundError(f"there is no scenario and no file {name!r}{suggestion(name, known)}")


def read_scenario(path: Path) -> Scenario:
    """Raises InvalidConfiguration, with the place and what is accepted there."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
        if len(content) > _MOST_FILE_BYTES:
            raise InvalidConfiguration(f"expected a scenario of at most {_MOST_FILE_BYTES:,} bytes")
        return parse_scenario(content.decode())
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(f"{path}: expected text in UTF-8 ({error.reason})") from None
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"{path}: {error}") from None


def parse_scenario(text: str) -> Scenario:
    try:
        given = tomllib.loads(text)
    except ValueError as error:
        # Also for a whole number of thousands of digits.
        raise InvalidConfiguration(f"this is not TOML: {error}") from None
    except RecursionError:
        raise InvalidConfiguration("this is not TOML: values are nested too deeply") from None
    for problem in _unknown_keys(given, Scenario):
        raise InvalidConfiguration(problem)
    try:
        scenario = msgspec.convert(given, Scenario)
    except msgspec.ValidationError as error:
        raise InvalidConfiguration(_in_words(str(error), given)) from None
    for problem in _contradictions(scenario):
        raise InvalidConfiguration(problem)
    return scenario


def targets_of(step: Step) -> list[Target]:
    """The ends that a step names: one server, or two of a link. Raises InvalidConfiguration."""
    words, kind = str(step.target), FAULTS[step.do].kind
    if kind is TargetKind.ALL_LINKS:
        if words:
            raise InvalidConfiguration(f"{step.do!r} takes no target, and has {_shown(words)}")
        return []
    if kind is not TargetKind.PAIR:
        return [_target(words, kind, step.do)]
    names = words.split(" to ")
    if len(names) != 2:
        raise InvalidConfiguration(
            f"target {_shown(words)}: {step.do!r} needs a link, such as 'leader of t-0 to a follower of t-0'"
        )
    return [_target(name.strip(), kind, step.do) for name in names]


def _target(name: str, kind: TargetKind, do: str) -> Target:
    for pattern, role in _WORDS.items():
        if (match := re.fullmatch(pattern, name)) is not None:
            if kind not in _KINDS_OF.get(role, (kind,)):
                raise InvalidConfiguration(f"target {name!r}: {do!r} needs a broker")
            number = int(match[1]) if match.groups() else 0
            return Target(role, number - (role == "step"))
    hint = did_you_mean(name, _EXAMPLES) or f"; expected one like {', '.join(map(repr, _EXAMPLES))}"
    raise InvalidConfiguration(f"target {_shown(name)} is unknown{hint}")


def _unknown_keys(given: Mapping[str, Any], kind: type[Struct], path: str = "") -> Iterator[str]:
    """A sentence for each key that the structures do not have."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in given.items():
        if name not in fields:
            yield f"{path}{name[:_MOST_SHOWN]} is unknown{suggestion(name[:_MOST_SHOWN], fields)}"
        elif isinstance(fields[name], type) and issubclass(fields[name], Struct) and isinstance(value, dict):
            yield from _unknown_keys(value, fields[name], f"{path}{name}.")
        elif name == "steps" and isinstance(value, list):
            for number, step in enumerate(value, 1):
                if isinstance(step, dict):
                    yield from _unknown_keys(step, Step, f"step {number}, ")


_TYPES: Final = {
    "float": "a number",
    "int": "a whole number",
    "str": "a text",
    "bool": "true or false",
    "object": "a table",
    "array": "an array",
}


def _in_words(message: str, given: Mapping[str, Any]) -> str:
    """msgspec's message with place and value first: "load.readers: '1'; expected a whole number"."""
    what, _, path = message.partition(" - at `$")
    if (missing := re.fullmatch(r"Object missing required field (`\w+`)", what)) is not None:
        words = f"missing {missing[1]}"
    else:
        # "Expected `int | null` >= 1, got `str`": the value is shown instead of its type.
        types = re.sub(r"`([^`]*)`", _types_in_words, what.partition(", got ")[0])
        path, value = _offending(path, given)
        words = f"{_shown(value)}; {types[:1].lower()}{types[1:]}"
    place = re.sub(r"steps\[(\d+)\]\.?", lambda match: f"step {int(match[1]) + 1}, ", path.strip("`."))
    return f"{place.rstrip(', ')}: {words}" if place else words


def _types_in_words(match: re.Match[str]) -> str:
    return " or ".join(_TYPES.get(name, name) for name in match[1].split(" | ") if name != "null")


def _offending(path: str, given: Mapping[str, Any]) -> tuple[str, Any]:
    """The value at msgspec's path, which has ``[...]`` for any entry of a table of settings."""
    value: Any = given
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[name or int(index)]
    if "[...]" not in path:
        return path, value
    entry = next(name for name in value if not isinstance(value[name], str | int | float))
    return path.replace("[...]", f".{entry}"), value[entry]


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _contradictions(scenario: Scenario) -> Iterator[str]:
    if scenario.topic.replicas > scenario.cluster.brokers:
        yield (
            f"topic.replicas is {scenario.topic.replicas}, and there are {scenario.cluster.brokers} brokers: "
            f"expected at most {scenario.cluster.brokers}"
        )
    if str(scenario.load.acks) not in ACKS:
        yield f"load.acks: {_shown(scenario.load.acks)}{suggestion(str(scenario.load.acks), ACKS)}"
    before = 0.0
    for number, step in enumerate(scenario.steps, 1):
        if step.do not in FAULTS:
            yield f"step {number}, do: there is no fault {_shown(step.do)}{suggestion(step.do, FAULTS)}"
            return
        if step.delay_ms is not None and step.do != "slow":
            yield f"step {number}, delay_ms: {step.delay_ms:g}; {step.do!r} takes none, only 'slow' does"
        if not before <= step.at < scenario.seconds:
            yield (
                f"step {number}, at: {step.at:g} is out of order; expected a time from {before:g} s, that of "
                f"the step before it, to below {scenario.seconds:g} s, the end"
            )
        before = step.at
        try:
            targets = targets_of(step)
        except InvalidConfiguration as error:
            yield f"step {number}: {error}"
            continue
        for target in targets:
            yield from (f"step {number}: {problem}" for problem in _beyond(scenario, number - 1, target))
        if len(set(targets)) < len(targets):
            yield f"step {number}: target {str(step.target)!r}: expected a link between two different ends"


def _beyond(scenario: Scenario, step: int, target: Target) -> Iterator[str]:
    """Sentences for a target that the scenario does not have."""
    role, number = target
    if role == "id" and not 1 <= number <= scenario.cluster.brokers:
        yield f"there is no broker {number}; expected 1 to {scenario.cluster.brokers}"
    elif role in ("leader", "follower") and number >= scenario.topic.partitions:
        yield f"there is no partition t-{number}; expected t-0 to t-{scenario.topic.partitions - 1}"
    elif role == "follower" and scenario.topic.replicas < 2:
        yield "a partition with one replica has no follower"
    elif role == "step" and not (0 <= number < step and len(targets_of(scenario.steps[number])) == 1):
        yield f"step {number + 1} is not an earlier step with a broker as its target"
