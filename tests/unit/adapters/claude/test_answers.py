"""What is written to the CLI."""

import base64
import json

import pytest

from agentstream.v1 import interaction_pb2, service_pb2
from agentstreamd.adapters.base import CapabilityNotSupported, NotDelivered, Prompt
from agentstreamd.adapters.claude import answers
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.adapters.claude.requests import NativeRequest
from agentstreamd.model import Kind
from tests.unit.adapters.claude.claude_lines import (
    COLOR,
    DIRECTORY,
    MODE,
    RULE,
    TOPPINGS,
    Json,
    can_use_tool,
    fed,
)

ACCEPT_ONCE = interaction_pb2.PERMISSION_DECISION_ACCEPT
FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT
UUID = "11111111-1111-4111-8111-111111111111"


def request_of(tool: str, arguments: Json, **more: object) -> NativeRequest:
    normalizer = ClaudeNormalizer()
    fed(normalizer, can_use_tool("r1", tool, arguments, **more))
    request = normalizer.request("r1")
    assert request is not None
    return request


def response_of(line: bytes) -> Json:
    message = json.loads(line)
    assert message["type"] == "control_response"
    assert message["response"]["subtype"] == "success"
    assert message["response"]["request_id"] == "r1"
    response: Json = message["response"]["response"]
    return response


def content_of(*parts: service_pb2.InputPart, command: bool = False) -> object:
    line = answers.encode_prompt(Prompt("turn", UUID, parts, command))
    message = json.loads(line)
    assert (message["type"], message["uuid"]) == ("user", UUID)
    assert message["message"]["role"] == "user"
    assert b"\n" not in line
    return message["message"]["content"]


def text(text: str) -> service_pb2.InputPart:
    return service_pb2.InputPart(text=text)


def file(name: str, media_type: str, data: bytes) -> service_pb2.InputPart:
    made = service_pb2.InputFile(name=name, media_type=media_type, data=data)
    return service_pb2.InputPart(file=made)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("hello\nworld \u2028 \x85", "hello\nworld \u2028 \x85"),
        ("/cost", " /cost"),
        ("/cost now", " /cost now"),
        ("/tmp/foo is a path", "/tmp/foo is a path"),
        (" /cost", " /cost"),
        ("!ls", "!ls"),
    ],
)
def test_trap_15_text_that_looks_like_a_command_reaches_the_model(written: str, sent: str) -> None:
    assert content_of(text(written)) == sent


def test_trap_15_a_command_is_a_command_when_the_client_says_so() -> None:
    assert content_of(text("/compact"), command=True) == "/compact"


def test_images_and_files_are_blocks() -> None:
    image = service_pb2.InputImage(media_type="image/png", data=b"\x89PNG")

    blocks = content_of(
        text("/cost of this?"),
        service_pb2.InputPart(image=image),
        file("a.py", "text/x-python", b"print(1)\n"),
        file("a.pdf", "application/pdf", b"%PDF"),
    )

    encoded = base64.b64encode(b"\x89PNG").decode()
    assert blocks == [
        {"type": "text", "text": " /cost of this?"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": encoded},
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "print(1)\n"},
            "title": "a.py",
        },
        {
            "type": "document",
            "source": {
                "type": "base64",
                "media_type": "application/pdf",
                "data": base64.b64encode(b"%PDF").decode(),
            },
            "title": "a.pdf",
        },
    ]


@pytest.mark.parametrize(
    ("part", "capability"),
    [
        (file("a.bin", "application/octet-stream", b"\xff\x00"), "file_input"),
        (
            service_pb2.InputPart(
                image=service_pb2.InputImage(media_type="image/tiff", data=b"II")
            ),
            "image_input",
        ),
    ],
)
def test_what_the_cli_does_not_take_is_refused(
    part: service_pb2.InputPart, capability: str
) -> None:
    with pytest.raises(CapabilityNotSupported) as refused:
        content_of(part)

    assert refused.value.capability == capability


def test_trap_5_an_acceptance_carries_the_arguments_verbatim() -> None:
    request = request_of("Bash", {"command": "ls", "n": 1.5, "text": "\u00e9"})

    line, granted = answers.encode_answer(
        request, interaction_pb2.PermissionAnswer(decision=ACCEPT_ONCE)
    )

    assert response_of(line) == {
        "behavior": "allow",
        "updatedInput": {"command": "ls", "n": 1.5, "text": "\u00e9"},
    }
    assert request.input_json.encode() in line
    assert granted == ()


def test_edited_arguments_take_the_place_of_the_agents() -> None:
    answer = interaction_pb2.PermissionAnswer(
        decision=ACCEPT_ONCE, updated_arguments_json='{\n  "command": "ls -l"\n}'
    )

    line, _ = answers.encode_answer(request_of("Bash", {"command": "ls"}), answer)

    assert response_of(line)["updatedInput"] == {"command": "ls -l"}
    assert b"\n" not in line


def test_trap_9_accepting_for_the_session_grants_the_rule_and_never_the_mode() -> None:
    request = request_of(
        "Bash", {"command": "touch a"}, permission_suggestions=[RULE, DIRECTORY, MODE]
    )

    line, granted = answers.encode_answer(
        request, interaction_pb2.PermissionAnswer(decision=FOR_SESSION)
    )

    rule = {**RULE, "destination": "session"}
    assert response_of(line)["updatedPermissions"] == [rule]
    assert list(granted) == [rule]


