"""The folder for tests that write thousands of small files.

ext4 begins to write a file to the disk when it replaces another one, as each checkpoint and snapshot does. A
file system in memory has no reads that refuse to wait for the disk: tests of those need a usual folder.
"""

import os
from typing import Final

MEMORY: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""For ``tempfile``'s argument `dir`: None is its usual folder."""
