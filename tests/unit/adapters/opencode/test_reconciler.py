"""Making up for events that were missed, from what the server's API says."""

from typing import Any

from agentstream.v1 import item_pb2
from agentstreamd.adapters.opencode.inbox import Item
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.adapters.opencode.reconciler import Reconciler
from agentstreamd.adapters.opencode.server import Limits
from agentstreamd.model import Draft
from tests.unit.adapters.opencode.opencode_events import Json, items, prompt


class StubServer:
    """A server that knows these answers; `attached` are the sessions whose events are wanted."""

    def __init__(self, answers: Json) -> None:
        self.api = self
        self.attached: list[str] = []
        self._answers = answers

    async def get(self, path: str, directory: str) -> Any:
        return self._answers[path]

    def attach(self, session_id: str, listener: object) -> None:
        self.attached.append(session_id)


def message(message_id: str, parent: str, *parts: Json) -> Json:
    time = {"created": 1, "completed": 2}
    info = {"id": message_id, "role": "assistant", "parentID": parent, "time": time}
    step = {"id": f"{message_id}:step", "type": "step-finish", "reason": "stop"}
    told = [{"messageID": message_id, **part} for part in (*parts, step)]
    return {"info": {**info, "finish": "stop"}, "parts": told}


def asked(message_id: str) -> Json:
    return {"info": {"id": message_id, "role": "user"}, "parts": []}


def task(part_id: str, child: str) -> Json:
    state = {"status": "completed", "input": {}, "output": "", "metadata": {"sessionId": child}}
    return {"id": part_id, "type": "tool", "tool": "task", "callID": part_id, "state": state}


async def test_sub_agents_of_sub_agents_are_made_up_for_too() -> None:
    said = {"id": "prt_x", "type": "text", "text": "Deep.", "time": {"start": 1, "end": 2}}
    server = StubServer(
        {
            "/session/status": {},
            "/permission": [],
            "/question": [],
            "/session/ses_root/message": [
                asked("msg_u"),
                message("msg_a", "msg_u", task("prt_1", "ses_1")),
            ],
            "/session/ses_1/message": [
                asked("msg_u1"),
                message("msg_a1", "msg_u1", task("prt_2", "ses_2")),
            ],
            "/session/ses_2/message": [asked("msg_u2"), message("msg_a2", "msg_u2", said)],
        }
    )
    normalizer = OpenCodeNormalizer(session_id="ses_root")
    normalizer.sent(prompt())
    drafts: list[Draft] = []

    async def put(item: Item) -> None:
        assert isinstance(item, bytes)
        drafts.extend(normalizer.feed(item))

    reconciler = Reconciler(normalizer, put, Limits())
    await reconciler.run(server, "ses_root", "", object())  # type: ignore[arg-type]

    assert server.attached == ["ses_1", "ses_2"]
    [deep] = [i for i in items(drafts) if i.item_id == "msg_a2"]
    assert deep.parent_id == "prt_2"
    assert deep.content[0].text.text == "Deep."
    assert deep.status == item_pb2.ITEM_STATUS_COMPLETED
    assert not normalizer.turns.open
