"""The cluster for programs, without processes: arguments, and what importing the package costs."""

import subprocess
import sys
from typing import Any

import pytest

import barnabas
from barnabas.deploy.process import DeployError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"brokers": 0}, "brokers=0: expected a whole number, 1 or more"),
        ({"brokers": True}, "brokers=True: expected a whole number, 1 or more"),
        ({"settings": ["a=1"]}, r"settings=\['a=1'\]: expected a mapping"),
        ({"settings": {"min.insync.replica": 2}}, "'2'; did you mean min.insync.replicas?"),
        ({"settings": {"min.insync.replicas": "two"}}, "='two': expected a whole number"),
        ({"settings": {"log.dirs": "/x"}}, "log.dirs differs from broker to broker; the cluster sets it"),
        ({"security": "ssl"}, "security='ssl': expected one of off, tls, plain, plain"),
        ({"links": "no"}, "links='no': expected True or False"),
        ({"directory": 5}, "directory=5: expected a path"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_starts(given: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        barnabas.local_cluster(**given)


def test_settings_may_be_numbers_and_truths() -> None:
    barnabas.local_cluster(settings={"min.insync.replicas": 2, "auto.create.topics.enable": False})


def test_a_cluster_that_was_not_started_says_so() -> None:
    cluster = barnabas.local_cluster()
    for use in (lambda: cluster.bootstrap_servers, cluster.controller, lambda: cluster.killed(1)):
        with pytest.raises(DeployError, match="use it in a `with` block, or call start"):
            use()
    cluster.close()


def test_importing_the_package_imports_only_the_choice_of_the_compiled_core() -> None:
    script = "import sys, barnabas; print(*(name for name in sys.modules if name.startswith('barnabas.')))"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == ["barnabas.common", "barnabas.common.compiled_core"]
