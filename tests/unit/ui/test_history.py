"""The history of the live page is bounded, and its pages hear of what it drops."""

from barnabas.ui.history import History


def test_the_series_of_groups_that_are_gone_give_way_to_new_ones() -> None:
    """Series were kept for ever, and the lag of the 65th name never had a line."""
    history = History()
    page: set[str] = set()
    for generation in range(4):
        lags = {f"lag:{generation}-{number}": ("records", 1.0) for number in range(30)}
        history.extend_series(lags, 500 * generation)
        fresh = history.take_fresh()
        assert fresh["series"].keys() == lags.keys()
        page = (page | fresh["series"].keys()) - {*fresh.get("gone", {}).get("series", ())}
    assert len(page) <= 64
    assert history.whole()["series"].keys() == page
    history.extend_series({"new": ("records", 1.0)}, 700_000)
    assert history.whole()["series"].keys() == {"new"}, "nothing was heard of the others for ten minutes"


def test_a_page_gets_each_entry_once_and_all_of_them_with_the_whole_state() -> None:
    history = History()
    for number in range(600):
        history.add("marks", {"text": str(number)})
        history.gap(f"g{number % 550}", number, None, "")
    history.gap("g0", 0, 7, "ended")
    fresh = history.take_fresh()
    assert (len(fresh["marks"]), len({mark["id"] for mark in fresh["marks"]})) == (600, 600)
    assert history.take_fresh() == {}
    whole = history.whole()
    assert [mark["text"] for mark in whole["marks"]] == [str(number) for number in range(100, 600)]
    assert len(whole["gaps"]) == 500
    history.gap("g549", 0, 9, "ended")
    assert history.take_fresh() == {"gaps": [{"id": "g549", "start_ms": 0, "end_ms": 9, "text": "ended"}]}
