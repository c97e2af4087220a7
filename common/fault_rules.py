"""One rule of the faults that a broker injects into the requests of its clients, for tests of programs.

A rule has conditions (API, client id, topic), a counter (the n-th request, so many times, a probability) and
one action: an error code, no answer, a closed connection, half of an answer, or a delay, which may precede
one of the others. A rule that exists is valid: `FaultRule` checks its values, in the client that makes it and
again in the broker that receives it. Pure, for any thread.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn

from barnabas.common.suggestions import did_you_mean, suggestion
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration
from barnabas.protocol.messages import fault_rules as wire
from barnabas.protocol.schema import ApiKey

FAULTS_CLIENT_ID: Final = "barnabas-faults"
"""The client whose requests no rule hits, so that a rule on every API cannot lock its owner out."""
MAX_RULES: Final = 256
"""Of one broker: a request is compared with each."""
MAX_DELAY_MS: Final = 600_000
_MAX_NAME: Final = 128
_MAX_PATTERN: Final = 256
_MAX_COUNT: Final = (1 << 31) - 1
_MAX_SEED: Final = (1 << 63) - 1
_FROM: Final = {"clients": "", "brokers": "from brokers", "all": "from clients and brokers"}
REQUESTERS: Final = tuple(_FROM)


def _plain(name: str) -> str:
    """A name without what may be written in different ways: case, underscores and hyphens."""
    return name.replace("_", "").replace("-", "").casefold()


API_NAMES: Final = {key: "".join(map(str.capitalize, key.name.split("_"))) for key in ApiKey}
"""The names of the APIs as Kafka writes them, such as ``ListOffsets``."""
_APIS: Final = {_plain(key.name): key for key in ApiKey}
_ERRORS: Final = {_plain(code.name): code for code in ErrorCode if code is not ErrorCode.NONE}


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultRule:
    """A rule; raises InvalidConfiguration for an invalid value.

    The first rule whose conditions and counter allow it acts on a request. Counters are each broker's own.
    """

    api: str | Sequence[str] = ()
    """The names of the APIs, as ``Produce``, ``PRODUCE`` or ``list-offsets``; none: every API."""
    client_id: str | None = None
    """The client id, or a pattern with ``*`` and ``?``."""
    topic: str | None = None
    """A topic that the request names, or a pattern. A request for all topics names none."""
    error: str | None = None
    """The name of the error code to answer with, as ``NOT_LEADER_OR_FOLLOWER``."""
    delay_ms: float = 0
    """How long the request waits before the rest of the rule, alone or with one of the other actions."""
    drop: bool = False
    """Answer neither this request nor a later one of its connection, as a stalled peer."""
    disconnect: bool = False
    """Close the connection instead of an answer."""
    truncate: bool = False
    """Send half of the answer's bytes, then close the connection."""
    after: bool = False
    """Handle the request first, so that only its answer is lost. A truncated answer needs that anyway."""
    nth: int | None = None
    """Only the n-th matching request, from 1."""
    times: int | None = None
    """At most so many requests."""
    probability: float = 1.0
    seed: int = 0
    """Of the probability: with the same seed, the same of the matching requests are hit."""
    requests: str = "clients"
    """Whose requests: ``clients``, ``brokers`` (followers, coordinators, the controller) or ``all``."""
    name: str = ""
    """Unique in a cluster; made from the action if it is not given."""

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "api", tuple(API_NAMES[key] for key in self.api_keys))
        code = self.error_code
        object.__setattr__(self, "error", None if code is None else code.name)
        if not self.name:
            first = next(iter(self.api), "every-api")
            action = next((kind for kind in ("error", *_FLAGS) if getattr(self, kind)), "delay")
            object.__setattr__(self, "name", f"{first.lower()}-{action}-{secrets.token_hex(3)}")

    @property
    def api_keys(self) -> tuple[ApiKey, ...]:
        """The named APIs, each once; none for every API."""
        names = [self.api] if isinstance(self.api, str) else self.api
        return tuple(dict.fromkeys(_APIS[_plain(name)] for name in names))

    @property
    def error_code(self) -> ErrorCode | None:
        return None if self.error is None else _ERRORS[_plain(self.error)]

    @property
    def hits_answers(self) -> bool:
        """Whether the request is handled before the fault."""
        return self.after or self.truncate

    def __str__(self) -> str:
        """The action and the conditions, in words."""
        return f"{self.action} on {self.conditions}"

    @property
    def action(self) -> str:
        """The action in words, as ``delay 200 ms, disconnect after handling``."""
        parts = [f"delay {self.delay_ms:g} ms"] if self.delay_ms else []
        parts += [self.error] if self.error else [flag for flag in _FLAGS if getattr(self, flag)]
        return ", ".join(parts) + (" after handling" if self.after else "")

    @property
    def conditions(self) -> str:
        """The conditions in words, as ``request 3 of Produce for topic orders``."""
        which = "every request" if self.nth is None else f"request {self.nth}"
        words = [f"{which} of {', '.join(self.api)}" if self.api else which]
        words += [] if self.client_id is None else [f"from client {self.client_id}"]
        words += [] if self.requests == "clients" else [_FROM[self.requests]]
        words += [] if self.topic is None else [f"for topic {self.topic}"]
        parts = [" ".join(words)]
        parts += [] if self.times is None else [f"at most {self.times}"]
        parts += [] if self.probability == 1 else [f"with probability {self.probability:g}"]
        return ", ".join(parts)

    # ---- checks

    def _check(self) -> None:
        self._check_names()
        for name in ("client_id", "topic"):
            value = getattr(self, name)
            is_text = isinstance(value, str) and value.isprintable()
            if value is not None and not (is_text and 0 < len(value) <= _MAX_PATTERN):
                self._refuse(
                    name, f"expected a name or a pattern of 1 to {_MAX_PATTERN} printable characters"
                )
        for flag in (*_FLAGS, "after"):
            if type(getattr(self, flag)) is not bool:
                self._refuse(flag, "expected True or False")
        self._check_number("delay_ms", lambda value: 0 <= value <= MAX_DELAY_MS, f"0 to {MAX_DELAY_MS}")
        self._check_number("probability", lambda value: 0 < value <= 1, "a number above 0, up to 1")
        for name in ("nth", "times"):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 1 <= value <= _MAX_COUNT):
                self._refuse(name, "expected a whole number of 1 or more")
        if not (type(self.seed) is int and abs(self.seed) <= _MAX_SEED):
            self._refuse("seed", "expected a whole number of at most 63 bits")
        if self.requests not in REQUESTERS:
            self._refuse("requests", suggestion(str(self.requests), REQUESTERS).removeprefix("; "))
        self._check_action()

    def _check_names(self) -> None:
        name = self.name
        if not (isinstance(name, str) and len(name) <= _MAX_NAME and name.isprintable() and " " not in name):
            self._refuse("name", f"expected up to {_MAX_NAME} printable characters without spaces")
        apis = [self.api] if isinstance(self.api, str) else self.api
        if not isinstance(apis, list | tuple):
            self._refuse("api", "expected the name of an API, or several")
        for api in apis:
            if not isinstance(api, str) or _plain(api) not in _APIS:
                self._refuse("api", f"no API has the name {api!r}{_similar(api, API_NAMES.values())}")
        if self.error is not None and not (isinstance(self.error, str) and _plain(self.error) in _ERRORS):
            names = [code.name for code in _ERRORS.values()]
            self._refuse("error", f"no error code has this name{_similar(self.error, names)}")

    def _check_number(self, name: str, accepts: Callable[[float], bool], expected: str) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (is_number and accepts(value)):
            self._refuse(name, f"expected {expected}")

    def _check_action(self) -> None:
        actions = [kind for kind in ("error", *_FLAGS) if getattr(self, kind)]
        if len(actions) > 1:
            raise InvalidConfiguration(f"the fault rule has {' and '.join(actions)}; expected one of them")
        if not actions and not self.delay_ms:
            raise InvalidConfiguration(
                "the fault rule has no action; expected one of error, delay_ms, drop, disconnect and truncate"
            )

    def _refuse(self, name: str, problem: str) -> NoReturn:
        value = repr(getattr(self, name))
        shown = value if len(value) <= _MAX_NAME else f"{value[:_MAX_NAME]}…"
        raise InvalidConfiguration(f"fault rule: {name}={shown}: {problem}")


_FLAGS: Final = ("drop", "disconnect", "truncate")
_FIELDS: Final = tuple(field.name for field in fields(FaultRule))


def _similar(name: object, names: Iterable[str]) -> str:
    return did_you_mean(name[:_MAX_NAME], names, at_most=3) if isinstance(name, str) else ""


def fault_rule(values: Mapping[str, Any]) -> FaultRule:
    """The rule with these values. Raises InvalidConfiguration also for a field that there is not."""
    for name in values:
        if name not in _FIELDS:
            raise InvalidConfiguration(f"a fault rule has no {name!r}{suggestion(name, _FIELDS)}")
    return FaultRule(**values)


def to_wire(rule: FaultRule) -> wire.FaultRuleEntry:
    return wire.FaultRuleEntry(**{name: _sent(getattr(rule, name)) for name in _FIELDS})


def from_wire(entry: wire.FaultRuleEntry) -> FaultRule:
    """Raises InvalidConfiguration: another peer may have sent it without a check."""
    return FaultRule(**{name: getattr(entry, name) for name in _FIELDS})


def _sent(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
