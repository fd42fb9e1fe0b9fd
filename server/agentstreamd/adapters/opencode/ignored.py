"""Native messages that make no event of their own, each kind with its reason. Pure."""

from agentstreamd.adapters.opencode.native import Unreadable, decode, dict_in, text_in

_TYPES = {
    "message.updated": "the state of a message, repeated; its item says what is new",
    "session.created": "a sub-agent's session: the call that runs it stands for it",
    "session.updated": "the session as it is; only what changed makes an event",
    "session.deleted": "a sub-agent's session is tidied away",
    "session.idle": "comes more than once; the turn ends once",
    "session.error": "repeats an error, or says that the turn was interrupted",
    "permission.replied": "the client's answer, which the session has written",
    "question.replied": "the client's answer, which the session has written",
    "question.rejected": "the client's answer, which the session has written",
}
_PARTS = {
    "text": "a snapshot of text whose deltas and whole come otherwise, or the echo of a prompt",
    "reasoning": "a snapshot of text whose deltas and whole come otherwise",
    "tool": "a snapshot of a tool that repeats what was said",
    "file": "the echo of a prompt",
    "step-start": "says nothing by itself; the step's message has its figures",
    "step-finish": "its figures are its message's; of a message that never completes, the turn's",
    "snapshot": "says nothing by itself; the changed files come as a patch",
}
_STATUS = {
    "busy": "repeated; the turn began once",
    "idle": "session.idle follows each",
}


def ignored(message: bytes) -> str:
    """Why `message` may make no event of its own; see `Adapter.ignored`."""
    try:
        said = decode(message)
    except Unreadable:
        return ""
    if said.is_noise:
        return "not about a session, or the twin of another event"
    if said.type == "message.part.updated":
        return _PARTS.get(text_in(dict_in(said.properties, "part"), "type"), "")
    if said.type == "session.status":
        return _STATUS.get(text_in(dict_in(said.properties, "status"), "type"), "")
    return _TYPES.get(said.type, "")
