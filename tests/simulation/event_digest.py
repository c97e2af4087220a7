"""A digest of each history: ``python -m tests.simulation.event_digest groups:0 'exactly once:7'``.

Two processes print the same digest only if every request, answer, message and committed record is the same,
in the same order. ``--events`` prints the events too, so that `diff` shows the first that differs. The hooks
stay, therefore the process does nothing else.
"""

import hashlib
import logging
import re
import sys
from typing import Any, Final

from tests.simulation.kinds import KINDS
from tests.simulation.requests import SimRequest
from tests.simulation.timed_world import TimedWorld
from tests.simulation.world import World

_NOT_OF_THE_SEED: Final = re.compile(
    r" at 0x[0-9a-f]+|session_id=\d+|\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b"
)
"""Addresses of objects, ids of fetch sessions, and UUIDs."""
_SET: Final = re.compile(r"\{.*?\}")
_HOOKS: Final[tuple[tuple[type, str], ...]] = (
    (SimRequest, "__init__"),
    (SimRequest, "respond"),
    (World, "send"),
    (TimedWorld, "at"),
)


class Recorder:
    """Hears every event of one history after the other."""

    def __init__(self, *, is_printing: bool) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._is_printing = is_printing
        for owner, name in _HOOKS:
            self._hook(owner, name)

    def digest(self, simulation: str, seed: int) -> str:
        """Run one history; it keeps all promises."""
        self._hash = hashlib.blake2b(digest_size=16)
        history = KINDS[simulation].make(seed)
        world = history.world
        try:
            history.run()
            for truth in world.all_truths:
                self._note(truth.tp, truth.committed)
            self._note(history.trace)
        finally:
            world.close()
        return self._hash.hexdigest()

    def _note(self, *event: object) -> None:
        line = " ".join(map(_told, event))
        self._hash.update(line.encode())
        if self._is_printing:
            print(line)

    def _hook(self, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def noting(this: Any, *arguments: Any, **named: Any) -> Any:
            self._note(name, *arguments)
            return method(this, *arguments, **named)

        setattr(owner, name, noting)


def _told(value: object) -> str:
    """A value without parts that differ between processes and decide nothing."""
    if callable(value) or type(value).__repr__ is object.__repr__:
        return getattr(value, "__qualname__", type(value).__name__)
    return _SET.sub(lambda found: "".join(sorted(found[0])), _NOT_OF_THE_SEED.sub("", repr(value)))


def main() -> None:
    logging.disable(logging.CRITICAL)
    recorder = Recorder(is_printing="--events" in sys.argv)
    for history in sys.argv[1:]:
        simulation, colon, seed = history.rpartition(":")
        if colon:
            print(history, recorder.digest(simulation, int(seed)))


if __name__ == "__main__":
    main()
