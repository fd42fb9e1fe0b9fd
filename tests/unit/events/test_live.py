from agentstreamd.events.frames import build_chunks
from agentstreamd.events.jobs import Appended, Compacted, Deleted
from agentstreamd.events.live import LiveSessions, Session
from agentstreamd.events.pages import PageCache
from tests.unit.events.helpers import records


def appended(session: str, first: int, count: int, *, size: int = 1000) -> Appended:
    chunks = build_chunks(first, records(first, count, size=size), 10**6)
    return Appended(session, "u", hash(session), 1, chunks)


def held(live: LiveSessions, *names: str) -> int:
    sessions = [live.get(name) for name in names]
    return sum(s.tail_bytes for s in sessions if s is not None)


def test_a_tail_keeps_the_newest_chunks_within_its_bound() -> None:
    live = LiveSessions(10_000, 10**6)
    for first in range(1, 101):
        live.apply(appended("s", first, 1), now=first)
        session = live.get("s")
        assert session is not None
        assert session.tail
        assert session.tail[-1].last == session.latest == first
        assert session.find(first) is session.tail[-1]
        assert live.tail_bytes == session.tail_bytes <= 10_000
        assert all(session.find(c.first) is c for c in session.tail)
        assert session.find(session.tail[0].first - 1) is None
        assert session.find(first + 1) is None
    assert held(live, "s") > 3000


def test_all_tails_together_stay_within_their_bound_and_the_idlest_goes_first() -> None:
    live = LiveSessions(10_000, 20_000)
    for n in range(20):
        live.apply(appended(f"s{n}", 1, 5), now=n)
        live.apply(appended("busy", n + 1, 1), now=n)
        assert live.tail_bytes <= 20_000 + 6000
        assert live.tail_bytes == held(live, "busy", *(f"s{n}" for n in range(20)))
    assert "busy" in live
    assert "s19" in live
    assert "s0" not in live


def test_idle_sessions_leave_unless_they_are_read() -> None:
    live = LiveSessions(10_000, 10**6)
    for n, name in enumerate(("a", "b", "c")):
        live.apply(appended(name, 1, 1), now=n)
    read = live.get("a")
    assert read is not None
    read.readers += 1
    before = live.departures
    live.drop_idle(before=2)
    assert [name in live for name in ("a", "b", "c")] == [True, False, True]
    assert live.departures == before + 1
    assert read.tail is None
    live.release(read)
    assert "a" not in live
    assert live.tail_bytes == held(live, "c")


def test_an_append_the_session_was_loaded_with_already_does_not_move_it_back() -> None:
    live = LiveSessions(10_000, 10**6)
    live.add(Session("s", "u", 1, 1, 9))
    live.apply(appended("s", 1, 5), now=0)
    session = live.get("s")
    assert session is not None
    assert session.latest == 9
    assert session.find(6) is None
    live.apply(appended("s", 6, 6), now=0)
    assert session.latest == 11


def test_compaction_and_deletion_drop_what_is_held() -> None:
    live = LiveSessions(10**6, 10**6)
    for first in (1, 3, 5):
        live.apply(appended("s", first, 2), now=0)
    session = live.get("s")
    assert session is not None
    live.apply(Compacted("s", 5), now=0)
    assert session.tail is not None
    assert [chunk.first for chunk in session.tail] == [5]
    assert (session.earliest, session.find(4)) == (5, None)
    live.apply(Deleted("s"), now=0)
    assert session.deleted
    assert (len(live), live.tail_bytes, session.tail_bytes) == (0, 0, 0)


def test_the_page_cache_is_bounded_and_finds_by_place() -> None:
    pages = PageCache(10_000)
    for first in range(1, 101, 2):
        (chunk,) = build_chunks(first, records(first, 2, size=1000), 10**6)
        pages.put(1, chunk, False)
        assert pages.bytes <= 10_000
        for sequence in (first, first + 1):
            assert pages.find(1, sequence, False) is chunk
            assert pages.find(1, sequence, True) is None
            assert pages.find(2, sequence, False) is None
        assert pages.find(1, first + 2, False) is None
    assert pages.find(1, 1, False) is None
    (longer,) = build_chunks(99, records(99, 3, size=1000), 10**6)
    pages.put(1, longer, False)
    assert pages.find(1, 101, False) is longer
    assert pages.bytes <= 10_000
