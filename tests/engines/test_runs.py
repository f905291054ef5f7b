"""Rows of a pass, cut into runs that attention can look at without a copy."""

from hypothesis import given
from hypothesis import strategies as st

from rlctl.engines.embedded.kv import RUN_TOKENS, Run, cut_runs

rows_and_lengths = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 600)), min_size=1, max_size=40).map(
    lambda steps: ([sum(step for step, _ in steps[: i + 1]) for i in range(len(steps))], [n for _, n in steps])
)


@given(rows_and_lengths)
def test_runs_hold_every_row_once_in_order_and_see_far_enough(case: tuple[list[int], list[int]]) -> None:
    rows, lengths = case
    runs = cut_runs(rows, lengths)
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])] and runs[-1].stop == len(rows)
    for run in runs:
        assert rows[run.start : run.stop] == list(range(run.row, run.row + run.stop - run.start))
        assert run.length == max(lengths[run.start : run.stop])


def test_a_row_that_is_left_out_begins_a_run() -> None:
    assert cut_runs([2, 3, 5], [10, 10, 10]) == [Run(0, 2, 2, 10), Run(2, 3, 5, 10)]


def test_a_much_longer_row_begins_a_run_and_a_little_padding_does_not() -> None:
    assert cut_runs([0, 1], [10, 11]) == [Run(0, 2, 0, 11)]
    assert cut_runs([0, 1], [10, 11 + RUN_TOKENS]) == [Run(0, 1, 0, 10), Run(1, 2, 1, 11 + RUN_TOKENS)]
    assert cut_runs([0, 1], [11 + RUN_TOKENS, 10]) == [Run(0, 1, 0, 11 + RUN_TOKENS), Run(1, 2, 1, 10)]
