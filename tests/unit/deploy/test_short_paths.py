"""Sockets in folders whose paths are longer than that of a socket may be."""

import socket
from pathlib import Path

import pytest

from barnabas.deploy.short_paths import short_path


@pytest.mark.parametrize("length", [10, 200])
def test_a_socket_in_any_folder_is_bound_and_found(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("f" * length)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as calling:
        with short_path(folder / "control") as path:
            listening.bind(path)
        listening.listen()
        assert (folder / "control").is_socket()
        with short_path(folder / "control") as path:
            assert len(path) <= 103
            calling.connect(path)
        assert not Path(path).parent.is_symlink()
