"""Names that no other test uses: several tests, and a repeated one, share a cluster and its ZooKeeper."""

import uuid


def fresh_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"
