"""Every client at every feature, unmodified: the outcome must be what docs/compatibility.md says."""

import pytest

from barnabas.deploy.local import LocalCluster

from ..cluster.transaction_level import finalised
from . import (
    group_features,  # noqa: F401 - it adds its rows
    table,
    transaction_features,  # noqa: F401 - it adds its rows
)
from .clients import CLIENTS, Unsupported
from .conftest import EXTERNAL
from .extent import FULLY, is_full
from .features import CORE, FEATURES, Bench, NeedsBarnabas

AT_LEVEL_0 = [name for name in CLIENTS if name != "kafka-python" or is_full()]
"""Without the slowest one."""
pytestmark = pytest.mark.timeout(420)


def features_of(client: str) -> list[str]:
    """The features that this run tries a client at."""
    return [name for name in FEATURES if name in CORE or client in FULLY or is_full()]


def cell_of(bench: Bench, feature: str) -> str:
    try:
        return FEATURES[feature](bench) or "yes"
    except Unsupported:
        return table.NOT_THERE
    except NeedsBarnabas:
        pytest.skip("needs Barnabas' own client, and COMPAT_BOOTSTRAP names another cluster")


@pytest.mark.parametrize(
    ("bench", "feature"),
    [(client, feature) for client in CLIENTS for feature in features_of(client)],
    indirect=["bench"],
)
def test_a_client_at_a_feature(bench: Bench, feature: str) -> None:
    cell = cell_of(bench, feature)
    if not EXTERNAL:
        table.check(table.FEATURES, feature, bench.driver.name, cell)


@pytest.mark.parametrize("bench", AT_LEVEL_0, indirect=True)
def test_a_clients_transactions_before_their_upgrade(bench: Bench, compat_cluster: LocalCluster) -> None:
    """They are the same in a cluster of an older version."""
    tried = [name for name in features_of(bench.driver.name) if name.startswith("transactions:")]
    with finalised(compat_cluster, 0):
        cells = {feature: cell_of(bench, feature) for feature in tried}
    rows = table.read(table.PAGE.read_text(encoding="utf-8"), table.FEATURES)
    assert cells == {feature: rows[feature][bench.driver.name] for feature in tried}


def test_the_table_has_no_row_that_is_not_tried() -> None:
    from .test_failover import ROW
    from .test_group_failover import ROW as GROUP_ROW

    rows = table.read(table.PAGE.read_text(encoding="utf-8"), table.FEATURES)
    assert list(rows) == [*FEATURES, ROW, GROUP_ROW]
    assert all(list(cells) == list(CLIENTS) for cells in rows.values())


def test_a_table_is_read_as_it_was_written() -> None:
    before = (
        "# x\n<!-- features: made by python -m tests.compat.table -->\nold\n<!-- end of features -->\nafter\n"
    )
    rows = {"a row": {"one": "yes", "two": table.NOT_THERE}, "another": {"one": "no", "two": "yes"}}
    after = table.write(before, table.FEATURES, rows, ["one", "two"], "")
    assert table.read(after, table.FEATURES) == rows
    assert after.startswith("# x\n")
    assert after.endswith("\nafter\n")
    with pytest.raises(ValueError, match="no marks"):
        table.write("# x", table.FEATURES, rows, ["one", "two"], "")
