"""What an adapter is: the interface between an agent's protocol and the universal model.

An adapter has two halves. Its **normalizer** is pure: native messages in, drafts of events out, no
I/O, no clock, no randomness; a recorded transcript gives the same drafts, always. Its **driver**
does the I/O: it starts the agent, frames its output, carries messages, interrupts and answers to
it, and reports its exit. The driver feeds the normalizer and passes its drafts on to the session
through a `Sink`; it maps nothing itself.

What the stream's laws demand is held by the session's stream keeper for every adapter alike, so a
normalizer can say just what it saw: a missing `item_started` is stubbed, missing deltas are made
up, items and requests that a turn leaves open are closed, ids that come twice get a suffix, a
result whose call never came gets one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentstream.v1 import agent_pb2, error_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.model import Draft
from agentstreamd.process import ProcessHost

Answer = (
    interaction_pb2.PermissionAnswer | interaction_pb2.QuestionAnswer | interaction_pb2.FormAnswer
)
"""An answer to a request, validated against it."""

Request = (
    interaction_pb2.PermissionRequest
    | interaction_pb2.QuestionRequest
    | interaction_pb2.FormRequest
)
"""A request as it was put into the stream."""


class AdapterError(Exception):
    """Base of what an adapter raises. `str(error)` is a sentence for people."""


class AgentUnavailable(AdapterError):
    """The agent is not installed, or this installation can't be used."""


class CapabilityNotSupported(AdapterError):
    """The agent can't do what was asked.

    Attributes:
        capability: Name of the field of `AgentCapabilities` (or of the setting) that is missing.
    """

    def __init__(self, capability: str, message: str) -> None:
        super().__init__(message)
        self.capability = capability


class InvalidSetting(AdapterError):
    """A setting of a session is not one the agent takes.

    Attributes:
        field: Path of the field within `SessionConfig`, for example `agent_options[effort]`.
    """

    def __init__(self, field_path: str, message: str) -> None:
        super().__init__(message)
        self.field = field_path


class AgentFailed(AdapterError):
    """The agent could not be started, does not respond, or refused what was asked.

    Attributes:
        code: What kind of failure it is, for `Error.code` of the turn that fails of it.
    """

    def __init__(
        self,
        message: str,
        code: error_pb2.ErrorCode.ValueType = error_pb2.ERROR_CODE_AGENT_INTERNAL,
    ) -> None:
        super().__init__(message)
        self.code = code


