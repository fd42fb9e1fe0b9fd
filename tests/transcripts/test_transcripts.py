"""Recorded transcripts of agents, replayed: what they become, and that every law holds."""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, event_pb2, session_pb2
from agentstreamd.adapters.base import Adapter, ClientAction, Driver, DriverContext, Normalizer
from agentstreamd.laws import check
from agentstreamd.model import Draft, Kind
from agentstreamd.process import Line, OversizedLine
from tests.support.oddities import odd_message
from tools.transcripts import (
    ROOT,
    Process,
    Scenario,
    adapter_of,
    difference,
    read_expected,
    scenarios,
    to_json,
)

MAX_CUTS = 40
"""A transcript is cut after each line, or after so many of them."""

MUTATIONS = 6
"""In each transcript, so many messages are spoiled, one at a time."""

_DROPPED_BY_KEEPER = frozenset(
    {
        # Of a session that is so already, of a turn that is open, of a request that is resolved.
        Kind.SESSION_UPDATED,
        Kind.TURN_STARTED,
        Kind.PERMISSION_RESOLVED,
        Kind.QUESTION_RESOLVED,
        Kind.FORM_RESOLVED,
    }
)

_SECRET = re.compile(
    r"sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{12,}"
    r"|Bearer [A-Za-z0-9._-]{12,}|-----BEGIN|eyJ[A-Za-z0-9_-]{16,}\.eyJ"
)
_PERSONAL = re.compile(r"(?:/home/|/Users/|\\Users\\)(?!user\b)[A-Za-z0-9._-]+|/root/")


def test_replay_gives_the_expected_events(process: Process) -> None:
    expected = read_expected(process)
    assert expected, f"run: python -m tools.transcripts write {process.scenario.agent}"
    if found := difference(expected, _jsons(process.replay())):
        pytest.fail(f"{process.id}: {process.scenario.shows}\n{found}", pytrace=False)


def test_replay_is_deterministic(process: Process) -> None:
    once, again = (process.replay(include_raw=True) for _ in range(2))
    assert _jsons(once) == _jsons(again)


@pytest.mark.parametrize("include_raw", [False, True], ids=["plain", "raw"])
@pytest.mark.parametrize("with_client", [True, False], ids=["client", "agent_only"])
def test_the_laws_hold(process: Process, with_client: bool, include_raw: bool) -> None:
    events = process.replay(with_client=with_client, include_raw=include_raw)
    assert check(events, complete=True, raw=include_raw) == []


def test_the_laws_hold_wherever_the_transcript_breaks_off(process: Process) -> None:
    for number, lines in enumerate(_cuts(process.lines)):
        events = process.replay(lines=lines, with_client=number % 2 == 0)
        broken = check(events, complete=True, raw=False)
        assert broken == [], f"cut after {len(lines)} lines"


def test_the_laws_hold_where_the_transcript_begins_in_the_middle(process: Process) -> None:
    for number, cut in enumerate(_cuts(process.lines)):
        lines = process.lines[len(cut) :]
        events = process.replay(lines=lines, with_client=number % 2 == 0)
        broken = check(events, complete=True, raw=False)
        assert broken == [], f"begun after {len(cut)} lines"


@pytest.mark.parametrize("seed", range(MUTATIONS))
def test_the_laws_hold_when_a_message_says_something_odd(
    spoiled_process: Process, seed: int
) -> None:
    process = spoiled_process
    # Not hash(): that of a text differs from one run to the next.
    chance = random.Random(f"{process.id} {seed}")
    lines = list(process.lines)
    number = chance.randrange(len(lines))
    message = odd_message(_bytes(lines[number]), chance)
    lines[number] = message
    events = process.replay(lines=lines, with_client=bool(seed % 2))
    assert check(events, complete=True, raw=False) == [], f"line {number + 1}: {message!r}"


def test_a_line_that_breaks_off_is_unparsed(process: Process) -> None:
    whole = [line for line in process.lines if isinstance(line, bytes) and len(line) > 2]
    if not whole:
        pytest.skip("no line is a message")
    events = process.replay(lines=[*process.lines, whole[-1][:-1]])
    assert check(events, complete=True, raw=False) == []
    assert _count_unparsed(events) == len(process.unparsed_lines) + 1


def test_only_listed_lines_are_unparsed(process: Process) -> None:
    listed = process.unparsed_lines
    for with_client in (True, False):
        blobs: dict[str, bytes] = {}
        events = process.replay(with_client=with_client, include_raw=True, blobs=blobs)
        unparsed = (e for e in events if e.HasField("agent_unparsed"))
        assert [next(_raw_of(event, blobs)) for event in unparsed] == listed