def test_trap_9_accepting_an_edit_for_the_session_grants_that_file_only() -> None:
    request = request_of(
        "Write", {"file_path": "/w/a.txt", "content": "x"}, permission_suggestions=[MODE]
    )

    _, granted = answers.encode_answer(
        request, interaction_pb2.PermissionAnswer(decision=FOR_SESSION)
    )

    assert list(granted) == [
        {
            "type": "addRules",
            "rules": [{"toolName": "Edit", "ruleContent": "//w/a.txt"}],
            "behavior": "allow",
            "destination": "session",
        }
    ]


def test_chosen_suggestions_are_granted_and_hold_in_this_session_too() -> None:
    request = request_of(
        "Bash", {"command": "touch a"}, permission_suggestions=[RULE, DIRECTORY, MODE]
    )
    answer = interaction_pb2.PermissionAnswer(
        decision=ACCEPT_ONCE, suggestion_ids=["1", "3", "9", "x"]
    )

    _, granted = answers.encode_answer(request, answer)

    assert list(granted) == [RULE, {**RULE, "destination": "session"}, MODE]


def test_nothing_is_granted_twice() -> None:
    request = request_of("Bash", {}, permission_suggestions=[{**RULE, "destination": "session"}])
    answer = interaction_pb2.PermissionAnswer(decision=FOR_SESSION, suggestion_ids=["1"])

    _, granted = answers.encode_answer(request, answer)

    assert len(granted) == 1


def test_a_rejection_has_a_message_and_may_end_the_turn() -> None:
    request = request_of("Bash", {"command": "rm -r /"})
    answer = interaction_pb2.PermissionAnswer(decision=REJECT, message="No!", interrupt=True)

    line, _ = answers.encode_answer(request, answer)

    assert response_of(line) == {"behavior": "deny", "message": "No!", "interrupt": True}


def test_a_rejection_without_message_says_something() -> None:
    line, _ = answers.encode_answer(
        request_of("Bash", {}), interaction_pb2.PermissionAnswer(decision=REJECT)
    )

    assert response_of(line) == {"behavior": "deny", "message": answers.REJECTED}


def answered(*said: interaction_pb2.SingleAnswer) -> interaction_pb2.QuestionAnswer:
    return interaction_pb2.QuestionAnswer(answered=interaction_pb2.AnsweredQuestions(answers=said))


def test_answers_are_joined_and_put_beside_the_questions() -> None:
    request = request_of("AskUserQuestion", {"questions": [COLOR, TOPPINGS]})
    answer = answered(
        interaction_pb2.SingleAnswer(question_id="2", labels=["Cheese", "Ham"], text="olives"),
        interaction_pb2.SingleAnswer(question_id="1", text="dark green"),
    )

    line, _ = answers.encode_answer(request, answer)

    assert response_of(line) == {
        "behavior": "allow",
        "updatedInput": {
            "questions": [COLOR, TOPPINGS],
            "answers": {
                "Which toppings?": "Cheese, Ham, olives",
                "Which color?": "dark green",
            },
        },
    }


def test_an_answer_to_a_question_that_was_not_asked_is_not_sent() -> None:
    request = request_of("AskUserQuestion", {"questions": [COLOR]})

    with pytest.raises(NotDelivered):
        answers.encode_answer(
            request, answered(interaction_pb2.SingleAnswer(question_id="7", labels=["Red"]))
        )


def test_questions_can_be_rejected() -> None:
    request = request_of("AskUserQuestion", {"questions": [COLOR]})
    answer = interaction_pb2.QuestionAnswer(
        rejected=interaction_pb2.RejectedQuestions(interrupt=True)
    )

    line, _ = answers.encode_answer(request, answer)

    assert response_of(line) == {
        "behavior": "deny",
        "message": answers.DECLINED,
        "interrupt": True,
    }


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        (
            interaction_pb2.FormAnswer(
                action=interaction_pb2.FORM_ACTION_ACCEPT, content_json='{"name":"x"}'
            ),
            {"action": "accept", "content": {"name": "x"}},
        ),
        (
            interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_DECLINE),
            {"action": "decline"},
        ),
        (
            interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL),
            {"action": "cancel"},
        ),
    ],
)
def test_forms_are_answered(answer: interaction_pb2.FormAnswer, response: Json) -> None:
    request = request_of("X", {})

    assert response_of(answers.encode_answer(request, answer).line) == response


def test_control_requests_and_refusals() -> None:
    assert json.loads(answers.encode_control("c1", "set_model", {"model": "m"})) == {
        "type": "control_request",
        "request_id": "c1",
        "request": {"subtype": "set_model", "model": "m"},
    }
    assert json.loads(answers.encode_refusal("r1", "unsupported")) == {
        "type": "control_response",
        "response": {"subtype": "error", "request_id": "r1", "error": "unsupported"},
    }


def test_what_a_turn_leaves_unanswered_is_refused_by_its_kind() -> None:
    denied = {"behavior": "deny", "message": answers.UNANSWERED}
    for request in (
        request_of("Bash", {"command": "ls"}),
        request_of("AskUserQuestion", {"questions": [COLOR]}),
    ):
        assert response_of(answers.encode_unanswered(request)) == denied
    form = NativeRequest("r1", Kind.FORM_REQUESTED)
    assert response_of(answers.encode_unanswered(form)) == {"action": "cancel"}
