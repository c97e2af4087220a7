"""Barnabas: a replicated commit log with Kafka's rules, in Python.

The public API is small on purpose; everything else is reached through its package, for example
``from barnabas.client import Producer``. `local_cluster` makes a cluster of this program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.common.compiled_core import install as _use_compiled_core

if TYPE_CHECKING:
    from barnabas.deploy.scripted_cluster import local_cluster as local_cluster

__version__ = "0.4.0"

_use_compiled_core()


def __getattr__(name: str) -> Any:
    # Looked up when it is first used, so that importing the package costs nothing.
    if name == "local_cluster":
        from barnabas.deploy.scripted_cluster import local_cluster

        return local_cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
