"""JAAS text, in which Apache Kafka's users write SASL credentials (`sasl.jaas.config`). Pure.

``org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="secret";``

Words, quotes, escapes and comments follow Java's `StreamTokenizer`, with which Kafka reads the
text. One thing is stricter: a quoted value that does not end on its line is refused. No error shows a part of
the text, and no repr shows the options: they are secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_LOGIN: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGIN_MODULES: Final[Mapping[str, str]] = {
    "PLAIN": PLAIN_LOGIN,
    "SCRAM-SHA-256": SCRAM_LOGIN,
    "SCRAM-SHA-512": SCRAM_LOGIN,
    "OAUTHBEARER": OAUTHBEARER_LOGIN,
}
"""Mechanism → the login module that carries its credentials."""

_USER_OPTION: Final = "user_"
_CONTROL_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})


class MalformedJaas(ValueError):
    """A text that is not one login module in JAAS syntax. The message shows nothing of the text."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry of a JAAS text."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def username(self) -> str | None:
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        return self.options.get("password")

    @property
    def users(self) -> dict[str, str]:
        """The names and passwords of the options ``user_<name>="password"``: users of PLAIN."""
        return {
            option.removeprefix(_USER_OPTION): password
            for option, password in self.options.items()
            if option.startswith(_USER_OPTION)
        }


def parse_jaas(text: str, mechanism: str | None = None) -> LoginModule:
    """The one login module of a text; it must be the mechanism's, if one is given. Raises MalformedJaas."""
    tokens = _tokens(text)
    modules = []
    for token in tokens:
        modules.append(_login_module(token, tokens))
    if len(modules) != 1:
        raise MalformedJaas(f"a JAAS text has one login module, but this one has {len(modules)}")
    module = modules[0]
    expected = module.name if mechanism is None else LOGIN_MODULES.get(mechanism)
    if module.name != expected:
        raise MalformedJaas(f"the login module of mechanism {mechanism} must be {expected}")
    return module


def parse_jaas_file(text: str) -> dict[str, tuple[LoginModule, ...]]:
    """The sections of a JAAS file, ``Name { module flag options; … };``, by name. Raises MalformedJaas."""
    tokens = _tokens(text)
    sections: dict[str, tuple[LoginModule, ...]] = {}
    for name in tokens:
        if name.kind is not _Kind.TEXT or next(tokens, None) != (_Kind.SIGN, "{"):
            raise MalformedJaas(
                f"section {len(sections) + 1} of a JAAS file does not begin with a name and {{"
            )
        modules = []
        for token in tokens:
            if token == (_Kind.SIGN, "}"):
                break
            modules.append(_login_module(token, tokens))
        if next(tokens, None) != (_Kind.SIGN, ";"):
            raise MalformedJaas(f"section {len(sections) + 1} of a JAAS file does not end with }};")
        if name.text in sections:
            raise MalformedJaas(f"section {len(sections) + 1} of a JAAS file has the name of an earlier one")
        sections[name.text] = tuple(modules)
    return sections


def jaas_text(module: LoginModule) -> str:
    """The text that `parse_jaas` reads as this module, with every option quoted."""
    options = "".join(f" {name}={_quoted(value)}" for name, value in module.options.items())
    return f"{module.name} required{options};"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


class _Kind(Enum):
    TEXT = auto()
    """A word, or the text between quotes."""
    NUMBER = auto()
    """Java reads it as a number, which has no text: Kafka takes it neither as a value nor as a name."""
    SIGN = auto()


class _Token(NamedTuple):
    kind: _Kind
    text: str


def _login_module(first: _Token, tokens: Iterator[_Token]) -> LoginModule:
    if first.kind is not _Kind.TEXT:
        raise MalformedJaas("a JAAS text begins with the name of a login module")
    flag = next(tokens, None)
    if flag is None or flag.kind is not _Kind.TEXT or flag.text.upper() not in _CONTROL_FLAGS:
        raise MalformedJaas(
            "after the login module a JAAS text has a flag: required, requisite, sufficient or optional"
        )
    options: dict[str, str] = {}
    for count, token in enumerate(tokens, 1):
        if token == (_Kind.SIGN, ";"):
            return LoginModule(first.text, options)
        equals, value = next(tokens, None), next(tokens, None)
        if token.kind is not _Kind.TEXT or equals != (_Kind.SIGN, "="):
            raise MalformedJaas(f"option {count} of a JAAS text is not of the form name=value")
        if value is None or value.kind is not _Kind.TEXT:
            raise MalformedJaas(
                f'option {count} of a JAAS text has no value; numbers and others are quoted: name="value"'
            )
        options[token.text] = value.text
    raise MalformedJaas("a JAAS text ends with a semicolon")


# In the order in which Java decides by the first character. A lone "/" begins a comment as "//" does.
_LEXEME: Final = re.compile(
    r"""
      (?P<blank>   [\x00-\x20]+ )
    | (?P<comment> /\* .*? (?:\*/ | \Z) | / [^\r\n]* )
    | (?P<number>  -? [0-9.] [0-9.]* )
    | (?P<word>    [A-Za-z_$\u00a0-\U0010ffff] [A-Za-z0-9._$\u00a0-\U0010ffff-]* )
    | (?P<quoted>  (?P<quote>["']) (?P<inside> (?: \\ [^\r\n] | (?!(?P=quote)) [^\\\r\n] )* ) (?P=quote) )
    | (?P<open>    ["'] )
    | (?P<sign>    . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROLS: Final[Mapping[str, str]] = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


def _tokens(text: str) -> Iterator[_Token]:
    for found in _LEXEME.finditer(text):
        match found.lastgroup:
            case "word":
                yield _Token(_Kind.TEXT, found["word"])
            case "quoted":
                yield _Token(_Kind.TEXT, _ESCAPE.sub(_unescaped, found["inside"]))
            case "number":
                yield _Token(_Kind.NUMBER, "")
            case "sign":
                yield _Token(_Kind.SIGN, found["sign"])
            case "open":
                raise MalformedJaas("a quoted text does not end on its line")


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _CONTROLS.get(code, code)
