from contextlib import closing
from sqlite3 import connect

import pytest

from agentstreamd.events import (
    BlobNotFound,
    BlobOffsetOutOfRange,
    EventLogConfig,
    InvalidPageCursor,
    SessionNotFound,
    SqliteEventLog,
    writer,
)
from agentstreamd.events.garbage import collect
from agentstreamd.events.log import blob_value_key
from tests.unit.events.helpers import opened, records, rows

MIB = 1 << 20
NEVER_SECONDS = 3600.0


async def blob(
    log: SqliteEventLog, session: str, blob_id: str, offset: int = 0, limit: int | None = None
) -> bytes:
    return b"".join([p async for p in log.read_blob(session, blob_id, offset=offset, limit=limit)])


async def test_values_are_kept_per_session_and_replaced_by_later_ones(log: SqliteEventLog) -> None:
    await log.create_session("a", "u", puts={"k": b"1"})
    await log.create_session("b", "u")
    assert await log.get("a", "k") == b"1"
    assert await log.get("b", "k") is None
    await log.append("a", 0, [], puts={"k": b""})
    assert await log.get("a", "k") == b""
    await log.append("a", 0, [], puts={"k": b"3"}, deletes=["k"])
    assert await log.get("a", "k") == b"3"
    await log.append("a", 0, [], deletes=["k", "never set"])
    assert await log.get("a", "k") is None
    with pytest.raises(SessionNotFound):
        await log.get("c", "k")


async def test_a_prefix_is_taken_as_written(log: SqliteEventLog) -> None:
    keys = ["q/%", "q/1", "q/_", "q/\U0010ffff", "q/\u00e9", "q0", "Q/1", "p"]
    await log.create_session("s", "u", puts={key: key.encode() for key in keys})
    assert list(await log.get_prefix("s", "q/")) == sorted(keys[:5])
    assert await log.get_prefix("s", "q/%") == {"q/%": b"q/%"}
    assert await log.get_prefix("s", "zz") == {}
    with pytest.raises(SessionNotFound):
        await log.get_prefix("nowhere", "")


async def test_pages_follow_creation_and_stay_right_while_sessions_come_and_go(
    log: SqliteEventLog,
) -> None:
    names = [f"{n * 7919 % 100:02}" for n in range(20)]
    for name in names:
        await log.create_session(name, name + "uid", puts={"k": name.encode()})
    await log.append(names[1], 0, records(1, 3))

    page = await log.list_sessions(limit=5, key="k")
    assert [info.session_id for info in page.sessions] == names[:5]
    assert [info.value for info in page.sessions] == [name.encode() for name in names[:5]]
    assert [info.latest for info in page.sessions] == [0, 3, 0, 0, 0]
    assert page.sessions[0].uid == names[0] + "uid"

    await log.delete_session(names[4])  # the one the cursor stands on
    await log.delete_session(names[6])
    await log.create_session("new", "u")
    await log.create_session(names[0] + "x", "u")
    got = []
    while page.next_cursor:
        page = await log.list_sessions(after=page.next_cursor, limit=4)
        got += [info.session_id for info in page.sessions]
    assert got == [names[5], *names[7:], "new", names[0] + "x"]


@pytest.mark.parametrize("cursor", ["s", "5", "s-1", "sxyz", "s 1", "s\u0661", "s" + "1" * 40])
async def test_a_cursor_that_the_log_never_gave_is_refused(
    log: SqliteEventLog, cursor: str
) -> None:
    with pytest.raises(InvalidPageCursor):
        await log.list_sessions(after=cursor)


async def test_scan_gives_the_sessions_that_have_the_key(log: SqliteEventLog) -> None:
    for n in range(1203):
        creation = log.create_session(f"s{n}", "u", puts={"k": b"%d" % n} if n % 2 else {})
    await creation
    found = [(info.session_id, info.value) async for info in log.scan("k")]
    assert found == [(f"s{n}", b"%d" % n) for n in range(1, 1203, 2)]


