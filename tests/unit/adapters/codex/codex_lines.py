"""Lines of `codex app-server`, and a normalizer to feed them to."""

import json
from typing import Any

from agentstream.v1 import item_pb2
from agentstreamd.adapters.codex.normalizer import CodexNormalizer
from agentstreamd.model import Draft, Kind

ROOT = "root"
CHILD = "child"


def line(method: str, *, id: int | str | None = None, **params: Any) -> bytes:
    """A notification, or with `id` a request, of the session's thread unless it says another."""
    message: dict[str, Any] = {"method": method, "params": {"threadId": ROOT, **params}}
    if id is not None:
        message["id"] = id
    return json.dumps(message).encode()


def started(item: dict[str, Any], **more: Any) -> bytes:
    return line("item/started", item=item, turnId="T1", **more)


def done(item: dict[str, Any], **more: Any) -> bytes:
    return line("item/completed", item=item, turnId="T1", **more)


def turn_started(turn_id: str = "T1", **more: Any) -> bytes:
    return line("turn/started", turn={"id": turn_id, "rootTurnId": turn_id}, **more)


def turn_completed(turn_id: str = "T1", status: str = "completed", **more: Any) -> bytes:
    error = more.pop("error", None)
    return line("turn/completed", turn={"id": turn_id, "status": status, "error": error}, **more)


def response(id: int, **result: Any) -> bytes:
    return json.dumps({"id": id, "result": result}).encode()


def request(id: int, method: str, **params: Any) -> bytes:
    """What the client writes."""
    return json.dumps({"id": id, "method": method, "params": params}).encode()


def normalizer() -> CodexNormalizer:
    return CodexNormalizer(ROOT)


def feed(*lines: bytes, to: CodexNormalizer | None = None) -> list[Draft]:
    """What the lines become; nothing of them may be unparsed."""
    target = to or normalizer()
    drafts = [draft for one in lines for draft in target.feed(one)]
    assert all(draft.kind is not Kind.AGENT_UNPARSED for draft in drafts)
    return drafts


def items(drafts: list[Draft]) -> list[item_pb2.Item]:
    """The completed items."""
    return [d.event.item_completed.item for d in drafts if d.kind is Kind.ITEM_COMPLETED]


def kinds(drafts: list[Draft]) -> list[Kind]:
    return [draft.kind for draft in drafts]
