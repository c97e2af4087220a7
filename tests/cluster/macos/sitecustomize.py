"""Makes a Python process on Linux, and those that it starts, lack what macOS lacks.

Python runs this module at its start if its folder is on ``PYTHONPATH``. Calls and constants are taken away by
name, ``/proc`` is hidden, limits are those of macOS, and what is dangerous there is refused: a fork without a
new program, a mapping of a file, the file system's map of holes. What Linux cannot show is another kernel:
kqueue, the states of its sockets, and its file system.
"""

# ruff: noqa: E402 - the modules imported later look at what the first ones have.
import select
import sys

sys.platform = "darwin"
for name in [name for name in vars(select) if name.lower().startswith("epoll")]:
    delattr(select, name)

import builtins
import errno
import fcntl
import importlib
import io
import mmap
import os
import resource
import socket
import types

from absent_on_macos import ABSENT

sys.modules["_scproxy"] = proxies = types.ModuleType("_scproxy")
proxies._get_proxy_settings = proxies._get_proxies = dict

for module_name, prefixes in ABSENT.items():
    module = importlib.import_module(module_name)
    for name in [name for name in vars(module) if name.startswith(prefixes)]:
        delattr(module, name)


# -- /proc -------------------------------------------------------------------------------------------------


def _hidden(function):
    def look(path, *arguments, **options):
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return function(path, *arguments, **options)

    return look


builtins.open = io.open = _hidden(io.open)
for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
    setattr(os, name, _hidden(getattr(os, name)))


# -- limits ------------------------------------------------------------------------------------------------

_OPEN_MAX = 10_240
_PATH_BYTES = 103
_, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_getrlimit, _setrlimit = resource.getrlimit, resource.setrlimit
_setrlimit(resource.RLIMIT_NOFILE, (256, _hard))


def _limit(kind):
    soft, hard = _getrlimit(kind)
    return soft, resource.RLIM_INFINITY if kind == resource.RLIMIT_NOFILE else hard


def _set_limit(kind, limits):
    if kind == resource.RLIMIT_NOFILE:
        if limits[0] > _OPEN_MAX:
            raise ValueError("current limit exceeds maximum limit")
        limits = limits[0], _hard
    _setrlimit(kind, limits)


resource.getrlimit, resource.setrlimit = _limit, _set_limit


class _Socket(socket.socket):
    def _check(self, address):
        if self.family == socket.AF_UNIX and len(os.fsencode(address)) > _PATH_BYTES:
            raise OSError("AF_UNIX path too long")

    def bind(self, address):
        self._check(address)
        super().bind(address)

    def connect(self, address):
        self._check(address)
        super().connect(address)


socket.socket = _Socket


# -- other meanings ----------------------------------------------------------------------------------------

fcntl.F_FULLFSYNC = 51
_fcntl = fcntl.fcntl


def _sync_or_control(descriptor, command, *arguments):
    if command == fcntl.F_FULLFSYNC:
        return os.fsync(descriptor)
    return _fcntl(descriptor, command, *arguments)


fcntl.fcntl = _sync_or_control


class _Mapping(mmap.mmap):
    def __new__(cls, fileno, *arguments, **options):
        if fileno != -1:
            raise OSError("a mapping would first force the file to disk")
        return super().__new__(cls, fileno, *arguments, **options)


mmap.mmap = _Mapping


def _refuse_fork():
    raise OSError("libraries of macOS may abort a fork")


os.fork = _refuse_fork
