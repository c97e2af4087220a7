"""Imports the compiled core, if it was built from exactly these sources, instead of the same in Python.

`make compiled` writes extension modules and a manifest into `build/compiled-<interpreter>/` of a checkout.
They share one library, so all of them are used or none: if a source of the packages that they are compiled
from has changed since (compiled code has constants of other modules in it), all run in Python. In a wheel the
extension modules are beside the sources, where Python prefers them without this module.

`BARNABAS_PURE_PYTHON=1` imports sources only, in both cases.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import find_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    # It comes with mypy, and is not there where Barnabas is only run.
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**attributes: Any) -> Any:
        """With `allow_interpreted_subclasses`, Python may derive from a class of the compiled core."""
        return lambda cls: cls


PURE_PYTHON: Final = "BARNABAS_PURE_PYTHON"
MANIFEST: Final = "manifest.json"
_MANIFEST_KEYS: Final = {"recipe", "modules", "stamps", "digests"}
_PACKAGES: Final = ("protocol", "common", "zookeeper", "controller", "broker")
"""The packages whose constants and types the compiled modules may have in them."""
_HERE: Final = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
"""The folder of the packages; in a checkout that is its root."""
_LISTED: Final = "barnabas.protocol.record_walk"
"""A module that is in the core of every version."""


def folder(root: str = _HERE) -> str:
    """Where a checkout has the compiled core for this interpreter."""
    return os.path.join(root, "build", f"compiled-{sys.implementation.cache_tag}")


def stamps(root: str = _HERE) -> dict[str, list[int]]:
    """Size and time of change of all sources that a compiled core depends on, by path."""
    found: dict[str, list[int]] = {}
    waiting = list(_PACKAGES)
    while waiting:
        within = waiting.pop()
        with os.scandir(os.path.join(root, within)) as entries:
            for entry in entries:
                path = f"{within}/{entry.name}"
                if entry.name.endswith(".py"):
                    stat = entry.stat()
                    found[path] = [stat.st_size, stat.st_mtime_ns]
                elif entry.is_dir() and entry.name != "__pycache__":
                    waiting.append(path)
    return found


def digest(root: str, path: str) -> str:
    import hashlib

    with open(os.path.join(root, path), "rb") as file:
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


def read_manifest(compiled: str) -> dict[str, Any] | None:
    """The manifest of a build; None if there is none that can be read."""
    try:
        with open(os.path.join(compiled, MANIFEST), "rb") as file:
            text = file.read()
    except OSError:
        return None
    import json

    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() == _MANIFEST_KEYS else None


def is_current(manifest: dict[str, Any], root: str = _HERE) -> bool:
    """Whether all sources are those of the build: unchanged since, or at least the same bytes."""
    built, digests = manifest["stamps"], manifest["digests"]
    now = stamps(root)
    return now.keys() == built.keys() and all(
        stamp == built[path] or digest(root, path) == digests[path] for path, stamp in now.items()
    )


class _CompiledFinder:
    """Finds the modules of the core in a folder."""

    def __init__(self, compiled: str, modules: dict[str, str]) -> None:
        self._compiled = compiled
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._modules.get(name)
        return None if file is None else spec_from_file_location(name, os.path.join(self._compiled, file))


class _SourceFinder:
    """Finds the sources of the package, also beside extension modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("barnabas."):
            return None
        sources = (SourceFileLoader, SOURCE_SUFFIXES)
        return next(filter(None, (FileFinder(where, sources).find_spec(name) for where in path)), None)


def _is_beside_the_sources() -> bool:
    """Whether Python prefers extension modules by itself, as in a wheel."""
    listed = os.path.join(_HERE, *_LISTED.split(".")[1:])
    return any(os.path.exists(listed + suffix) for suffix in EXTENSION_SUFFIXES)


def install() -> None:
    """Let later imports find the compiled core of this checkout, if it is current."""
    if os.environ.get(PURE_PYTHON):
        if _is_beside_the_sources():
            sys.meta_path.insert(0, _SourceFinder())
        return
    compiled = folder()
    manifest = read_manifest(compiled)
    if manifest is not None and is_current(manifest):
        sys.meta_path.insert(0, _CompiledFinder(compiled, manifest["modules"]))


def is_running() -> bool:
    """Whether this process runs the compiled core."""
    spec = find_spec(_LISTED)
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


def describe() -> str:
    """Whether this process runs the compiled core, for people."""
    if is_running():
        return "compiled"
    if os.environ.get(PURE_PYTHON):
        return f"pure Python, as {PURE_PYTHON} says"
    if read_manifest(folder()) is not None:
        return "pure Python: the sources have changed since `make compiled`"
    return "pure Python"
