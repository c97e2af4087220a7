"""The live page as a process of a cluster: ``barnabas ui`` of its directory, started by ``barnabas up --ui``.

    DIR/ui/{url,page.log}

The URL has the token of the page, so that only the user can read the file. Any thread; calls block and are
bounded.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

from barnabas.deploy.private_files import make_private_folder
from barnabas.deploy.process import DeployError, ManagedProcess, wait_until
from barnabas.deploy.server import LocalServer

PAGE: Final = "ui"
_PACKAGES: Final = ("fastavro", "jinja2", "sse_starlette", "starlette", "uvicorn")
_STOP_TIMEOUT_S: Final = 5.0


def check_page_packages() -> None:
    """Raise ModuleNotFoundError for a package of the extra ``ui``, before anything is started."""
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class PageServer(LocalServer):
    """It picks its port itself, and is not started again when it has ended."""

    def __init__(
        self, cluster_directory: Path, *, process: ManagedProcess | None = None, die_with_parent: bool = True
    ) -> None:
        super().__init__(
            "the live page",
            cluster_directory / PAGE,
            host="127.0.0.1",
            ports=(),
            log_file="page.log",
            process=process,
            die_with_parent=die_with_parent,
        )
        self._cluster_directory = cluster_directory
        self._url_file = self.directory / "url"

    @property
    def url(self) -> str | None:
        """The URL of the page; None while it does not serve."""
        if not self.is_alive:
            return None
        try:
            return self._url_file.read_text().strip() or None
        except FileNotFoundError:
            return None

    def launch(self) -> None:
        """Start the process without waiting for it; raises DeployError if it runs already."""
        make_private_folder(self.directory)
        self._check_can_start()
        self._url_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "barnabas", "ui", "--dir", str(self._cluster_directory)]
        self.process = ManagedProcess.spawn(
            self.name,
            [*command, "--url-file", str(self._url_file)],
            log_file=self.log_file,
            die_with_parent=self.die_with_parent,
        )

    def wait_ready(self, timeout_s: float) -> str:
        """The URL as soon as the page serves; otherwise raises DeployError with the end of its output."""
        process = self.running_process
        wait_until(lambda: self.url is not None or not process.is_alive, timeout_s)
        url = self.url
        if url is None:
            process.kill()
            raise DeployError(f"the live page did not start:\n{self._output()}")
        return url

    def stop(self) -> None:
        if self.process is not None and self.process.is_alive:
            self.process.terminate(_STOP_TIMEOUT_S)
