"""The client's side of a transcript."""

import json

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.claude.client_side import client_actions
from tests.unit.adapters.claude.claude_lines import COLOR, RULE, Json, answer, line, user


def allow(**more: object) -> bytes:
    return answer("r1", {"behavior": "allow", "updatedInput": {"command": "ls"}, **more})


def permission(native: bytes) -> interaction_pb2.PermissionAnswer:
    (action,) = client_actions([native])
    assert action.request_id == "r1"
    assert isinstance(action.answer, interaction_pb2.PermissionAnswer)
    return action.answer


def test_prompts_are_found_with_their_parts() -> None:
    image = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    natives = [
        line(type="control_request", request_id="c1", request={"subtype": "initialize"}),
        user("hello", uuid="u1"),
        user([{"type": "text", "text": "see"}, {"type": "image", "source": image}]),
        user("/compact"),
        b"not json",
    ]

    plain, rich, command = client_actions(natives)

    assert plain.native == natives[1]
    assert plain.prompt is not None
    assert (plain.prompt.message_id, plain.prompt.parts[0].text) == ("u1", "hello")
    assert rich.prompt is not None
    assert rich.prompt.parts[1].image.data == b"\x89PNG"
    assert not rich.prompt.command
    assert command.prompt is not None
    assert command.prompt.command


def test_acceptances_are_told_apart() -> None:
    assert permission(allow()).decision == interaction_pb2.PERMISSION_DECISION_ACCEPT
    assert (
        permission(allow(updatedPermissions=[RULE])).decision
        == interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
    )


def test_rejections_keep_message_and_interrupt() -> None:
    denied = permission(answer("r1", {"behavior": "deny", "message": "No", "interrupt": True}))
    assert denied.decision == interaction_pb2.PERMISSION_DECISION_REJECT
    assert (denied.message, denied.interrupt) == ("No", True)

    failed = {"subtype": "error", "request_id": "r1", "error": "nobody there"}
    assert permission(line(type="control_response", response=failed)).message == "nobody there"


def test_answers_to_questions_are_read_from_the_arguments() -> None:
    arguments: Json = {"questions": [COLOR], "answers": {"Which color?": "Red"}}

    (action,) = client_actions([answer("r1", {"behavior": "allow", "updatedInput": arguments})])

    assert isinstance(action.answer, interaction_pb2.QuestionAnswer)
    (single,) = action.answer.answered.answers
    assert (single.question_id, list(single.labels)) == ("1", ["Red"])


def test_a_free_response_answers_every_question() -> None:
    arguments: Json = {"questions": [COLOR], "answers": {}, "response": "Let us talk."}

    (action,) = client_actions([answer("r1", {"behavior": "allow", "updatedInput": arguments})])

    assert isinstance(action.answer, interaction_pb2.QuestionAnswer)
    assert action.answer.answered.answers[0].text == "Let us talk."


def test_forms_are_read() -> None:
    (action,) = client_actions([answer("r1", {"action": "accept", "content": {"a": 1}})])

    assert isinstance(action.answer, interaction_pb2.FormAnswer)
    assert json.loads(action.answer.content_json) == {"a": 1}


def test_what_is_no_answer_is_left_out() -> None:
    natives = [
        answer("r1", {"behavior": "maybe"}),
        answer("r1", {"mcp_response": {"jsonrpc": "2.0"}}),
        line(type="control_response"),
    ]

    assert client_actions(natives) == []


def test_questions_may_be_left_without_an_answer() -> None:
    (action,) = client_actions(
        [answer("r1", {"behavior": "allow", "updatedInput": {"questions": [COLOR]}})]
    )

    assert isinstance(action.answer, interaction_pb2.QuestionAnswer)
    assert list(action.answer.answered.answers) == []


def test_a_path_at_the_beginning_is_no_command() -> None:
    (action,) = client_actions([user("/tmp/foo is a path")])
    assert action.prompt is not None
    assert not action.prompt.command


def test_a_prompt_that_says_nothing_is_one_all_the_same() -> None:
    prompts = [action.prompt for action in client_actions([user(""), user([]), user("hello")])]
    texts = [[part.text for part in prompt.parts] for prompt in prompts if prompt is not None]
    assert texts == [[""], [""], ["hello"]]


def test_a_prompt_that_was_withdrawn_was_never_taken_up() -> None:
    withdrawal = {"subtype": "cancel_async_message", "message_uuid": "u1"}
    natives = [
        user("first"),
        user("second", uuid="u1"),
        line(type="control_request", request_id="c1", request=withdrawal),
    ]
    (action,) = client_actions(natives)
    assert action.native == natives[0]


def test_an_acceptance_has_the_arguments_that_were_accepted() -> None:
    assert json.loads(permission(allow()).updated_arguments_json) == {"command": "ls"}
    assert not permission(answer("r1", {"behavior": "allow"})).HasField("updated_arguments_json")


def test_answers_of_odd_types_are_taken_as_text() -> None:
    questions: Json = {"questions": [COLOR], "answers": {COLOR["question"]: ["Red", ["x"], 7]}}
    (action,) = client_actions([answer("r1", {"behavior": "allow", "updatedInput": questions})])
    assert isinstance(action.answer, interaction_pb2.QuestionAnswer)
    (single,) = action.answer.answered.answers
    assert (list(single.labels), single.text) == (["Red"], "['x'], 7")
