"""Sockets in folders whose paths are longer than that of a socket may be."""

import socket
from pathlib import Path

import pytest

from barnabas.deploy.short_paths import short_path


@pytest.mark.parametrize(("length", "is_short"), [(103, True), (104, False), (300, False)])
def test_a_socket_in_any_folder_is_bound_and_found(tmp_path: Path, length: int, is_short: bool) -> None:
    folder = tmp_path / ("f" * (length - len(f"{tmp_path}//control")))
    folder.mkdir()
    control = folder / "control"
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as calling:
        with short_path(control) as path:
            listening.bind(path)
        listening.listen()
        assert control.is_socket()
        with short_path(control) as path:
            assert (path == str(control)) == is_short
            assert len(path) <= 103
            calling.connect(path)
        assert not Path(path).parent.is_symlink()
