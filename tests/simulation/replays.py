"""Writes recordings that a page replays: ``python -m tests.simulation.replays``, or with seeds.

Without seeds of random histories: the published ones, into ``ui/replays``, from where the live page and the
documentation take them. Each has the history as the code is, and `before` with the old mistake planted.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.simulation import test_histories as histories
from tests.simulation.kinds import KINDS
from tests.simulation.profiles import USUAL
from tests.simulation.recording import Frame, frames_of, frames_of_seed

FOLDER: Final = Path(__file__).parents[2] / "ui" / "replays"
PUBLISHED: Final[Mapping[str, tuple[str, Callable[[], None]]]] = {
    "kip-101-stale-high-watermark": (
        "An acknowledged record is lost: a stale high watermark",
        histories.a_stale_high_watermark,
    ),
    "kip-101-power-cut": (
        "Two logs differ after a power cut",
        histories.a_power_cut_of_the_whole_isr,
    ),
    "kip-279-double-failover": (
        "Two logs differ after two elections in a row",
        histories.a_fast_double_failover,
    ),
    "torn-transaction": (
        "Half of a transaction becomes visible",
        histories.a_torn_transaction,
    ),
    "stale-controller": (
        "A controller wakes up after it was replaced",
        histories.a_controller_wakes_from_a_pause,
    ),
}


def recording_of(name: str) -> dict[str, Any]:
    """A published recording: the history with today's rules, and with its first mistake planted."""
    title, history = PUBLISHED[name]
    mistake = histories.HISTORIES[history][0]
    return {
        "title": title,
        "text": history.__doc__,
        "source": f"tests/simulation/test_histories.py::{history.__name__}",
        "frames": frames_of(history),
        "before": {
            "text": mistake.__doc__,
            "mistake": mistake.__name__,
            "frames": frames_of(history, mistake),
        },
    }


def text_of(recording: Mapping[str, Any]) -> str:
    """The file of a recording: JSON with a line for each frame."""

    def lines(frames: list[Frame]) -> str:
        return ",\n".join(json.dumps(frame, separators=(",", ":"), ensure_ascii=False) for frame in frames)

    head = {key: value for key, value in recording.items() if key not in ("frames", "before")}
    text = json.dumps(head, indent=0, ensure_ascii=False).removesuffix("\n}")
    text += f',\n"frames": [\n{lines(recording["frames"])}\n]'
    if before := recording.get("before"):
        head = json.dumps({key: before[key] for key in before if key != "frames"}, ensure_ascii=False)[:-1]
        text += f',\n"before": {head}, "frames": [\n{lines(before["frames"])}\n]}}'
    return text + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, help="seeds of random histories")
    parser.add_argument("--kind", default=USUAL.name, choices=sorted(KINDS), help="of random histories")
    parser.add_argument("--out", type=Path, default=Path("build"), help="the folder of random histories")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    recordings = {FOLDER / f"{name}.json": lambda name=name: recording_of(name) for name in PUBLISHED}
    if arguments.seeds:
        kind = arguments.kind
        recordings = {
            arguments.out / f"{kind.replace(' ', '-')}-{seed}.json": lambda seed=seed: {
                "title": f"{kind}, seed {seed}",
                "text": "A random history of the simulation.",
                "source": f"BARNABAS_SIMULATION_SEED={seed}",
                "frames": frames_of_seed(kind, seed),
            }
            for seed in arguments.seeds
        }
    for path, record in recordings.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(record()))
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