def test_raw_is_verbatim(process: Process) -> None:
    written = {_bytes(line) for line in process.lines} | set(process.client_lines or ())
    blobs: dict[str, bytes] = {}
    for event in process.replay(include_raw=True, blobs=blobs):
        for message in _raw_of(event, blobs):
            assert message in written, f"event {event.sequence}"


def test_nothing_is_dropped_in_silence(process: Process) -> None:
    adapter = adapter_of(process.scenario.agent)
    for with_client in (True, False):
        recorder = _Recorder(adapter)
        blobs: dict[str, bytes] = {}
        events = process.replay(
            adapter=recorder, with_client=with_client, include_raw=True, blobs=blobs
        )
        found = {message for event in events for message in _raw_of(event, blobs)}
        for number, (line, drafts) in enumerate(recorder.fed, start=1):
            raws = (raw for draft in drafts for raw in draft.raw)
            redacted = any(getattr(raw, "redactions", ()) for raw in raws)
            changes_nothing = bool(drafts) and {d.kind for d in drafts} <= _DROPPED_BY_KEEPER
            if line not in found and not redacted and not changes_nothing:
                assert adapter.ignored(line), f"message {number} is in no event: {line[:300]!r}"


def test_transcripts_have_no_secrets_and_nothing_personal(process: Process) -> None:
    for kind in ("native", "client", "expected"):
        if (path := process.path(kind)).exists():
            text = path.read_text(errors="replace")
            assert not _SECRET.search(text), path.name
            assert not _PERSONAL.search(text), path.name


def test_expectations_have_no_path_of_this_machine(process: Process) -> None:
    recorded = b"\n".join(
        path.read_bytes() for kind in ("native", "client") if (path := process.path(kind)).exists()
    )
    expected = process.path("expected").read_text()
    for here in (str(Path.home()), str(ROOT.parent.parent)):
        assert here not in expected or here.encode() in recorded


@pytest.mark.parametrize("scenario", [*scenarios()], ids=lambda s: f"{s.agent}/{s.name}")
def test_a_scenario_is_described_and_complete(scenario: Scenario) -> None:
    assert scenario.shows
    assert scenario.agent_version
    known = {"scenario.toml"}
    for process in scenario.processes:
        known |= {process.path(kind).name for kind in ("native", "client", "expected")}
    assert {path.name for path in scenario.directory.iterdir()} <= known
    assert all(unparsed.why for unparsed in scenario.unparsed)


class _RecordingNormalizer(Normalizer):
    def __init__(self, inner: Normalizer, fed: list[tuple[bytes, list[Draft]]]) -> None:
        self._inner = inner
        self._fed = fed

    def feed(self, message: bytes) -> list[Draft]:
        drafts = self._inner.feed(message)
        self._fed.append((message, drafts))
        return drafts

    def sent(self, message: bytes) -> list[Draft]:
        return self._inner.sent(message)

    def finish(self) -> list[Draft]:
        return self._inner.finish()


class _Recorder(Adapter):
    """An adapter whose normalizers' work is written down."""

    def __init__(self, inner: Adapter) -> None:
        self.name = inner.name
        self.fed: list[tuple[bytes, list[Draft]]] = []
        self._inner = inner

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        return _RecordingNormalizer(self._inner.normalizer(config), self.fed)

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        return self._inner.client_actions(messages)

    async def describe(self) -> agent_pb2.Agent:
        raise NotImplementedError

    def check(self, config: session_pb2.SessionConfig) -> None:
        raise NotImplementedError

    def driver(self, context: DriverContext) -> Driver:
        raise NotImplementedError


def _jsons(events: Sequence[event_pb2.Event]) -> list[str]:
    return [to_json(event) for event in events]


def _cuts(lines: list[Line]) -> Iterator[list[Line]]:
    """Beginnings of a transcript, from the empty one on, evenly spread."""
    cuts = min(len(lines), MAX_CUTS)
    for number in range(cuts):
        yield lines[: number * len(lines) // cuts]


def _count_unparsed(events: Sequence[event_pb2.Event]) -> int:
    return sum(event.HasField("agent_unparsed") for event in events)


def _bytes(line: Line) -> bytes:
    return line.head if isinstance(line, OversizedLine) else line


def _raw_of(event: event_pb2.Event, blobs: dict[str, bytes]) -> Iterator[bytes]:
    """The native messages of an event that are verbatim."""
    for native in event.raw:
        if native.redactions:
            continue
        match native.WhichOneof("content"):
            case "text":
                yield native.text.encode()
            case "data":
                yield native.data
            case _:
                yield blobs[native.blob.blob_id]
