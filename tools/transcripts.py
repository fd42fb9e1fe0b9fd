"""Recorded transcripts of agents under tests/transcripts, and the events expected of them.

    python -m tools.transcripts copy AGENT RECORDING...   take recordings over as scenarios
    python -m tools.transcripts write [AGENT[/SCENARIO]...]   write the expected events anew

`write` does what `agentstream replay` does. Read what it changed before you commit it: the
expectations are a review written down, not a by-product.
"""

import argparse
import difflib
import io
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from google.protobuf import json_format

from agentstream.v1 import event_pb2, session_pb2
from agentstreamd.adapters.base import Adapter
from agentstreamd.adapters.registry import UnknownAgent, load
from agentstreamd.laws import check
from agentstreamd.process import Line
from agentstreamd.replay import read_lines, replay

ROOT = Path(__file__).resolve().parent.parent / "tests" / "transcripts"

_NATIVE_NAME = re.compile(r"native(?:\.([1-9]\d*))?\.jsonl")
_RECORDED_AS = {"stdout": "native", "server": "native", "stdin": "client", "client": "client"}
_RECORDED_NAME = re.compile(r"(stdout|server|stdin|client)(\.[1-9]\d*)?\.jsonl")
_FACT = re.compile(r"\*\*Fact(?: \(([^)]*)\))?:?\*\*:?\s*(.+)")
_PERSONAL = re.compile(rb"(/home/|/Users/|\\\\Users\\\\)(?!user\b)[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A line that is no message of the agent's protocol, and is meant to be `agent_unparsed`.

    Attributes:
        file: Name of the file it is in.
        line: Number of the line, from 1 on; empty lines count.
        why: A sentence.
    """

    file: str
    line: int
    why: str


@dataclass(frozen=True)
class Scenario:
    """A directory AGENT/NAME of transcripts.

    Attributes:
        agent: Name of the agent that wrote them.
        name: Name of the scenario.
        shows: One sentence.
        agent_version: Version of the agent.
        cwd: Working directory the session was given; empty where that is not known.
        unparsed: Lines that are no messages.
    """

    agent: str
    name: str
    shows: str
    agent_version: str
    cwd: str = ""
    unparsed: tuple[Unparsed, ...] = field(default=())

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return ROOT / self.agent / self.name

    @property
    def processes(self) -> list["Process"]:
        """What was recorded, one for each process of the agent that wrote anything."""
        numbers = [
            int(match.group(1) or 1)
            for path in self.directory.iterdir()
            if (match := _NATIVE_NAME.fullmatch(path.name))
        ]
        return [Process(self, number) for number in sorted(numbers)]


@dataclass(frozen=True)
class Process:
    """The transcript of one process of an agent: one session."""

    scenario: Scenario
    number: int

    @property
    def id(self) -> str:
        """AGENT/SCENARIO, with the process's number where it is not the first."""
        name = f"{self.scenario.agent}/{self.scenario.name}"
        return name if self.number == 1 else f"{name}/{self.number}"

    def path(self, kind: str) -> Path:
        """The file of a kind: native, client or expected."""
        suffix = "" if self.number == 1 else f".{self.number}"
        return self.scenario.directory / f"{kind}{suffix}.jsonl"

    @cached_property
    def lines(self) -> list[Line]:
        """What the agent wrote."""
        return list(read_lines(io.BytesIO(self.path("native").read_bytes())))

    @cached_property
    def client_lines(self) -> list[bytes] | None:
        """What was written to the agent; None where that was not recorded."""
        path = self.path("client")
        if not path.exists():
            return None
        lines = read_lines(io.BytesIO(path.read_bytes()))
        return [line for line in lines if isinstance(line, bytes)]

    @property
    def unparsed_lines(self) -> list[bytes]:
        """The lines that are no messages, as the scenario lists them."""
        name = self.path("native").name
        lines = self.path("native").read_bytes().split(b"\n")
        return [lines[u.line - 1] for u in self.scenario.unparsed if u.file == name]

    @property
    def config(self) -> session_pb2.SessionConfig:
        """The settings of the session, as far as they are known."""
        scenario = self.scenario
        return session_pb2.SessionConfig(agent=scenario.agent, working_directory=scenario.cwd)

    def replay(
        self,
        *,
        adapter: Adapter | None = None,
        lines: Sequence[Line] | None = None,
        with_client: bool = True,
        include_raw: bool = False,
        blobs: dict[str, bytes] | None = None,
    ) -> list[event_pb2.Event]:
        """The events of the session; `lines` instead of the recorded ones, where given."""
        return list(
            replay(
                adapter or adapter_of(self.scenario.agent),
                self.lines if lines is None else lines,
                client_lines=self.client_lines if with_client else None,
                include_raw=include_raw,
                config=self.config,
                on_blob=None if blobs is None else blobs.__setitem__,
            )
        )


def adapter_of(agent: str) -> Adapter:
    """The adapter of an agent. Raises UnknownAgent."""
    return load([agent])[agent]


def to_json(event: event_pb2.Event) -> str:
    """The event as `agentstream replay` prints it."""
    return json_format.MessageToJson(event, indent=None, ensure_ascii=False)


def read_scenario(directory: Path) -> Scenario:
    """Read a scenario's description. Raises ValueError where it is not one."""
    try:
        said = tomllib.loads((directory / "scenario.toml").read_text())
        unparsed = tuple(Unparsed(**one) for one in said.pop("unparsed", ()))
        return Scenario(directory.parent.name, directory.name, unparsed=unparsed, **said)
    except (OSError, TypeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{directory}/scenario.toml: {error}") from error


def scenarios(names: Iterable[str] = ()) -> Iterator[Scenario]:
    """All scenarios, or those of the given names: AGENT or AGENT/SCENARIO."""
    wanted = [name.strip("/") for name in names]
    for path in sorted(ROOT.glob("*/*/")):
        name = f"{path.parent.name}/{path.name}"
        if path.name.startswith(("_", ".")) or path.parent.name.startswith(("_", ".")):
            continue
        if not wanted or any(name == one or name.startswith(f"{one}/") for one in wanted):
            yield read_scenario(path)


def difference(expected: Sequence[str], actual: Sequence[str]) -> str:
    """The first event that differs, from both sides; empty where all are equal."""
    for number, (wanted, got) in enumerate(zip(expected, actual, strict=False), start=1):
        if wanted != got:
            lines = difflib.unified_diff(
                _pretty(wanted), _pretty(got), "expected", "replayed", n=30, lineterm=""
            )
            return f"event {number} differs:\n" + "\n".join(lines)
    if len(expected) == len(actual):
        return ""
    longer, which = (
        (expected, "missing") if len(expected) > len(actual) else (actual, "not expected")
    )
    first = min(len(expected), len(actual))
    return (
        f"{len(expected)} events are expected, {len(actual)} came; the first that is {which}:\n"
        + "\n".join(_pretty(longer[first]))
    )


def _pretty(line: str) -> list[str]:
    try:
        return json.dumps(json.loads(line), indent=2, ensure_ascii=False).split("\n")
    except ValueError:
        return [line]


def read_expected(process: Process) -> list[str]:
    """The expected events, one ProtoJSON object each; none where they were never written."""
    path = process.path("expected")
    return path.read_text().split("\n")[:-1] if path.exists() else []


def _write(names: Sequence[str]) -> int:
    failed = changed = count = 0
    for scenario in scenarios(names):
        for process in scenario.processes:
            count += 1
            events = process.replay()
            for violation in check(events, complete=True, raw=False):
                failed += 1
                print(f"{process.id}: {violation}", file=sys.stderr)
            lines = [to_json(event) for event in events]
            if lines != read_expected(process):
                changed += 1
                process.path("expected").write_text("".join(f"{line}\n" for line in lines))
                print(f"{process.id}: {len(lines)} events")
    print(f"{count} transcripts, {changed} expectations changed", file=sys.stderr)
    if names and not count:
        print("no scenario has such a name", file=sys.stderr)
    return 1 if failed or (names and not count) else 0


def _copy(agent: str, recordings: Sequence[Path]) -> int:
    for recording in recordings:
        files = {
            f"{_RECORDED_AS[match.group(1)]}{match.group(2) or ''}.jsonl": path
            for path in sorted(recording.iterdir())
            if (match := _RECORDED_NAME.fullmatch(path.name))
        }
        written = {
            name
            for name, path in files.items()
            if _NATIVE_NAME.fullmatch(name) and path.read_bytes().strip()
        }
        if not written:
            print(f"{recording.name}: the agent wrote nothing", file=sys.stderr)
            continue
        target = ROOT / agent / recording.name
        target.mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            # Of a process that wrote nothing, there is nothing to replay.
            if name.replace("client", "native") in written:
                content = _PERSONAL.sub(rb"\1user", path.read_bytes())
                (target / name).write_bytes(content)
        description = target / "scenario.toml"
        if not description.exists():
            description.write_text(_describe(recording))
    return 0


def _describe(recording: Path) -> str:
    notes = recording / "notes.md"
    fact = _FACT.search(notes.read_text()) if notes.exists() else None
    shows = fact.group(2).strip() if fact else recording.name.replace("_", " ")
    version = (fact.group(1) or "") if fact else ""
    quoted = [json.dumps(text, ensure_ascii=False) for text in (shows, version)]
    return f"shows = {quoted[0]}\nagent_version = {quoted[1]}\n"


def main() -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    copy = commands.add_parser("copy", help="take recordings over as scenarios")
    copy.add_argument("agent")
    copy.add_argument("recordings", nargs="+", type=Path, metavar="RECORDING")
    write = commands.add_parser("write", help="write the expected events anew")
    write.add_argument("names", nargs="*", metavar="AGENT[/SCENARIO]")
    arguments = parser.parse_args()
    try:
        if arguments.command == "copy":
            return _copy(arguments.agent, arguments.recordings)
        return _write(arguments.names)
    except (OSError, ValueError, UnknownAgent) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
