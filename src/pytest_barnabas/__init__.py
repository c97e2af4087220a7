"""The pytest plugin of Barnabas: a warm cluster, a topic for each test, and faults that are undone.

See docs/pytest.md. pytest loads `pytest_barnabas.plugin` by its entry point.
"""

from pytest_barnabas.cluster import Cluster, Fault

__all__ = ["Cluster", "Fault"]
