"""How another command asks the program that runs a cluster in the foreground to start a broker again.

A broker must be the child of the cluster's owner, or it would outlive it. So a command does not start the
broker itself: it leaves a file ``DIR/requests/restart-<id>``, which the owner takes, carries out and answers.
Bounded: there is at most one request per broker, and the asker gives up after its time-out.

Owner and asker are different processes; each side is one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from barnabas.deploy.process import DeployError, wait_until

_FOLDER: Final = "requests"
_RESTART: Final = "restart-"
_ANSWER: Final = ".answer"
_DONE: Final = "done"


def forget_requests(directory: Path) -> None:
    """Drop what an earlier owner left; the owner's first act."""
    folder = directory / _FOLDER
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink(missing_ok=True)


def ask_restart(directory: Path, broker_id: int, timeout_s: float) -> None:
    """Have the owner restart a broker, and wait; raises DeployError when it fails or stays silent."""
    folder = directory / _FOLDER
    folder.mkdir(exist_ok=True)
    request = folder / f"{_RESTART}{broker_id}"
    answer = request.with_suffix(_ANSWER)
    answer.unlink(missing_ok=True)
    request.touch()
    try:
        if not wait_until(answer.exists, timeout_s, 0.05):
            raise DeployError(f"the program that runs the cluster did not answer within {timeout_s:g} s")
        said = answer.read_text()
    finally:
        request.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    if said != _DONE:
        raise DeployError(said)


def restarts_asked_for(directory: Path) -> Iterator[int]:
    """The brokers whose restart is asked for now; each request is taken away as it is handed out."""
    folder = directory / _FOLDER
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        number = path.name.removeprefix(_RESTART)
        if path.name.startswith(_RESTART) and number.isdecimal():
            path.unlink(missing_ok=True)
            yield int(number)


def answer_restart(directory: Path, broker_id: int, error: DeployError | None) -> None:
    """Tell the asker how it went."""
    answer = directory / _FOLDER / f"{_RESTART}{broker_id}{_ANSWER}"
    new = answer.with_suffix(".new")
    new.write_text(_DONE if error is None else str(error))
    new.replace(answer)
