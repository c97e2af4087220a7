"""The row of the settings table: a name, a kind that parses and checks a value, a default, a sentence.

`setting(...)` makes a dataclass field that carries its row as metadata, so each setting is declared once and
the type checker still sees a plain attribute. Parsing is pure: text in, value out, ValueError saying what
was expected. No thread of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")
_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?")
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

SettingValue = int | float | bool | str | tuple[str, ...]
"""The type of a parsed topic-level setting."""


class Kind(Protocol):
    """How the text of a setting becomes its value."""

    @property
    def expected(self) -> str:
        """What a valid value looks like, to complete "expected …"."""

    def parse(self, text: str) -> Any:
        """The value; raises ValueError when the text is not `expected`."""


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number within an inclusive range; `because` is the reason if only one is accepted."""

    at_least: int = 0
    at_most: int = INT_MAX
    because: str = ""
    but: int | None = None
    """A number within the range that is not accepted."""

    @property
    def expected(self) -> str:
        if self.because:
            return f"{self.at_least}, as {self.because}"
        if self.at_most in (INT_MAX, LONG_MAX):
            bits = 32 if self.at_most == INT_MAX else 64
            return f"a whole number, at least {self.at_least} ({bits} bit)"
        return f"a whole number from {self.at_least} to {self.at_most}" + (
            "" if self.but is None else f", but not {self.but}"
        )

    def parse(self, text: str) -> int:
        digits = text.strip()
        # int() alone would also take "1_000" and the digits of other scripts.
        if not (digits.isascii() and digits.removeprefix("-").isdecimal()):
            raise ValueError(text)
        value = int(digits)
        if not self.at_least <= value <= self.at_most or value == self.but:
            raise ValueError(text)
        return value


@dataclass(frozen=True, slots=True)
class Ratio:
    """A decimal number from 0 to 1."""

    expected: str = "a number from 0 to 1"

    def parse(self, text: str) -> float:
        value = float(text)
        if not 0 <= value <= 1:
            raise ValueError(text)
        return value


@dataclass(frozen=True, slots=True)
class Boolean:
    """Exactly true or false, in any case."""

    expected: str = "true or false"
    may_be_true: bool = True

    def parse(self, text: str) -> bool:
        match text.strip().lower():
            case "true" if self.may_be_true:
                return True
            case "false":
                return False
        raise ValueError(text)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.choices)

    def parse(self, text: str) -> str:
        word = text.strip()
        if word not in self.choices:
            raise ValueError(text)
        return word


@dataclass(frozen=True, slots=True)
class ChoiceList:
    """A comma separated list of distinct words out of a few, at least one."""

    choices: tuple[str, ...]

    @property
    def expected(self) -> str:
        return "a comma separated list of " + ", ".join(self.choices)

    def parse(self, text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(","))
        if not set(words) <= set(self.choices) or len(set(words)) != len(words):
            raise ValueError(text)
        return words


@dataclass(frozen=True, slots=True)
class Text:
    """Any text that is not blank."""

    expected: str = "a text that is not empty"

    def parse(self, text: str) -> str:
        if not text.strip():
            raise ValueError(text)
        return text.strip()


@dataclass(frozen=True, slots=True)
class TextList:
    """A comma separated list of distinct texts, at least one."""

    expected: str = "a comma separated list without empty or repeated entries"

    def parse(self, text: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in text.split(","))
        if not all(parts) or len(set(parts)) != len(parts):
            raise ValueError(text)
        return parts


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """Replicas of a topic: none, all of them (``*``), or a list of ``partition:broker``."""

    expected: str = "nothing, * or a comma separated list of partition:broker"

    def parse(self, text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
        if words != ("*",) and not all(_REPLICA.fullmatch(word) for word in words):
            raise ValueError(text)
        return words


@dataclass(frozen=True, slots=True)
class KafkaVersion:
    """A version of Kafka as its tools write it: ``3.0``, ``2.8.1``, ``3.0-IV1``."""

    expected: str = "a version of Kafka, such as 3.0-IV1"

    def parse(self, text: str) -> str:
        if not _VERSION.fullmatch(text.strip()):
            raise ValueError(text)
        return text.strip()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `name` is Kafka's name. `topic_name` is the name under which a topic may override it, where it may.
    `coarser` are names in coarser units, from fine to coarse, each with what one unit is worth
    (``log.retention.hours`` → 3,600,000 ms): they count only when no finer one is given. `is_dynamic`: a
    change takes effect while the broker runs.
    """

    name: str
    kind: Kind
    default: Any
    documentation: str
    topic_name: str | None = None
    coarser: tuple[tuple[str, int], ...] = ()
    is_dynamic: bool = False


class NoDefault(Enum):
    """Why a row has no default value of its own."""

    REQUIRED = "the user must give it"
    DERIVED = "it follows from other settings unless given"


REQUIRED: Final = NoDefault.REQUIRED
DERIVED: Final = NoDefault.DERIVED
_ROW: Final = "row"


def setting(
    name: str,
    kind: Kind,
    default: Any,
    documentation: str,
    *,
    topic_name: str | None = None,
    coarser: tuple[tuple[str, int], ...] = (),
    is_dynamic: bool = False,
) -> Any:
    """A dataclass field that carries its row; typed Any so that the attribute keeps its own annotation.

    What topics can override is dynamic.
    """
    row = Row(name, kind, default, documentation, topic_name, coarser, is_dynamic or topic_name is not None)
    if isinstance(default, NoDefault):
        return field(metadata={_ROW: row})
    return field(default=default, metadata={_ROW: row})


def row_of(metadata: Any) -> Row | None:
    """The row in a dataclass field's metadata, if the field was made by `setting`."""
    found: Row | None = metadata.get(_ROW)
    return found
