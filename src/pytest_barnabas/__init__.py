"""The pytest plugin of Barnabas: a warm cluster, a topic for each test, and faults that are undone.

See docs/pytest.md. pytest loads `pytest_barnabas.plugin` by its entry point.
"""

from barnabas.deploy.held_faults import Fault, ProtocolFault
from barnabas.deploy.scripted_cluster import Cluster

__all__ = ["Cluster", "Fault", "ProtocolFault"]
