"""Which seeds are played next."""

from itertools import pairwise

from rlctl.sftgen.blocks import BLOCK_S, FIRST, LARGEST, SMALLER, Blocks
from rlctl.sftgen.rows import Record
from rlctl.sftgen.sink import Sink


def written(sink: Sink, seeds: range) -> None:
    for seed in seeds:
        sink.take(Record("", "sft", f"board {seed}", b"row\n"))


def sizes(sink: Sink, blocks: Blocks, seconds_a_seed: float) -> list[int]:
    """Of all blocks, each played and written before the next is made."""
    found = []
    while block := blocks.next():
        found.append(block.seeds)
        blocks.played(block.seeds, seconds_a_seed * block.seeds)
        written(sink, range(block.first, block.first + block.seeds))
        blocks.taken(block.seeds)
    return found


def test_blocks_follow_one_another_and_end_where_the_seeds_do() -> None:
    blocks = Blocks(5, 700, Sink({"sft": 10_000}), 2)
    made = [block for _ in range(200) if (block := blocks.next())]
    assert made[0].first == 5 and made[-1].first + made[-1].seeds == 700
    assert all(one.first + one.seeds == two.first for one, two in pairwise(made))
    assert blocks.next() is None


def test_blocks_grow_with_cheap_seeds_and_become_small_towards_the_end() -> None:
    sink = Sink({"sft": 20_000})
    found = sizes(sink, Blocks(0, None, sink, 2), seconds_a_seed=1e-6)
    assert found[0] == FIRST and max(found) == LARGEST
    assert found[-1] == LARGEST // SMALLER and sum(found) < 20_000 + found[-1]
    ends = found[found.index(LARGEST) + found.count(LARGEST) :]
    assert ends == sorted(ends, reverse=True), "smaller and smaller"


def test_a_block_of_dear_seeds_takes_no_longer_than_it_should() -> None:
    sink = Sink({"sft": 100})
    found = sizes(sink, Blocks(0, None, sink, 2), seconds_a_seed=BLOCK_S / 3)
    assert max(found[1:]) == 3


def test_what_is_due_counts_the_seeds_that_gave_nothing() -> None:
    sink = Sink({"sft": 100, "sft_test": 0})
    assert sink.seeds_due() > 1e9, "nothing is known"
    written(sink, range(10))
    for _ in range(30):
        sink.take(Record("unsolvable"))
    assert sink.seeds_due() == 360  # 90 more, one of four seeds
    written(sink, range(10, 100))
    assert sink.seeds_due() == 0


def test_a_worker_gets_no_more_than_its_share_of_what_nobody_has_played() -> None:
    sink = Sink({"sft": 1000})
    blocks = Blocks(0, None, sink, 2)
    written(sink, range(900))
    assert sink.seeds_due() == 100
    assert blocks.next(50) and blocks.next(51) is None
    blocks.played(40, 1.0)
    assert blocks.next(30) and blocks.next(31) is None
    assert blocks.next(), "who has nothing always gets some"
