"""The settings kit of brokers, clients, the command and the Spark source: each setting is declared once.

A setting is a dataclass field made by `setting(...)`: a kind that reads and checks values, a default, a
sentence. The type checker sees a plain attribute; messages, DescribeConfigs and docs/settings.md are made
from the same declaration. The name is the attribute's, with dots or underscores as its users write it; a unit
is its last word. Pure, for any thread.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from barnabas.common.security.secret import HIDDEN, Secret
from barnabas.protocol.errors import InvalidConfiguration

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_SETTING: Final = "setting"


class Refused(ValueError):
    """An invalid value, with a closer description of the accepted ones than the kind's."""


class Kind(ABC):
    """Reads and checks the values of settings."""

    expected: str
    """A valid value, to complete "expected …"."""
    config_type = "STRING"
    """The type's name in Kafka's DescribeConfigs."""
    is_sensitive = False
    """Whether values are secrets, which no answer, log or error may show."""

    def parse(self, text: str) -> Any:
        """The value of a text, as in a properties file. Raises ValueError."""
        return self.check(text.strip())

    @abstractmethod
    def check(self, value: Any) -> Any:
        """The value that a Python program gave, in its canonical form. Raises ValueError."""


class Integer(Kind):
    """A whole number within an inclusive range; `because` is the reason if only one is accepted."""

    def __init__(
        self, at_least: int = 0, at_most: int = INT_MAX, *, because: str = "", but: int | None = None
    ) -> None:
        self.at_least = at_least
        self.at_most = at_most
        self.because = because
        self.but = but
        """A refused number within the range."""
        self.config_type = "SHORT" if at_most == 2**15 - 1 else "INT" if at_most <= INT_MAX else "LONG"
        if because:
            self.expected = f"{at_least}, as {because}"
        elif at_most in (INT_MAX, LONG_MAX):
            self.expected = f"a whole number, at least {at_least} ({32 if at_most == INT_MAX else 64} bit)"
        else:
            exception = "" if but is None else f", but not {but}"
            self.expected = f"a whole number from {at_least} to {at_most}{exception}"

    def parse(self, text: str) -> int:
        digits = text.strip()
        # int() alone would also take "1_000" and the digits of other scripts.
        if not (digits.isascii() and digits.removeprefix("-").isdecimal()):
            raise ValueError(text)
        return self.check(int(digits))

    def check(self, value: Any) -> int:
        if type(value) is not int or not self.at_least <= value <= self.at_most or value == self.but:
            raise ValueError(value)
        return value


class Double(Kind):
    """A finite number within an inclusive range."""

    config_type = "DOUBLE"

    def __init__(self, at_least: float = 0, at_most: float = sys.float_info.max) -> None:
        self.at_least = at_least
        self.at_most = at_most
        is_open = at_most == sys.float_info.max
        self.expected = (
            f"a number, at least {at_least}" if is_open else f"a number from {at_least} to {at_most}"
        )

    def parse(self, text: str) -> float:
        # float() alone would also take "1_0" and the digits of other scripts.
        if not text.isascii() or "_" in text:
            raise ValueError(text)
        return self.check(float(text))

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not self.at_least <= value <= self.at_most:
            raise ValueError(value)
        return float(value)


class Boolean(Kind):
    """True or false, as text in any case."""

    expected = "true or false"
    config_type = "BOOLEAN"

    def parse(self, text: str) -> bool:
        return self.check({"true": True, "false": False}.get(text.strip().lower()))

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(value)
        return value


class AlwaysFalse(Boolean):
    """The switch of a missing feature, which can only be off."""

    def __init__(self, because: str) -> None:
        self.expected = f"false, as {because}"

    def check(self, value: Any) -> bool:
        if value is not False:
            raise ValueError(value)
        return False


class Text(Kind):
    """A text that is not blank, and, if there is a pattern, matches it as a whole."""

    def __init__(self, expected: str = "a text that is not empty", pattern: str = "") -> None:
        self.expected = expected
        self._pattern = re.compile(pattern) if pattern else None

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(value)
        if self._pattern is not None and not self._pattern.fullmatch(value):
            raise ValueError(value)
        return value


class Password(Kind):
    """A secret; it may be empty."""

    expected = "a secret text"
    config_type = "PASSWORD"
    is_sensitive = True

    def check(self, value: Any) -> Secret:
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str):
            raise ValueError
        try:
            value.encode()
        except UnicodeEncodeError:
            # Bytes of the environment that are not UTF-8 become such text. The error has the text.
            raise Refused("Unicode text") from None
        return Secret(value)


class Nothing(Kind):
    """The value of a missing feature, which can only be absent; an empty text means that too."""

    def __init__(self, because: str, *, config_type: str = "STRING") -> None:
        self.expected = f"no value, as {because}"
        self.config_type = config_type
        self.is_sensitive = config_type == "PASSWORD"

    def check(self, value: Any) -> None:
        if value not in (None, ""):
            raise ValueError


