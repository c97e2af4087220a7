"""The record of a cluster: read as written, refused if foreign; and one owner at a time."""

import json
from pathlib import Path

import pytest

from barnabas.deploy.process import DeployError, ProcessId
from barnabas.deploy.state import (
    STATE_FILE,
    BrokerRecord,
    ClusterConfiguration,
    ClusterRecord,
    DirectoryLock,
    LinksRecord,
    read_record,
    write_record,
)


def _record(directory: Path) -> ClusterRecord:
    return ClusterRecord(
        directory=str(directory),
        host="127.0.0.1",
        zookeeper_connect="127.0.0.1:2181",
        zookeeper_port=2181,
        zookeeper_process=ProcessId(2**22 + 1, "boot:1"),
        owner=ProcessId(2**22 + 2, "boot:2"),
        configuration=ClusterConfiguration(brokers=2, settings={"num.io.threads": "4"}, racks=["a"]),
        brokers=[
            BrokerRecord(id=1, port=9092, directory="/one", log_dirs=["/one/data"]),
            BrokerRecord(
                id=2, port=9093, directory="/two", log_dirs=["/two/data"], process=ProcessId(5, "x:3")
            ),
        ],
    )


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = _record(tmp_path)
    write_record(record)
    assert read_record(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]
    written = json.loads((tmp_path / STATE_FILE).read_text())
    assert not {"links", "page"} & written.keys(), "an earlier version does not know them"
    record.links, record.page = LinksRecord(ports={"1": 9192}), ProcessId(7, "x:4")
    write_record(record)
    assert read_record(tmp_path) == record


def test_a_directory_without_a_cluster_has_no_record(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None


def test_recorded_processes_that_are_gone_do_not_make_it_run(tmp_path: Path) -> None:
    assert not _record(tmp_path).is_running


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{not json", "cannot be read"),
        ("[]", "not the state of a cluster"),
        ("null", "not the state of a cluster"),
        ('{"format": 99}', "format 99, expected 1"),
        ('{"format": 1}', "brokers"),
        ('{"format": 1, "configuration": null}', "directory"),
    ],
)
def test_a_foreign_state_file_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(DeployError, match=f"{STATE_FILE}.*{said}"):
        read_record(tmp_path)


def test_the_settings_in_a_record_of_an_earlier_version_are_kept(tmp_path: Path) -> None:
    write_record(_record(tmp_path))
    path = tmp_path / STATE_FILE
    fields = json.loads(path.read_text())
    del fields["configuration"]
    path.write_text(json.dumps(fields | {"settings": {"num.partitions": "5"}}))
    record = read_record(tmp_path)
    assert record is not None
    assert record.configuration == ClusterConfiguration(
        brokers=2, settings={"num.partitions": "5"}, replicates=False
    )


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    write_record(_record(tmp_path))
    path = tmp_path / STATE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "blue"}))
    with pytest.raises(DeployError, match="colour"):
        read_record(tmp_path)


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path / "new")
    with pytest.raises(DeployError, match="belongs to another running program"):
        DirectoryLock(tmp_path / "new")
    first.release()
    DirectoryLock(tmp_path / "new").release()
