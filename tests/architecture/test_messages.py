"""The type checker refuses to copy a message as if it were a dataclass."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import dataclasses
from dataclasses import dataclass
from barnabas.protocol import schema
from barnabas.protocol.messages.groups import DeleteGroupsRequest

@dataclass
class Plain:
    number: int

dataclasses.replace(Plain(1), number=2)
schema.replace(DeleteGroupsRequest(groups_names=[]), groups_names=["g"])
dataclasses.replace(DeleteGroupsRequest(groups_names=[]), groups_names=["g"])
"""


def test_a_message_cannot_be_copied_by_dataclasses_replace(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "program.py:13: error: DeleteGroupsRequest is a message" in checked.stdout, checked.stderr
    assert "Found 1 error in 1 file" in checked.stdout
