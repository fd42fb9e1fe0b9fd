"""Making up for events that were missed: what the server's API says, as events. Pure."""

from collections.abc import Iterator
from typing import Any

from agentstreamd.adapters.opencode.native import (
    JsonObject,
    compose,
    dict_in,
    list_in,
    number_in,
    text_in,
)


def session_event(info: JsonObject, kind: str = "session.updated") -> bytes:
    """A session, as the API describes it."""
    return compose(kind, {"sessionID": text_in(info, "id"), "info": info})


def message_events(session_id: str, history: Any, since: str) -> Iterator[bytes]:
    """The messages of a session from the one with the id `since` on; none where it isn't there.

    A message comes before its parts, and where it is complete once more after them.
    """
    entries = [entry for entry in history if isinstance(entry, dict)] if history else []
    ids = [text_in(dict_in(entry, "info"), "id") for entry in entries]
    if since:
        entries = entries[ids.index(since) :] if since in ids else []
    for entry in entries:
        info = dict_in(entry, "info")
        time = dict_in(info, "time")
        done = number_in(time, "completed") is not None
        if done:
            begun = {key: value for key, value in time.items() if key != "completed"}
            head = {k: v for k, v in info.items() if k not in ("error", "finish")}
            yield _message(session_id, {**head, "time": begun})
        else:
            yield _message(session_id, info)
        for part in list_in(entry, "parts"):
            if isinstance(part, dict):
                said = {"sessionID": session_id, "part": part, "fetched": True}
                yield compose("message.part.updated", said)
        if done:
            yield _message(session_id, info)


def has_message(history: Any, message_id: str) -> bool:
    """Whether a message is in the history of a session."""
    entries = history if isinstance(history, list) else []
    return any(
        isinstance(entry, dict) and text_in(dict_in(entry, "info"), "id") == message_id
        for entry in entries
    )


def request_events(kind: str, listed: Any, sessions: set[str], directory: str) -> Iterator[bytes]:
    """Requests of these sessions that wait; `kind` is `permission` or `question`."""
    for request in listed if isinstance(listed, list) else []:
        if isinstance(request, dict) and text_in(request, "sessionID") in sessions:
            yield compose(f"{kind}.asked", request, directory)


def gone_events(pending: set[str], *listed: Any) -> Iterator[bytes]:
    """Requests that no longer wait, of those that did."""
    still = {
        text_in(request, "id")
        for requests in listed
        if isinstance(requests, list)
        for request in requests
        if isinstance(request, dict)
    }
    for request_id in sorted(pending - still):
        yield compose("agentstream.gone", {"requestID": request_id})


def _message(session_id: str, info: JsonObject) -> bytes:
    return compose("message.updated", {"sessionID": session_id, "info": info})