class Choice(Kind):
    """One of a few words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.expected = "one of " + ", ".join(choices)

    def check(self, value: Any) -> str:
        if value not in self.choices:
            raise ValueError(value)
        return str(value)


class JavaClass(Choice):
    """One of the classes of Apache Kafka that a part of this program stands for."""

    config_type = "CLASS"

    def __init__(self, *choices: str) -> None:
        super().__init__(*choices)
        self.expected = f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}, as no class is loaded"


class TextList(Kind):
    """At least one text, all distinct; separated by commas in a text. `choices`, if given, are the accepted
    texts; `may_be_empty` accepts no text at all.
    """

    def __init__(
        self,
        expected: str = "a comma separated list without empty or repeated entries",
        choices: tuple[str, ...] = (),
        *,
        is_list: bool = False,
        may_be_empty: bool = False,
    ) -> None:
        self.choices = choices
        # In Kafka log.dirs is a text, to which nothing can be appended.
        self.config_type = "LIST" if choices or is_list else "STRING"
        self._may_be_empty = may_be_empty
        self.expected = f"a comma separated list of {', '.join(choices)}" if choices else expected

    def parse(self, text: str) -> tuple[str, ...]:
        return self.check([part.strip() for part in text.split(",")] if text.strip() else [])

    def check(self, value: Any) -> tuple[str, ...]:
        words = (value,) if isinstance(value, str) else tuple(value)
        if not words and self._may_be_empty:
            return ()
        if not words or not all(words) or len(set(words)) != len(words):
            raise ValueError(value)
        if self.choices and not set(words) <= set(self.choices):
            raise ValueError(value)
        return words


class Optional(Kind):
    """A value of another kind, or None."""

    def __init__(self, kind: Kind) -> None:
        self.expected = f"{kind.expected}, or None"
        self.is_sensitive = kind.is_sensitive
        self._kind = kind

    def parse(self, text: str) -> Any:
        return self._kind.parse(text)

    def check(self, value: Any) -> Any:
        return None if value is None else self._kind.check(value)


class NoDefault(Enum):
    """The reason that a setting has no default of its own."""

    REQUIRED = "required"
    DERIVED = "derived from other settings"


REQUIRED: Final = NoDefault.REQUIRED
DERIVED: Final = NoDefault.DERIVED


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting.

    `topic_name` is the name under which a topic may override it, if it may. `coarser` are names in coarser
    units, from fine to coarse, each with the worth of one unit (``log.retention.hours`` → 3,600,000 ms); they
    count only if no finer one is given. `is_dynamic`: a change takes effect while the broker runs.
    """

    kind: Kind
    default: Any
    documentation: str
    name: str = ""
    topic_name: str | None = None
    coarser: tuple[tuple[str, int], ...] = ()
    is_dynamic: bool = False

    @property
    def attribute(self) -> str:
        return (self.topic_name or self.name).replace(".", "_")


def setting(kind: Kind, default: Any, documentation: str, **others: Any) -> Any:
    """A dataclass field for a `Setting` of these fields.

    Typed Any, so that the attribute keeps its own annotation.
    """
    metadata = {_SETTING: Setting(kind, default, documentation, **others)}
    if isinstance(default, NoDefault):
        return field(metadata=metadata)
    if isinstance(default, Mapping):
        # A dataclass refuses a mutable default; nobody changes this one.
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(owner: type, name_of: Callable[[str], str] = str) -> dict[str, Setting]:
    """Attribute → setting, in the order of declaration; `name_of` makes the name from the attribute."""
    declared = {
        item.name: item.metadata[_SETTING] for item in dataclasses.fields(owner) if _SETTING in item.metadata
    }
    return {
        attribute: item if item.name else dataclasses.replace(item, name=name_of(attribute))
        for attribute, item in declared.items()
    }


def problem(name: str, value: object, kind: Kind, read: Callable[[Any], Any]) -> tuple[Any, str | None]:
    """(the value that `read` returns, None), or (None, the sentence that refuses the value)."""
    try:
        return read(value), None
    except Refused as refusal:
        expected = str(refusal)
    except (ValueError, TypeError):
        expected = kind.expected
    return None, f"{name}={HIDDEN if kind.is_sensitive else repr(value)}: expected {expected}"


def parsed(name: str, text: str, kind: Kind) -> Any:
    """The value of a text. Raises InvalidConfiguration."""
    return _or_raise(problem(name, text, kind, kind.parse))


def checked(name: str, value: object, kind: Kind) -> Any:
    """The value that a program gave. Raises InvalidConfiguration."""
    return _or_raise(problem(name, value, kind, kind.check))


def _or_raise(outcome: tuple[Any, str | None]) -> Any:
    value, refusal = outcome
    if refusal is not None:
        raise InvalidConfiguration(refusal)
    return value


def parse_key_values(texts: Any, problems: list[str], option: str = "--set") -> dict[str, str]:
    """The ``key=value`` texts of an option; the last value of a repeated key counts."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            problems.append(f"{option} {text!r}: expected key=value")
        else:
            settings[name.strip()] = value.strip()
    return settings


def setting_text(value: Any) -> str:
    """A value as the text that gives it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{item}" for name, item in value.items())
    # Not a named tuple: a listener formats itself.
    if type(value) is tuple:
        return ",".join(str(part) for part in value)
    return str(value)
