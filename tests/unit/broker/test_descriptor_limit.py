"""The limit of open files, raised in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import logging, resource, sys
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from barnabas.broker.process import raise_descriptor_limit
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "said"), [(200, "raised from 200 to the hard limit"), (300, "which is the hard limit")]
)
def test_the_soft_limit_becomes_the_hard_one(soft: int, said: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 300:
        pytest.skip("this system allows too few open files")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(soft), "300"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert found[-1] == "300 300 300"
    assert f"open files: at most 300, {said}" in found[0]