async def test_bounds_are_those_of_the_session_after_reopening(config: EventLogConfig) -> None:
    async with opened(config) as log:
        for name in ("a", "b", "c"):
            await log.create_session(name, "u")
        await log.append("b", 0, records(1, 12))
    async with opened(config) as log:
        page = await log.list_sessions()
        assert [(i.earliest, i.latest) for i in page.sessions] == [(1, 0), (1, 12), (1, 0)]
        assert await log.append("b", 12, records(13, 1)) == 13


async def test_a_blob_is_read_back_in_pieces_from_any_offset(log: SqliteEventLog) -> None:
    data = bytes(range(256)) * 2600  # two pieces and a half
    await log.create_session("s", "u")
    await log.append("s", 0, records(1, 1), blobs=[("b", data), ("empty", b"")])
    assert await log.blob_size("s", "b") == len(data)
    pieces = [piece async for piece in log.read_blob("s", "b")]
    assert [len(piece) for piece in pieces] == [MIB // 4, MIB // 4, len(data) - MIB // 2]
    assert b"".join(pieces) == data
    for offset, limit in ((1, 10), (MIB // 4 - 1, 2), (MIB // 4, None), (len(data), 5), (3, 0)):
        end = len(data) if limit is None else offset + limit
        assert await blob(log, "s", "b", offset, limit) == data[offset:end]
    assert await blob(log, "s", "empty") == b""


async def test_blobs_that_are_not_there_and_offsets_beyond_the_end_are_refused(
    log: SqliteEventLog,
) -> None:
    await log.create_session("s", "u")
    await log.append("s", 0, [], blobs=[("b", b"12345")])
    with pytest.raises(BlobNotFound):
        await log.blob_size("s", "c")
    with pytest.raises(BlobNotFound):
        await blob(log, "s", "c")
    with pytest.raises(SessionNotFound):
        await blob(log, "t", "b")
    for offset in (-1, 6):
        with pytest.raises(BlobOffsetOutOfRange) as caught:
            await blob(log, "s", "b", offset)
        assert caught.value.size == 5


async def test_a_blob_keeps_its_first_content(log: SqliteEventLog, config: EventLogConfig) -> None:
    await log.create_session("s", "u")
    first = log.append("s", 0, records(1, 1), blobs=[("b", b"first"), ("b", b"again")])
    second = log.append("s", 1, records(2, 1), blobs=[("b", b"second")])
    await first
    await second
    await log.append("s", 2, records(3, 1), blobs=[("b", b"third")])
    assert await blob(log, "s", "b") == b"first"
    assert rows(config.directory, "SELECT sequence, size FROM blobs") == [(3, 5)]


async def test_compaction_takes_the_blobs_of_the_events_it_drops(config: EventLogConfig) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u")
        for n in range(3):
            await log.append("s", n, records(n + 1, 1, size=10_000), blobs=[(f"b{n}", b"data")])
        await log.append("s", 3, [], blobs=[("b0", b"data")])  # still in use
        assert await log.compact("s", 3) == 3
        await log.create_session("after", "u")
    async with opened(config) as log:
        # What is left to clear away is cleared away while nothing else is asked for.
        while rows(config.directory, "SELECT * FROM garbage"):
            await log.info("s")
    assert rows(config.directory, "SELECT blob_id FROM blobs ORDER BY 1") == [("b0",), ("b2",)]
    assert len(rows(config.directory, "SELECT id FROM blob_pieces")) == 2


async def test_content_that_is_stored_again_while_it_is_cleared_away_is_whole(
    config: EventLogConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 4096 * 5
    monkeypatch.setattr(writer, "_REST", NEVER_SECONDS)  # this test clears away itself
    async with opened(config) as log:
        await log.create_session("s", "u")
        for n in range(2):
            blobs = [("b", content)] if n == 0 else []
            await log.append("s", n, records(n + 1, 1, size=10_000), blobs=blobs)
        assert await log.compact("s", 2) == 2
        pieces = rows(config.directory, "SELECT count(*) FROM blob_pieces")
        with closing(connect(config.directory / "events.db", isolation_level=None)) as other:
            while rows(config.directory, "SELECT count(*) FROM blob_pieces") == pieces:
                assert collect(other)
        with pytest.raises(BlobNotFound):
            await log.blob_size("s", "b")
        monkeypatch.setattr(writer, "_REST", 0)
        await log.append("s", 2, records(3, 1), blobs=[("b", content)])
        assert await blob(log, "s", "b") == content
        while rows(config.directory, "SELECT * FROM garbage"):
            await log.info("s")
        assert await blob(log, "s", "b") == content
        assert rows(config.directory, "SELECT count(*) FROM blob_pieces") == pieces
    async with opened(config) as log:
        assert await blob(log, "s", "b") == content


async def test_what_describes_a_blob_goes_with_it(config: EventLogConfig) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u", puts={"other": b"stays"})
        for n in range(3):
            name = f"b{n}"
            await log.append(
                *("s", n, records(n + 1, 1, size=10_000)),
                puts={blob_value_key(name): b"the end of it"},
                blobs=[(name, b"data")],
            )
        assert await log.compact("s", 3) == 3
        while rows(config.directory, "SELECT * FROM garbage"):
            await log.info("s")
        assert list(await log.get_prefix("s", "")) == [blob_value_key("b2"), "other"]


async def test_a_deleted_session_leaves_nothing_behind(config: EventLogConfig) -> None:
    tables = ("chunks", "state", "blobs", "blob_pieces", "garbage")
    async with opened(config) as log:
        await log.create_session("kept", "u", puts={"k": b"v"}, records=records(1, 3))
        await log.append("kept", 3, [], blobs=[("b", b"data")])
        await log.create_session("gone", "u", puts={f"k{n}": b"v" for n in range(600)})
        for n in range(50):
            await log.append("gone", n, records(n + 1, 1, size=9000))
        await log.append("gone", 50, [], blobs=[("b", b"d" * 6 * MIB), ("c", b"d")])
        await log.delete_session("gone")
        with pytest.raises(SessionNotFound):
            await log.get("gone", "k1")
        while rows(config.directory, "SELECT * FROM garbage"):
            await log.info("kept")
        counts = [rows(config.directory, f"SELECT count(*) FROM {table}")[0][0] for table in tables]
        assert counts == [1, 1, 1, 1, 0]
        assert await log.get("kept", "k") == b"v"
        assert await blob(log, "kept", "b") == b"data"


async def test_a_session_deleted_in_the_commit_that_made_it_leaves_nothing(
    config: EventLogConfig,
) -> None:
    async with opened(config) as log:
        await log.create_session("first", "u")
        changes = [
            log.create_session("s", "one", puts={"k": b"v"}, records=records(1, 2)),
            log.append("s", 2, records(3, 1), blobs=[("b", b"data")]),
            log.delete_session("s"),
            log.create_session("s", "two"),
            log.append("s", 0, records(1, 1)),
        ]
        assert [await change for change in changes] == [2, 3, 3, 0, 1]
        assert (await log.info("s")).uid == "two"
    assert len(rows(config.directory, "SELECT * FROM chunks")) == 1
    assert rows(config.directory, "SELECT session FROM state UNION ALL SELECT key FROM blobs") == []


async def test_sessions_are_found_by_a_prefix_of_their_keys(log: SqliteEventLog) -> None:
    await log.create_session("a", "u", puts={"q/1": b"1", "q/2": b"2", "r": b""})
    await log.create_session("b", "u", puts={"q": b"", "q0": b"", "p/1": b""})
    await log.create_session("c", "u", puts={"q/\U0010ffff": b"1"})
    assert await log.having("q/") == {"a", "c"}
    assert await log.having("q") == {"a", "b", "c"}
    assert await log.having("s") == set()
    await log.append("a", 0, [], deletes=["q/1", "q/2"])
    assert await log.having("q/") == {"c"}
