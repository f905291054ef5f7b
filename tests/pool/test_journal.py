"""The journal on disk: same state after a restart, torn tails, reclaimed space, a disk that refuses."""

import logging
import resource
from pathlib import Path

import msgspec
import pytest

from rlctl.errors import RlctlError
from rlctl.pool.commits import encode_state
from rlctl.pool.ended import EndedLog
from rlctl.pool.storage.journal import Durable, Journal, record
from rlctl.pool.storage.segments import AHEAD, VECTOR, Segments, StorageError
from rlctl.pool.store import Event, Store
from rlctl.wire import frames
from rlctl.wire.messages import (
    Ack,
    CompleteTrajectory,
    FetchBatch,
    OpenGroup,
    SetPolicyVersion,
    SubmitSteps,
)
from rlctl.wire.samples import Ended, Trajectory
from rlctl.wire.sockets import decode_request
from tests.pool.conftest import Open
from tests.pool.make import rules, step

STORY: list[tuple[Event, float]] = [
    (OpenGroup("a", ["a.0", "a.1"]), 1.0),
    (SubmitSteps([step("a.0"), step("a.1")]), 2.0),
    (CompleteTrajectory("a.0", 1, reward=1.0), 3.0),
    (CompleteTrajectory("a.1", 1, reward=0.0), 3.5),
    (SubmitSteps([step("b", 0, version=1), step("b", 1, version=1)]), 4.0),
    (FetchBatch(1, lease="L", lease_s=100), 5.0),
    (Ack("nonsense", {"a.0": "eaten"}), 6.0),
    (CompleteTrajectory("c", 0, status="failed"), 6.5),
    (SetPolicyVersion(1), 7.0),
]


def play(store: Store, journal: Durable, events: list[tuple[Event, float]]) -> None:
    for event, now in events:
        journal.append([record(event, now)])
        try:
            store.apply(event, now)
        except RlctlError:
            continue


def test_a_recovered_store_is_the_store_that_crashed(open_journal: Open) -> None:
    journal = open_journal()
    store = journal.recover(rules())
    play(store, journal, STORY)
    journal.close()
    again = open_journal().recover(rules())
    assert again.state == store.state
    assert again.statistics() == store.statistics()
    assert list(again.state.leases) == ["L"], "the lease holds: its owner may be alive and training on it"
    again.advance(105.0)
    assert again.statistics()["queue_ready"] == 1, "and is given back when it runs out"


@pytest.mark.parametrize("cut_after", range(len(STORY)))
def test_a_snapshot_at_any_moment_changes_nothing_and_frees_the_space_before_it(
    open_journal: Open, cut_after: int
) -> None:
    journal = open_journal()
    store = journal.recover(rules())
    play(store, journal, STORY[:cut_after])
    journal.snapshot(encode_state(store.state), journal.cut())
    play(store, journal, STORY[cut_after:])
    behind = sum(len(b"".join(record(event, now))) for event, now in STORY[cut_after:])
    assert journal.since_snapshot == behind
    journal.close()
    if isinstance(journal, Journal):
        assert len(frames.files(journal.directory, "journal")) == 1
    journal = open_journal()
    assert journal.recover(rules()).state == store.state
    assert journal.since_snapshot == behind
    journal.snapshot(encode_state(store.state), journal.cut())
    journal.close()
    assert open_journal().recover(rules()).state == store.state


def test_a_snapshot_that_goes_to_disk_in_parts_is_the_whole_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlctl.pool.storage.journal.PACE", 100)
    journal = Journal(tmp_path)
    store = journal.recover(rules())
    play(store, journal, STORY)
    assert len(encode_state(store.state)) > 300
    journal.snapshot(encode_state(store.state), journal.cut())
    journal.close()
    assert Journal(tmp_path).recover(rules()).state == store.state


def test_a_torn_tail_is_cut_at_every_length_with_a_warning_that_counts_the_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = [b"".join(record(event, now)) for event, now in STORY[:2]]
    for keep in range(len(whole[1])):
        file = frames.path(tmp_path, "journal", 0)
        file.write_bytes(whole[0] + whole[1][:keep])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            journal = Journal(tmp_path)
        assert len(journal.recover(rules()).state.trajectories) == 2
        assert file.stat().st_size == len(whole[0])
        torn = len(whole[1][:keep].rstrip(b"\0"))  # a zero at its end looks like those written ahead
        assert (f"cut {torn} bytes" in caplog.text) == (torn > 0)
        journal.append([record(*STORY[1])])
        journal.close()
        journal = Journal(tmp_path)
        assert journal.recover(rules()).statistics()["steps"] == 2
        journal.close()


def test_a_tail_of_zeros_is_no_record(tmp_path: Path) -> None:
    file = frames.path(tmp_path, "journal", 0)
    file.write_bytes(b"".join(record(*STORY[0])) + bytes(64))
    assert len(Journal(tmp_path).recover(rules()).state.trajectories) == 2


