"""Events of OpenCode as tests write them, and what the normalizer makes of them."""

import json
from typing import Any

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.model import Draft, Kind

Json = dict[str, Any]

ROOT = "ses_root"
CHILD = "ses_child"


def event(kind: str, session: str = ROOT, **properties: Any) -> bytes:
    said = {"id": "evt_1", "type": kind, "properties": {"sessionID": session, **properties}}
    try:
        return json.dumps(said, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a pair of surrogates is written as an escape
        return json.dumps(said).encode()


def wrapped(native: bytes, directory: str = "/repo") -> bytes:
    """The event as `/global/event` sends it."""
    return json.dumps({"directory": directory, "payload": json.loads(native)}).encode()


def user(message_id: str = "msg_u", session: str = ROOT, **info: Any) -> bytes:
    told = {"id": message_id, "role": "user", "time": {"created": 1}, **info}
    return event("message.updated", session, info=told)


def assistant(
    message_id: str = "msg_a",
    session: str = ROOT,
    *,
    parent: str = "msg_u",
    done: bool = False,
    **info: Any,
) -> bytes:
    time = {"created": 1, "completed": 2} if done else {"created": 1}
    told = {"id": message_id, "role": "assistant", "parentID": parent, "time": time, **info}
    return event("message.updated", session, info=told)


def part(
    kind: str, part_id: str = "prt_1", message: str = "msg_a", session: str = ROOT, **more: Any
) -> bytes:
    told = {"id": part_id, "messageID": message, "sessionID": session, "type": kind, **more}
    return event("message.part.updated", session, part=told)


def text(said: str, part_id: str = "prt_1", *, end: bool = False, **more: Any) -> bytes:
    time = {"start": 1, "end": 2} if end else {"start": 1}
    return part(more.pop("kind", "text"), part_id, text=said, time=time, **more)


def delta(said: str, part_id: str = "prt_1", message: str = "msg_a", **more: Any) -> bytes:
    more = {"field": "text", **more}
    return event("message.part.delta", messageID=message, partID=part_id, delta=said, **more)


def tool(status: str, name: str = "bash", part_id: str = "prt_t", **more: Any) -> bytes:
    call_id = more.pop("call_id", "call_1")
    message, session = more.pop("message", "msg_a"), more.pop("session", ROOT)
    state = {"status": status, "input": {}, **more}
    return part("tool", part_id, message, session, tool=name, callID=call_id, state=state)


def step(reason: str = "stop", part_id: str = "prt_s", **more: Any) -> bytes:
    tokens = {"input": 10, "output": 2, "reasoning": 1, "cache": {"read": 5, "write": 3}}
    return part("step-finish", part_id, reason=reason, **{"tokens": tokens, "cost": 0, **more})


def busy() -> bytes:
    return event("session.status", status={"type": "busy"})


def idle() -> bytes:
    return event("session.idle")


def permission(request_id: str = "per_1", session: str = ROOT, **more: Any) -> bytes:
    told = {
        "id": request_id,
        "permission": "bash",
        "patterns": ["echo hi"],
        "metadata": {"command": "echo hi"},
        "always": ["echo *"],
        "tool": {"messageID": "msg_a", "callID": "call_1"},
        **more,
    }
    return event("permission.asked", session, **told)


def prompt(message_id: str = "msg_u", said: str = "Hello") -> bytes:
    """The request by which the driver sends a prompt."""
    body = {"messageID": message_id, "parts": [{"type": "text", "text": said}]}
    return post(f"/session/{ROOT}/prompt_async", body)


def post(path: str, body: Json | None = None) -> bytes:
    return json.dumps({"method": "POST", "path": path, "body": body}).encode()


def own(kind: str, **properties: Any) -> bytes:
    """What the driver tells the normalizer."""
    return json.dumps({"type": f"agentstream.{kind}", "properties": properties}).encode()


def feed(normalizer: OpenCodeNormalizer, *natives: bytes) -> list[Draft]:
    return [draft for native in natives for draft in normalizer.feed(native)]


def begun(*natives: bytes) -> tuple[OpenCodeNormalizer, list[Draft]]:
    """A normalizer in a turn of ours, after these events."""
    normalizer = OpenCodeNormalizer()
    normalizer.sent(prompt())
    return normalizer, feed(normalizer, user(), busy(), assistant(), *natives)


def of(drafts: list[Draft], kind: Kind) -> list[event_pb2.Event]:
    return [draft.event for draft in drafts if draft.kind is kind]


def items(drafts: list[Draft]) -> list[item_pb2.Item]:
    return [said.item_completed.item for said in of(drafts, Kind.ITEM_COMPLETED)]


def ends(drafts: list[Draft]) -> list[event_pb2.TurnEnded]:
    return [said.turn_ended for said in of(drafts, Kind.TURN_ENDED)]


def deltas(drafts: list[Draft]) -> list[str]:
    return [said.item_delta.text for said in of(drafts, Kind.ITEM_DELTA)]
