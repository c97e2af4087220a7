"""The cluster that an offline command on a log dir asks: only the one that the dir belongs to.

`meta.properties` names it. Another cluster may have topics of the same names with other settings and leaders,
by which records would be lost; and the brokers may come from the environment, so that nobody typed them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from barnabas.broker.log.log_dir import META_FILE, LogDir
from barnabas.cli.arguments import BOOTSTRAP_VARIABLE
from barnabas.cli.exit_codes import USAGE, CommandError
from barnabas.client.admin.admin import Admin


@asynccontextmanager
async def cluster_of(log_dir: LogDir, bootstrap: str) -> AsyncIterator[Admin]:
    """An admin client within the block. Raises CommandError if the brokers are of another cluster."""
    own = (log_dir.read_meta() or {}).get("cluster.id")
    async with Admin(bootstrap_servers=bootstrap) as admin:
        asked = (await admin.describe_cluster()).cluster_id
        if own != asked:
            owner = f"belongs to the cluster {own}" if own else f"names no cluster.id in {META_FILE}"
            raise CommandError(
                f"{log_dir.path} {owner}, and {bootstrap} to the cluster {asked}: nothing was changed; name "
                f"brokers of its own cluster with --bootstrap-server, or unset {BOOTSTRAP_VARIABLE}",
                USAGE,
            )
        yield admin
