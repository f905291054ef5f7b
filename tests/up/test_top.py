"""Rates and states in `rlctl top`."""

import time

from rlctl.up.live.top import counters, groups, per_second


def test_rates_are_growth_over_the_window_and_nothing_without_two_recent_rows() -> None:
    now = time.time()
    rows = [{"t": now - age, "requests": 1000 - 10 * age, "version": 3} for age in (60, 20, 10, 0)]
    assert per_second(rows, counters("gateway")) == {"requests": 10.0}
    assert per_second(rows[:1], counters("gateway")) == {}
    assert per_second([{**row, "t": row["t"] - 100} for row in rows], counters("gateway")) == {}, "silent since"
    assert counters("engine-1") == counters("engine")
    assert counters("eval") == {}


def test_a_counter_that_began_anew_has_no_rate() -> None:
    now = time.time()
    assert per_second([{"t": now - 5, "scored": 100}, {"t": now, "scored": 3}], counters("reward")) == {}


def test_every_group_in_flight_is_in_one_state() -> None:
    values = {"groups_in_flight": 9, "queue_ready": 2, "groups_on_lease": 7, "groups_held": 3}
    assert groups(values) == {"playing": 3, "ready": 2, "learning": 4, "held": 3}
    assert groups({}) == {"playing": 0, "ready": 0, "learning": 0, "held": 0}
