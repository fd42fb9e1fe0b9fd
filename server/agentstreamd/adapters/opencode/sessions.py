"""What is said of the native session as a whole."""

import re

from agentstream.v1 import event_pb2
from agentstreamd.adapters.opencode.native import Event, JsonObject, dict_in, text_in
from agentstreamd.adapters.opencode.threads import Thread
from agentstreamd.model import Draft, Kind, event

_DEFAULT_TITLE = re.compile(r"(New|Child) session - \d{4}-\d\d-\d\dT")


def session_draft(thread: Thread, said: Event, info: JsonObject) -> Draft:
    """The session was created or has changed; `info` describes it."""
    model, title = dict_in(info, "model"), text_in(info, "title")
    name = text_in(model, "id")
    if name and text_in(model, "providerID"):
        name = f"{text_in(model, 'providerID')}/{name}"
    made = event()
    if said.type == "session.created":
        began = made.session_started
        made.native_session_id = thread.session_id
        began.agent, began.agent_version = "opencode", text_in(info, "version")
        began.working_directory = thread.directory
        began.model, began.mode = name, text_in(info, "agent")
        return Draft(Kind.SESSION_STARTED, made, (said.native,))
    updated = made.session_updated
    updated.native_session_id = thread.session_id
    if name:
        updated.model = name
    if text_in(info, "agent"):
        updated.mode = text_in(info, "agent")
    if title and not _DEFAULT_TITLE.match(title):
        updated.title = title
    return Draft(Kind.SESSION_UPDATED, made, (said.native,))


def named_draft(thread: Thread, said: Event) -> Draft:
    """The native session is known by an event that says nothing else of it."""
    made = event()
    made.session_updated.native_session_id = thread.session_id
    return Draft(Kind.SESSION_UPDATED, made, (said.native,))


def deleted_draft(said: Event) -> Draft:
    """The session was deleted, by somebody else."""
    made = event()
    ended = made.session_ended
    ended.reason = event_pb2.SESSION_END_REASON_NOT_RESUMABLE
    ended.ended_by = event_pb2.SESSION_ENDER_AGENT
    ended.message = "The session was deleted in OpenCode."
    return Draft(Kind.SESSION_ENDED, made, (said.native,))
