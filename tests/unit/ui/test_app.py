"""The page's socket."""

import socket

import pytest

from barnabas.ui.app import bind


def test_a_busy_port_is_named_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use") as refused:
            bind(port)
    assert refused.value.strerror == "Address already in use"
    assert refused.value.filename == f"127.0.0.1:{port}"
