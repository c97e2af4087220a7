"""Changes the limits of a topic again and again during a load.

A batch whose answer was lost may meet other limits at its retry. It is in the log already, so it must be
neither refused nor split and written a second time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from barnabas.client.admin.admin import ConfigResource
from barnabas.client.blocking import Admin
from barnabas.protocol.errors import BarnabasError

_CHOICES: Final = {
    "max.message.bytes": ("500", "2000", "1048588"),
    "segment.bytes": ("4096", "65536"),
    "compression.type": ("producer", "gzip", "uncompressed"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
}
_TIMEOUT_MS: Final = 3_000
_STOP_S: Final = 30.0


@contextmanager
def changing_settings(bootstrap: str, topic: str, seed: int) -> Iterator[None]:
    """Change the topic's settings at random from a seed, on a thread, while the block runs."""
    chance, stopping = random.Random(seed), threading.Event()

    def change() -> None:
        while not stopping.wait(chance.choice((0.2, 0.5, 2.0))):
            settings = {name: chance.choice(values) for name, values in _CHOICES.items()}
            try:
                with Admin(bootstrap_servers=bootstrap) as admin:
                    admin.alter_configs({ConfigResource.topic(topic): settings}, timeout_ms=_TIMEOUT_MS)
            except BarnabasError:
                # Brokers and ZooKeeper are away at times; then the settings stay.
                continue

    thread = threading.Thread(target=change, name="changing-settings", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(_STOP_S)
        if thread.is_alive():
            raise AssertionError(f"a change of settings did not end within {_STOP_S} s")