class NotDelivered(AdapterError):
    """An answer or a steering message did not reach the agent; nothing happened."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message of a client on its way to the agent.

    Attributes:
        turn_id: The turn it starts, or is put into.
        message_id: Made by the daemon (a UUID), to recognize the agent's echo of the message.
        parts: The parts of the message, at least one.
        command: The text is a command of the agent; otherwise it must reach the model as written.
        model: Model for this turn alone; empty for the session's.
        effort: Reasoning effort for this turn alone; empty for the session's.
    """

    turn_id: str
    message_id: str
    parts: tuple[service_pb2.InputPart, ...]
    command: bool = False
    model: str = ""
    effort: str = ""


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How an agent process ended.

    Attributes:
        expected: The driver ended it (idle, update, close); nothing went wrong.
        exit_code: Exit code, where it exited by itself.
        signal: Signal number, where one ended it.
        stderr_head: Beginning of its standard error, at most 16 KiB.
        stderr_tail: End of its standard error, where not in the head already.
        message: A sentence for people.
        code: Classification for the error of a turn that was running.
        resumable: The native session can be continued by a new process.
    """

    expected: bool
    exit_code: int | None = None
    signal: int | None = None
    stderr_head: str = ""
    stderr_tail: str = ""
    message: str = ""
    code: error_pb2.ErrorCode.ValueType = error_pb2.ERROR_CODE_AGENT_EXITED
    resumable: bool = True


class Normalizer(ABC):
    """Native messages to drafts. Pure and synchronous; never raises on odd input."""

    @abstractmethod
    def feed(self, message: bytes) -> list[Draft]:
        """Take one native message of the agent (a line without its terminator) and return what it
        says.

        What cannot be decoded becomes `agent_unparsed`; what is not known an item of kind unknown.
        Drafts carry `raw=(message,)`; one that repeats content of earlier messages carries those
        too.
        """

    def sent(self, message: bytes) -> list[Draft]:
        """Take one native message that was written to the agent.

        Lets the normalizer recognize echoes and tell a turn of ours from one the agent began.
        Returns drafts only where the agent's protocol needs it (usually none: the session writes
        what clients do).
        """
        return []

    def finish(self) -> list[Draft]:
        """The native messages have ended (end of transcript, exit of the agent): what is still to
        be said.

        Need not close items, requests or the turn: the stream keeper does.
        """
        return []


class Sink(Protocol):
    """What a driver tells its session."""

    async def publish(self, drafts: Sequence[Draft]) -> None:
        """Put drafts into the stream, in order. Waits while too much is not yet durable
        (back-pressure).
        """

    def exited(self, exit: AgentExit) -> None:
        """The agent process is gone, and with it whatever was running; called once for each
        process, after all that it wrote was published.

        While `Driver.send` runs, the first exit is taken for that of the process before, if there
        was one, and the turn goes on: a process that ends right after it was given the message must
        make `send` raise.
        """

    def save_state(self, state: bytes) -> None:
        """Keep adapter-private state (at most 64 KiB) with the session; durable with its next
        event, and in `DriverContext.state` of the next driver.
        """


@dataclass(frozen=True, slots=True)
class DriverContext:
    """What a driver works with.

    Attributes:
        session_id: The session.
        session_uid: Tells the session from a later one of the same id.
        config: The session's settings, secrets included. The driver does not change it.
        native_session_id: Native session to go on with; empty for a new one.
        state: What the last driver of the session saved by `Sink.save_state`; empty at first.
        sink: The session.
        processes: Starts child processes.
        environment: The allow-listed environment for agents, without the session's own variables.
        state_directory: A directory of the daemon for this adapter's files, mode 0700; shared by
            its sessions.
    """

    session_id: str
    session_uid: str
    config: session_pb2.SessionConfig
    native_session_id: str
    state: bytes
    sink: Sink
    processes: ProcessHost
    environment: Mapping[str, str]
    state_directory: Path


class Driver(ABC):
    """Drives one session's agent. All methods run on the event loop; the session calls none of
    `send`, `steer` and `update` while another of them or `close` runs. `interrupt` and `answer` may
    come at any time, and so may `close`: it ends a start that hangs.
    """

    async def open(self) -> None:  # noqa: B027 - most agents start with the first message
        """The session is being created: start the agent now if that is cheap, or nothing.

        May publish `session_started` (else the session writes it). Raises `AdapterError`.
        """

    @abstractmethod
    async def send(self, prompt: Prompt) -> None:
        """Hand the agent a message that starts a turn; start the agent first if it is not running.

        Returns when the agent has the message. Raises `AgentFailed`: the turn then fails with it.
        The turn ends when the normalizer says so (`turn_ended`), or with `Sink.exited`.
        """

    async def steer(self, prompt: Prompt) -> None:
        """Put a message into the running turn. Raises `NotDelivered` when the turn is over
        already.
        """
        raise CapabilityNotSupported("steer", "this agent cannot take a message while a turn runs")

    @abstractmethod
    async def interrupt(self) -> None:
        """Ask the agent to stop the running turn. Returns when the agent was told; the end of the
        turn comes as any other. When it does not come in time, the session closes the driver.
        """

    @abstractmethod
    async def answer(self, request_id: str, answer: Answer) -> None:
        """Deliver an answer to the pending request `request_id`. The session writes the resolution
        after it. Return without waiting once the answer is with the agent: else what the agent
        says next comes before the resolution in the stream.

        Raises `NotDelivered` when it did not reach the agent.
        """

    async def update(
        self,
        *,
        model: str | None = None,
        permission_mode: agent_pb2.PermissionMode.ValueType | None = None,
    ) -> None:
        """Change the model or the permission mode of the session, now or with the next start of
        the agent.

        Returns when the agent has taken it. Raises `AgentFailed` or `CapabilityNotSupported`. The
        session writes `session_updated`, unless the normalizer did.
        """
        raise CapabilityNotSupported(
            "change_model", "this agent cannot change settings mid-session"
        )

    @abstractmethod
    async def close(self, *, forget: bool = False) -> None:
        """Stop the agent's process, if one runs, with everything it started; bounded in time,
        idempotent.

        After it a later `send` starts the agent again with its native session. With `forget` the
        session is over: a shared agent process may forget it too.
        """


@dataclass(frozen=True, slots=True)
class ClientAction:
    """One thing a client did in a recorded transcript.

    Attributes:
        prompt: A message that was sent; its `turn_id` is empty.
        request_id: The request that was answered, as the normalizer names it.
        answer: The answer to it.
        native: The native message.
        call: What the agent calls the message when it refuses it, see `Adapter.refused`.
    """

    native: bytes
    prompt: Prompt | None = None
    call: str = ""
    request_id: str = ""
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class HostContext:
    """What an adapter gets once, when the daemon starts.

    Attributes:
        processes: Starts child processes.
        environment: The allow-listed environment for agents.
        state_directory: A directory for this adapter's files, mode 0700.
        executable: Configured path of the agent's executable; empty to look on PATH.
        options: The adapter's table of the daemon's configuration file.
    """

    processes: ProcessHost
    environment: Mapping[str, str]
    state_directory: Path
    executable: str = ""
    options: Mapping[str, object] = field(default_factory=dict)


class Adapter(ABC):
    """One agent. Host scope: one object per daemon, which owns shared processes if the agent has
    any.
    """

    name: str
    """Stable name, for example `claude`."""

    async def start(self, host: HostContext) -> None:  # noqa: B027 - optional
        """The daemon starts. Must not start the agent."""

    async def close(self) -> None:  # noqa: B027 - optional
        """The daemon stops; sessions' drivers are closed already."""

    @abstractmethod
    async def describe(self) -> agent_pb2.Agent:
        """The agent as `GetAgent` shows it. May run the executable for its version, bounded in
        time; cached.
        """

    async def login(self) -> agent_pb2.AgentLogin:
        """Whether the agent has credentials in the daemon's environment.

        May run the executable, bounded in time; must not call a model. Asked only while the agent
        is available. Raises `AdapterError` where it can't be found out.
        """
        return agent_pb2.AgentLogin()

    @abstractmethod
    def check(self, config: session_pb2.SessionConfig) -> None:
        """Check settings before a session is made with them.

        Raises `InvalidSetting` or `CapabilityNotSupported`. Fields every agent shares are checked
        already.
        """

    @abstractmethod
    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """A fresh normalizer, for replaying a transcript. Drivers make their own."""

    @abstractmethod
    def driver(self, context: DriverContext) -> Driver:
        """A driver for a session, new or resumed. Starts nothing."""

    def ignored(self, message: bytes) -> str:
        """Why a native message that makes no event of its own is ignored on purpose; empty where
        that is not on purpose.

        Says so of kinds of messages, each listed in the adapter. Recorded transcripts are held
        against it: nothing native may be dropped in silence.
        """
        return ""

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        """What a client did, read from the native messages that were written to the agent, in
        order.

        For replaying a transcript with its client's side. Messages that are neither prompt nor
        answer are left out.
        """
        return []

    def refused(self, message: bytes) -> str:
        """The client's message that the agent refuses with a native message, as
        `ClientAction.call` names it; empty where it refuses none.
        """
        return ""


__all__ = [
    "Adapter",
    "AdapterError",
    "AgentExit",
    "AgentFailed",
    "AgentUnavailable",
    "Answer",
    "CapabilityNotSupported",
    "ClientAction",
    "Driver",
    "DriverContext",
    "HostContext",
    "InvalidSetting",
    "Normalizer",
    "NotDelivered",
    "ProcessHost",
    "Prompt",
    "Request",
    "Sink",
]
