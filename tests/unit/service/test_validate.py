import pytest
from google.protobuf import field_mask_pb2, message

from agentstream.v1 import interaction_pb2, session_pb2
from agentstream.v1 import service_pb2 as pb
from agentstreamd.service import validate
from agentstreamd.service.errors import CallError
from agentstreamd.sessions import prompts


def text(content: str) -> pb.InputPart:
    return pb.InputPart(text=content)


CONFIG = session_pb2.SessionConfig(agent="mock", working_directory="/tmp")

WRONG: list[tuple[message.Message, str]] = [
    (pb.GetAgentRequest(), "name"),
    (pb.ListAgentsRequest(page_size=-1), "page_size"),
    (pb.ListSessionsRequest(page_size=1001), "page_size"),
    (pb.CreateSessionRequest(), "config"),
    (pb.CreateSessionRequest(config=session_pb2.SessionConfig(agent="mock")),
     "config.working_directory"),
    (pb.CreateSessionRequest(config=session_pb2.SessionConfig(working_directory="/")),
     "config.agent"),
    (pb.CreateSessionRequest(session_id="-x", config=CONFIG), "session_id"),
    (pb.CreateSessionRequest(session_id="a/b", config=CONFIG), "session_id"),
    (pb.CreateSessionRequest(session_id="é", config=CONFIG), "session_id"),
    (pb.CreateSessionRequest(session_id="a" * 129, config=CONFIG), "session_id"),
    (pb.CreateSessionRequest(session_id="a\n", config=CONFIG), "session_id"),
    (pb.GetSessionRequest(), "session_id"),
    (pb.EndSessionRequest(session_id="a b"), "session_id"),
    (pb.DeleteSessionRequest(), "session_id"),
    (pb.InterruptTurnRequest(), "session_id"),
    (pb.SendMessageRequest(session_id="s"), "parts"),
    (pb.SendMessageRequest(session_id="s", parts=[pb.InputPart()]), "parts[0]"),
    (pb.SendMessageRequest(session_id="s", parts=[text("x")], client_message_id="a" * 129),
     "client_message_id"),
    (pb.SendMessageRequest(session_id="s", parts=[text("x"), text("y")], command=True), "parts"),
    (pb.SendMessageRequest(session_id="s", parts=[text("x")], when_busy=77),  # type: ignore[arg-type]
     "when_busy"),
    (pb.SendMessageRequest(
        session_id="s",
        parts=[text("x"), pb.InputPart(image=pb.InputImage(media_type="image/bmp", data=b"x"))]),
     "parts[1].image.media_type"),
    (pb.SendMessageRequest(
        session_id="s", parts=[pb.InputPart(image=pb.InputImage(media_type="image/png"))]),
     "parts[0].image.data"),
    (pb.SendMessageRequest(
        session_id="s", parts=[pb.InputPart(image=pb.InputImage(
            media_type="image/png", data=bytes(prompts.MAX_IMAGE_BYTES + 1)))]),
     "parts[0].image.data"),
    (pb.SendMessageRequest(
        session_id="s", parts=[pb.InputPart(file=pb.InputFile(media_type="text/plain"))]),
     "parts[0].file.name"),
    (pb.SendMessageRequest(session_id="s", parts=[pb.InputPart(file=pb.InputFile(name="a"))]),
     "parts[0].file.media_type"),
    (pb.UpdateSessionRequest(session_id="s"), "update_mask"),
    (pb.UpdateSessionRequest(
        session_id="s", update_mask=field_mask_pb2.FieldMask(paths=["working_directory"])),
     "update_mask"),
    (pb.StreamEventsRequest(session_id="s", after_sequence=-1), "after_sequence"),
    (pb.StreamEventsRequest(session_id="s", kinds=[0]), "kinds[0]"),  # type: ignore[list-item]
    (pb.StreamEventsRequest(session_id="s", kinds=[20, 999]), "kinds[1]"),  # type: ignore[list-item]
    (pb.RespondRequest(session_id="s", request_id="r"), "answer"),
    (pb.RespondRequest(session_id="s", permission=interaction_pb2.PermissionAnswer()),
     "request_id"),
    (pb.ReadBlobRequest(session_id="s"), "blob_id"),
    (pb.ReadBlobRequest(session_id="s", blob_id="b", offset_bytes=-1), "offset_bytes"),
    (pb.ReadBlobRequest(session_id="s", blob_id="b", limit_bytes=-1), "limit_bytes"),
]  # fmt: skip

RIGHT: list[message.Message] = [
    pb.ListAgentsRequest(),
    pb.ListSessionsRequest(page_size=1000),
    pb.CreateSessionRequest(config=CONFIG),
    pb.CreateSessionRequest(session_id="0a.B_c-9", config=CONFIG),
    pb.SendMessageRequest(session_id="s", parts=[text("/compact")], command=True),
    pb.SendMessageRequest(
        session_id="s",
        parts=[pb.InputPart(file=pb.InputFile(name="a", media_type="text/plain"))],
    ),
    pb.UpdateSessionRequest(
        session_id="s", update_mask=field_mask_pb2.FieldMask(paths=["title", "labels"])
    ),
    pb.StreamEventsRequest(session_id="s", kinds=[20, 35]),  # type: ignore[list-item]
    pb.ReadBlobRequest(session_id="s", blob_id="b"),
]


@pytest.mark.parametrize(
    ("request_", "field"), WRONG, ids=[f"{one.DESCRIPTOR.name}-{name}" for one, name in WRONG]
)
def test_a_request_that_cannot_be_right_names_the_field(
    request_: message.Message, field: str
) -> None:
    with pytest.raises(CallError) as caught:
        validate.check(request_)
    assert caught.value.reason_name == "INVALID_FIELD"
    assert field in [path for path, _ in caught.value.violations]


@pytest.mark.parametrize("request_", RIGHT, ids=lambda one: one.DESCRIPTOR.name)
def test_a_request_that_may_be_right_passes(request_: message.Message) -> None:
    validate.check(request_)


def test_all_fields_at_fault_are_named_at_once() -> None:
    with pytest.raises(CallError) as caught:
        validate.check(pb.StreamEventsRequest(after_sequence=-1, kinds=[0]))  # type: ignore[list-item]
    assert [path for path, _ in caught.value.violations] == [
        "session_id",
        "after_sequence",
        "kinds[0]",
    ]
