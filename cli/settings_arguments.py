"""``--set key=value`` of client commands: settings of a client in Kafka's names, converted to their types.

`linger.ms=5` and `linger_ms=5` are the same setting; the client itself rejects unknown names and bad values.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, Final

from barnabas.cli.exit_codes import USAGE, CommandError
from barnabas.client.config import ClientConfig

_SHARED: Final = frozenset({"wire", "client_id", "request_timeout_ms"})


def add_set_argument(parser: argparse.ArgumentParser, help: str) -> None:
    """Add ``--set``, whose texts are in ``overrides``."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=help
    )


def add_settings_argument(parser: argparse.ArgumentParser, client: str) -> None:
    add_set_argument(parser, f"a setting of the {client}, for example linger.ms=5 (may be repeated)")


def key_values(texts: list[str], option: str = "--set") -> dict[str, str]:
    """``key=value`` texts as a dict; raises CommandError (usage) for other texts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{option} {text!r}: expected key=value", USAGE)
        found[name.strip()] = value.strip()
    return found


def client_settings(texts: list[str], config: type[ClientConfig]) -> dict[str, Any]:
    """The settings for a client's constructor, converted to the types that its configuration declares.

    A value that cannot be converted stays text, so that the client's error names the accepted values.
    """
    types = {field.name: str(field.type) for field in dataclasses.fields(config)}
    found = {}
    for given, value in key_values(texts).items():
        name = given.replace(".", "_").replace("-", "_")
        found[name] = _typed(value, types.get(name, "str"))
    return found


def admin_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings for connections out of another client's settings."""
    return {name: value for name, value in settings.items() if name in _SHARED}


def _typed(value: str, declared: str) -> int | bool | str:
    if declared == "int" and value.removeprefix("-").isdecimal() and value.isascii():
        return int(value)
    if declared.startswith("bool") and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value
