"""The complete programs in docs/client.md run against a cluster, as they are shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.client import NewTopic
from barnabas.client.blocking import Admin
from barnabas.deploy.local import LocalCluster

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
PROGRAMS = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import " in code]


def test_each_client_has_a_complete_program() -> None:
    for imported in ("client import Consumer, Producer", "client.blocking import", "client import Admin"):
        assert any(f"from barnabas.{imported}" in program for program in PROGRAMS), imported


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_page_runs_to_its_end(shared_cluster: LocalCluster, program: str) -> None:
    with Admin(bootstrap_servers=shared_cluster.bootstrap) as admin:
        if "greetings" not in admin.list_topics():
            admin.create_topics(NewTopic("greetings", 3, 3))
    assert "127.0.0.1:9092" in program
    done = subprocess.run(
        [sys.executable, "-c", program.replace("127.0.0.1:9092", shared_cluster.bootstrap)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout
