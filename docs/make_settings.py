"""Makes docs/settings.md from the declarations of the settings: `make settings`.

A test compares the page with the declarations, so a setting cannot be added without its line here.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path

from barnabas.broker.config.dynamic import DYNAMIC_NAMES
from barnabas.broker.config.listener_config import (
    LIMITS,
    LISTENER_SETTINGS,
    OF_MECHANISMS_ALONE,
    RELOADABLE,
)
from barnabas.broker.config.settings import OF_LISTENERS, SETTINGS
from barnabas.broker.config.topic_config import TOPIC_SETTINGS
from barnabas.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from barnabas.client.security import SecurityConfig
from barnabas.common.settings import INT_MAX, LONG_MAX, NoDefault, Setting, setting_text, settings_of
from barnabas.spark_connector.options import SourceOptions

PAGE = Path(__file__).parent / "settings.md"
UNITS = ("ms", "bytes", "minutes")
IN_BYTES = ("batch_size", "buffer_memory", "max_request_size")
"""Settings with a name of Kafka's that has no unit."""
COLUMNS = ("setting", "default", "unit", "accepted", "meaning")


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


INTRODUCTION = """# Settings

Made from the declarations in the code (`make settings`). Names and defaults are Kafka's, except where the
meaning says otherwise. An unknown setting or an invalid value is refused by name, with the accepted values.

A broker reads its settings from a `.properties` file, then from `BARNABAS_…` variables (`log.retention.ms` is
`BARNABAS_LOG_RETENTION_MS`), then from `--set`; later sources override earlier ones, by whichever
name: `--set log.retention.hours=1` beats `BARNABAS_LOG_RETENTION_MS`. In one source the finest unit counts.
Settings marked with * can be changed while a broker runs, by `barnabas configs alter`. Settings of a topic
are given when it is created (`--config`) and changed by `barnabas topics alter`. [`barnabas up`](cli.md) has
defaults of its own for the number of replicas.
"""
LISTENERS = f"""## Listeners

A setting in this table is for all listeners. With the listener's name in lower case it is for one,
`listener.name.<listener>.<setting>`, or for one SASL mechanism of it,
`listener.name.<listener>.<mechanism>.<setting>`. A mechanism has settings of its own if the name of
the setting is `connections.max.reauth.ms`, begins with `sasl.login.` or `sasl.oauthbearer.`, or is one of
these, which count in no other way: {_names(OF_MECHANISMS_ALONE)}.
The limits are for one listener here, and without the prefix for the broker: {_names(LIMITS)}.
A variable of the environment is `BARNABAS_LISTENER_NAME_EXTERNAL_SCRAM_SHA_256_SASL_JAAS_CONFIG`.

With the prefix, `barnabas configs alter` sets them for one broker while it runs: all of them for a listener
that is added, and of an open one the limits and {_names(RELOADABLE)}.
Secrets are then kept in ZooKeeper, encrypted with `password.encoder.secret`.

"""


def _default(declared: Setting) -> str:
    if isinstance(declared.default, NoDefault):
        return declared.default.value
    if declared.default is None:
        return ""
    if declared.default in (INT_MAX, LONG_MAX, sys.float_info.max):
        return "no limit"
    return f"`{setting_text(declared.default)}`" if setting_text(declared.default) else ""


def _unit(name: str) -> str:
    last = name.replace("_", ".").rpartition(".")[2]
    return last if last in UNITS else "bytes" if name in IN_BYTES else ""


def _row(name: str, declared: Setting) -> tuple[str, ...]:
    mark = " *" if name in DYNAMIC_NAMES else ""
    topic = f" Topics: `{declared.topic_name}`." if declared.topic_name and declared.name else ""
    coarser = "".join(f" Also `{name}`." for name, _ in declared.coarser)
    meaning = f"{declared.documentation}{topic}{coarser}"
    return f"`{name}`{mark}", _default(declared), _unit(name), declared.kind.expected, meaning


def _topic_row(name: str, declared: Setting) -> tuple[str, ...]:
    own_default = f"the broker's `{declared.name}`"
    return f"`{name}`", own_default, _unit(name), declared.kind.expected, declared.documentation


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    return f"## {title}\n\n{_rows(rows)}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    lines = [
        " | ".join(cell.replace("|", "\\|") for cell in row)
        for row in [COLUMNS, ("---",) * len(COLUMNS), *rows]
    ]
    return "".join(f"| {line} |\n" for line in lines)


def _client(title: str, config: type[ClientConfig]) -> str:
    base = ClientConfig if config is not ClientConfig else SecurityConfig
    common = {item.name for item in dataclasses.fields(base)}
    declared = {name: item for name, item in settings_of(config).items() if name not in common}
    return _table(title, (_row(name, item) for name, item in declared.items()))


def render() -> str:
    return "\n".join(
        [
            INTRODUCTION,
            _table("Brokers", (_row(*item) for item in SETTINGS.items() if item[0] not in OF_LISTENERS)),
            LISTENERS + _rows(_row(*item) for item in LISTENER_SETTINGS.items()),
            _table("Topics", (_topic_row(*item) for item in TOPIC_SETTINGS.items() if item[1].name)),
            _table(
                "Topics: without a default of the broker",
                (_row(*item) for item in TOPIC_SETTINGS.items() if not item[1].name),
            ),
            _client("All clients", ClientConfig),
            _table("All clients: security", (_row(*item) for item in settings_of(SecurityConfig).items())),
            _client("Producer", ProducerConfig),
            _client("Consumer", ConsumerConfig),
            _client("Admin", AdminConfig),
            _table("Spark source", (_row(item.name, item) for item in settings_of(SourceOptions).values())),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"{PAGE.name}: {render().count(chr(10))} lines")
