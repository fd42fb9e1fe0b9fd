"""How long things may take and how large they may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server and of the sessions on it, in seconds and bytes.

    Attributes:
        start_seconds: From the start of a server until it answers `initialize`.
        request_seconds: Until a request is answered.
        probe_seconds: Until a server answers that did not answer another request in time.
        in_flight: Requests that wait for an answer at once; beyond about 128 Codex loses some.
        overload_attempts: How often a request is made that the server is too busy for.
        overload_seconds: Until the second attempt; doubled for each further one.
        interrupt_seconds: When closing: until an interrupted turn has ended.
        linger_seconds: How long a server without sessions is kept.
        polite_seconds: When stopping a server: from the end of its input to TERM.
        term_seconds: From TERM to KILL.
        sweep_seconds: From TERM to KILL of what the server leaves running.
        drain_seconds: After the end: until a session's last output is in its stream.
        line_bytes: Longest line that is taken; a longer one becomes `agent_unparsed`. Codex repeats
            messages, which may hold 64 MiB of pictures, in base64.
        backlog_bytes: Lines of one session that may wait for its stream; beyond, the server is not
            read from until there is room again.
    """

    start_seconds: float = 60.0
    request_seconds: float = 60.0
    probe_seconds: float = 10.0
    in_flight: int = 32
    overload_attempts: int = 6
    overload_seconds: float = 0.1
    interrupt_seconds: float = 5.0
    linger_seconds: float = 10.0
    polite_seconds: float = 3.0
    term_seconds: float = 2.0
    sweep_seconds: float = 1.0
    drain_seconds: float = 15.0
    line_bytes: int = 128 * 2**20
    backlog_bytes: int = 64 * 2**20
