"""The command `barnabas groups`: files of offsets, and resets of nothing."""

import asyncio
import re
from pathlib import Path

import pytest

from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.cli.groups import offsets_in
from barnabas.cli.main import build_parser
from barnabas.protocol.ids import TopicPartition
from tests.support.fake_broker import FakeCluster

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


def test_a_file_names_offsets(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text("a,0,5\n\n b , 0 , 7\n")
    assert offsets_in(path) == {A0: 5, B0: 7}


@pytest.mark.parametrize(("text", "said"), [("a,0\n", "line 1"), ("a,0,1\na,0,2\n", "twice"), ("", "none")])
def test_a_malformed_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=said):
        offsets_in(path)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="not valid UTF-8") as refused:
        offsets_in(path)
    assert refused.value.exit_code == USAGE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--to-earliest", "has committed no offsets of topics that exist; name topics with --topic TOPIC"),
        (
            "--topic t --shift-by 1",
            "has committed no offsets there, so none can be shifted; give",
        ),
        ("--topic t:1 --from-file {file}", "{file} names none of the partitions of --topic"),
    ],
)
async def test_a_reset_of_nothing_says_what_is_missing(words: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets"
    file.write_text("t,0,0\n")
    given = ["groups", "reset-offsets", "g", *words.format(file=file).split()]
    async with FakeCluster() as cluster:
        cluster.add_topic("t", partitions=2)
        options = build_parser("groups").parse_args([*given, "-b", cluster.bootstrap])
        with pytest.raises(CommandError, match=re.escape(said.format(file=file))) as refused:
            await asyncio.to_thread(options.run, options)
    assert refused.value.exit_code == NOT_FOUND