def test_damage_before_the_last_file_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    play(journal.recover(rules()), journal, STORY[:3])
    journal.segments.rotate()
    journal.append([record(*STORY[3])])
    journal.close()
    first = frames.files(tmp_path, "journal")[0][1]
    damaged = bytearray(first.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    first.write_bytes(damaged)
    with pytest.raises(StorageError, match="damaged or missing records"):
        Journal(tmp_path).recover(rules())


def test_a_half_written_snapshot_is_ignored(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    store = journal.recover(rules())
    play(store, journal, STORY)
    journal.segments.rotate()
    journal.close()
    (tmp_path / f"snapshot-{journal.segments.end:016d}.tmp").write_bytes(b"half")
    assert Journal(tmp_path).recover(rules()).state == store.state


def test_a_disk_that_refuses_keeps_nothing_of_the_append_and_can_go_on(tmp_path: Path) -> None:
    segments = Segments(tmp_path, "journal")
    segments.append([frames.pieces(b"kept")], sync=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # the write stops in the middle, then fails
    try:
        with pytest.raises(StorageError, match=r"cannot write .* bytes to .*: File too large"):
            segments.append([frames.pieces(b"lost" * 100)], sync=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    segments.append([frames.pieces(b"after")], sync=True)
    assert list(segments.read(0)) == [b"kept", b"after"]


def test_zeros_ahead_of_the_records_are_no_records_and_go_with_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segments = Segments(tmp_path, "journal")
    for number in range(3):
        segments.append([frames.pieces(b"%d" % number)], sync=True)
    file = tmp_path / "journal-0000000000000000.log"
    assert file.stat().st_size > AHEAD
    killed = Segments(tmp_path, "journal")  # as after SIGKILL: the zeros are still there
    assert (killed.end, file.stat().st_size, caplog.records) == (segments.end, segments.end, [])
    killed.append([frames.pieces(b"3")], sync=True)
    killed.close()
    assert file.stat().st_size == killed.end
    assert list(Segments(tmp_path, "journal").read(0)) == [b"0", b"1", b"2", b"3"]


def test_a_record_torn_within_the_zeros_is_cut_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segments = Segments(tmp_path, "journal")
    segments.append([frames.pieces(b"kept")], sync=True)
    with (tmp_path / "journal-0000000000000000.log").open("r+b") as file:
        file.seek(segments.end)
        file.write(frames.frame(b"torn" * 100)[:150])
    again = Segments(tmp_path, "journal")
    assert list(again.read(0)) == [b"kept"]
    assert "cut 150 bytes" in caplog.text


def test_a_disk_without_room_for_zeros_takes_records_to_its_end(tmp_path: Path) -> None:
    segments = Segments(tmp_path, "journal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for _ in range(9):
            segments.append([frames.pieces(b"x" * 100)], sync=True)
        with pytest.raises(StorageError, match="File too large"):
            segments.append([frames.pieces(b"x" * 100)], sync=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(segments.read(0)) == [b"x" * 100] * 9


def test_more_records_than_one_system_call_takes_are_written_in_order(tmp_path: Path) -> None:
    segments = Segments(tmp_path, "journal")
    segments.append([frames.pieces(b"%d" % number, memoryview(b"-tail")) for number in range(VECTOR)], sync=True)
    assert list(segments.read(0)) == [b"%d-tail" % number for number in range(VECTOR)]


def test_a_message_is_journaled_as_it_was_received(open_journal: Open) -> None:
    """The bytes say the same in another order of keys than ours: no encoder of this pool wrote them."""
    sent = msgspec.msgpack.encode(
        {"num_steps": 0, "status": "failed", "trajectory_uid": "t", "type": "CompleteTrajectory"}
    )
    event = decode_request(memoryview(sent))
    assert isinstance(event, CompleteTrajectory)
    journal = open_journal()
    journal.append([record(event, 1.0, memoryview(sent))])
    assert sent in b"".join(record(event, 1.0, memoryview(sent)))
    assert sent not in b"".join(record(event, 1.0))
    journal.close()
    assert open_journal().recover(rules()).statistics()["train.failed"] == 1


def test_two_pools_on_one_directory_are_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(RlctlError, match="another pool is running"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


# ---------------------------------------------------------------- the log of the ended


def ended(number: int) -> Ended:
    return Ended(number, "trained", Trajectory(f"t{number}", "p", "train", [step(f"t{number}")]))


def test_what_a_replay_ends_again_is_logged_once(tmp_path: Path) -> None:
    log = EndedLog(tmp_path, 1 << 20)
    log.write([ended(1), ended(2)])
    log.close()
    log = EndedLog(tmp_path, 1 << 20)
    log.write([ended(1), ended(2), ended(3)])
    assert [one.number for _, one in frames.read_ended(tmp_path)] == [1, 2, 3]


def test_the_ended_are_read_page_by_page_across_files_and_the_oldest_go_first(tmp_path: Path) -> None:
    size = len(frames.frame(b"")) + 150
    log = EndedLog(tmp_path, 16 * 4 * size)
    for number in range(1, 201):
        log.write([ended(number)])
    kept = [one.number for _, one in frames.read_ended(tmp_path)]
    assert kept == list(range(kept[0], 201))
    assert 1 < kept[0] < 180
    pages, cursor = [], 0
    while (page := log.read(cursor, 7)).trajectories:
        pages += [t.uid for t in page.trajectories]
        cursor = page.cursor
    assert pages == [f"t{n}" for n in kept]
