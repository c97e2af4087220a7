"""The store over a real ZooKeeper."""

from tests.support.acl_contract import *  # noqa: F403 - its tests run here
from tests.support.store_contract import *  # noqa: F403 - its tests run here
