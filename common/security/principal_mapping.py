"""`ssl.principal.mapping.rules`: how the name of a certificate becomes the name of a principal. Pure.

A rule is DEFAULT, the whole name, or ``RULE:pattern/replacement/[LU]``; the first one whose pattern matches
the whole name counts. Source: KIP-371 and `SslPrincipalMapper` of Apache Kafka 3.9. Patterns have
Python's syntax, which covers the part of Java's that such rules use; groups are ``$1`` in replacements.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from barnabas.common.settings import Kind, Refused

DEFAULT: Final = "DEFAULT"
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
_JAVA_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|\$\{(\w+)\}|(.)", re.DOTALL)


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None: the name as it is."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if not self.pattern.fullmatch(name):
            return None
        # As in Java, each match in the name is replaced, also an empty one at its end.
        result = self.pattern.sub(self._expand, name)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result

    def _expand(self, match: re.Match[str]) -> str:
        count = match.re.groups
        parts: list[str] = []
        for escaped, number, group, plain in _REFERENCE.findall(self.replacement):
            if number:
                # $12 with fewer groups is $1 and the digit 2; a group that does not exist is plain text.
                digits = len(number)
                while digits > 1 and int(number[:digits]) > count:
                    digits -= 1
                index = int(number[:digits])
                parts.append(f"${number}" if index > count else (match[index] or "") + number[digits:])
            else:
                parts.append((match[group] or "") if group else escaped or plain)
        return "".join(parts)


class PrincipalMapping:
    """The rules of one listener; its text is the setting's value. Raises ValueError."""

    def __init__(self, text: str = DEFAULT) -> None:
        self._text = text
        self._rules = [_parse(match[1]) for match in _SPLITTER.finditer(text.strip()) if match[1]]

    def name_of(self, subject: str) -> str | None:
        """The principal's name for a distinguished name; None if no rule matches it."""
        for rule in self._rules:
            if (name := rule.apply(subject)) is not None:
                return name
        return None

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrincipalMapping) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def _parse(text: str) -> _Rule:
    match = _PARSER.match(text)
    if match is None or match.end() != len(text):
        raise Refused(f"DEFAULT or RULE:pattern/replacement/[LU] instead of {text!r}")
    if match[1] is not None:
        return _Rule(None)
    try:
        # Java's classes, such as \\w, match ASCII characters alone.
        pattern = re.compile(_JAVA_NAMED_GROUP.sub("(?P<", match[2]), re.ASCII)
    except re.error as error:
        raise Refused(f"a regular expression instead of {match[2]!r}: {error}") from error
    if unknown := [name for name in re.findall(r"\$\{(\w+)\}", match[3]) if name not in pattern.groupindex]:
        raise Refused(f"the name of a group in {match[2]!r} instead of {unknown[0]!r}")
    plain = [each for *special, each in _REFERENCE.findall(match[3]) if each == "$"]
    if plain or (not pattern.groups and re.search(r"(?<!\\)\$\d", match[3])):
        # Kafka fails at each name then.
        raise Refused(f"references to groups of {match[2]!r} instead of {match[3]!r}")
    return _Rule(pattern, match[3], match[4])


class PrincipalMappingRules(Kind):
    """Kind of `ssl.principal.mapping.rules`; the value is a `PrincipalMapping`."""

    expected = "a comma separated list of DEFAULT and RULE:pattern/replacement/[LU]"

    def check(self, value: Any) -> PrincipalMapping:
        if isinstance(value, PrincipalMapping):
            return value
        if not isinstance(value, str):
            raise ValueError(value)
        return PrincipalMapping(value or DEFAULT)
