"""The metrics of transactions: of the coordinator, and of the logs."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.coordinators.transactions.records import TransactionMetadata
from barnabas.broker.coordinators.transactions.rules import NO_TIMEOUT_MS
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.metrics.transactions import (
    LATE_AFTER_MS,
    coordinator_metrics,
    log_transaction_metrics,
)
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from barnabas.protocol.records import MarkerType
from tests.support.defaults import CONFIG, log_config
from tests.support.transacting import TransactionRig
from tests.unit.broker.log.test_log_transactions import end, write

NOW_MS = 1_000_000_000
T0 = TopicPartition("t", 0)
S = TransactionState
MARKER_CHANNEL = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
LATE = "kafka_server_replicamanager_partitionswithlatetransactionscount"
LAG = "kafka_cluster_partition_laststableoffsetlag"


def stored(state: TransactionState, age_ms: int, **fields: int) -> TransactionMetadata:
    begun_ms = NOW_MS - age_ms
    kept = TransactionMetadata(
        state, ProducerId(7), ProducerEpoch(0), 60_000, begun_ms, frozenset({T0}), begun_ms
    )
    return kept._replace(**fields)


def loaded(metadata: TransactionMetadata) -> Transaction:
    return Transaction("id", LeaderEpoch(0), CONFIG, metadata)


def collect(
    transactions: Iterable[Transaction] = (),
    replicas: Iterable[Partition] = (),
    max_series: int = 10,
    now_ms: int = NOW_MS,
) -> dict[str, float]:
    """The samples, by their name and labels."""
    coordinator = SimpleNamespace(
        all_machines=lambda: (transactions, []),
        markers=SimpleNamespace(queued=5, delayed=2),
        longest_load_ms=12.5,
    )
    metrics = [
        *coordinator_metrics(cast(TransactionCoordinator, coordinator), now_ms),
        *log_transaction_metrics(replicas, now_ms, max_timeout_ms=900_000, max_series=max_series),
    ]
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def test_ids_are_counted_by_state_and_open_transactions_have_an_age() -> None:
    prepared = {"timeout_ms": NO_TIMEOUT_MS, "prepared_timeout_ms": 60_000}
    samples = collect(
        [
            loaded(stored(S.ONGOING, 3_000)),
            loaded(stored(S.ONGOING, 4_000)),
            loaded(stored(S.ONGOING, 90_000, **prepared)),
            loaded(stored(S.COMPLETE_COMMIT, 500_000)),
        ]
    )
    assert samples["barnabas_transactional_ids Ongoing"] == 3
    assert samples["barnabas_transactional_ids CompleteCommit"] == 1
    assert samples["barnabas_transactional_ids PrepareAbort"] == 0
    assert samples["barnabas_transactions_oldest_ms ongoing"] == 4_000
    assert samples["barnabas_transactions_oldest_ms prepared"] == 90_000
    assert samples["barnabas_transaction_markers_queued"] == 5
    assert samples[f"{MARKER_CHANNEL}unknowndestinationqueuesize"] == 2
    assert samples["kafka_server_transaction_coordinator_metrics_partition_load_time_max"] == 12.5
    assert collect()["barnabas_transactions_oldest_ms prepared"] == 0


def test_an_id_whose_record_is_appended_again_is_counted_until_the_log_has_it() -> None:
    rig = TransactionRig(stored(S.PREPARE_COMMIT, 0))
    name = f"{MARKER_CHANNEL}logappendretryqueuesize"
    assert collect([rig.machine])[name] == 0
    rig.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert collect([rig.machine])[name] == 1
    rig.now_ms += 1_000
    rig.apply(lambda machine, now: machine.tick(now))
    rig.settle()
    assert collect([rig.machine])[name] == 0


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log.open(T0, LogLoader(tmp_path / "t-0", log_config(), now_ms=0))


def replica(log: Log, *, index: int = 0, is_leader: bool = True, stable: int = 0) -> Partition:
    fields = {"high_watermark": log.log_end_offset, "last_stable_offset": stable, "is_leader": is_leader}
    return cast(Partition, SimpleNamespace(partition=TopicPartition("t", index), log=log, **fields))


def test_a_silent_transaction_is_late_and_holds_back_the_last_stable_offset(log: Log, tmp_path: Path) -> None:
    idle = replica(Log.open(T0, LogLoader(tmp_path / "t-1", log_config(), now_ms=0)))
    assert collect(replicas=[replica(log)])[LATE] == 0
    # Its records have the timestamp 0.
    write(log, 0, 3)
    for now_ms, late in ((900_000 + LATE_AFTER_MS, 0), (900_000 + LATE_AFTER_MS + 1, 1)):
        samples = collect(replicas=[idle, replica(log, stable=2)], now_ms=now_ms)
        assert (samples[LATE], samples[f"{LAG} t 0"]) == (late, 1)
    assert f"{LAG} t 0" not in collect(replicas=[replica(log, is_leader=False)])
    assert f"{LAG} t 0" not in collect(replicas=[replica(log, stable=3)])
    for max_series in range(3):
        samples = collect(replicas=[replica(log, index=index) for index in range(3)], max_series=max_series)
        assert sum(name.startswith(LAG) for name in samples) == max_series
    end(log, MarkerType.COMMIT)
    samples = collect(replicas=[replica(log, stable=4)])
    assert samples[LATE] == 0
    assert f"{LAG} t 0" not in samples
