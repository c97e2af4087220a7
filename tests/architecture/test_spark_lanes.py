"""The line that a lane of `make spark-lanes` prints."""

from tests.spark.lanes import summary

_REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><skipped message="needs PySpark 4.2"/></testcase>
<testcase name="d"><skipped message="needs PySpark 4.2"/></testcase>
<testcase name="e"><skipped message="no archives"/></testcase>
{}
</testsuite></testsuites>"""


def test_skipped_tests_are_counted_by_reason() -> None:
    assert summary(_REPORT.format("")) == "2 passed, 3 skipped (2x needs PySpark 4.2; 1x no archives)"


def test_a_failed_test_and_an_error_of_a_fixture_have_failed() -> None:
    more = '<testcase name="f"><failure/></testcase><testcase name="g"><error/></testcase>'
    assert summary(_REPORT.format(more)).startswith("2 passed, 2 failed, 3 skipped (")


def test_a_lane_without_tests_says_so() -> None:
    assert summary("<testsuites><testsuite/></testsuites>") == "no tests"
