"""What Codex asks, and how answers are written."""

import json
from typing import Any

import pytest

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.base import Answer, NotDelivered
from agentstreamd.adapters.codex import answers
from agentstreamd.adapters.codex.client_side import client_actions
from agentstreamd.adapters.codex.normalizer import CodexNormalizer
from agentstreamd.model import Draft, Kind
from tests.unit.adapters.codex.codex_lines import (
    feed,
    items,
    line,
    normalizer,
    started,
    turn_completed,
)

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT

COMMAND = line(
    "item/commandExecution/requestApproval",
    id=0,
    itemId="c",
    command="touch x",
    cwd="/w",
    reason="why not",
    proposedExecpolicyAmendment=["touch", "x"],
)
GRANT = line(
    "item/permissions/requestApproval",
    id="seven",
    itemId="g",
    cwd="/w",
    reason="must write",
    permissions={"network": None, "fileSystem": {"write": ["/x"]}},
)
MCP = line(
    "mcpServer/elicitation/request",
    id=2,
    serverName="s",
    mode="form",
    message="Allow?",
    requestedSchema={"type": "object", "properties": {}},
    _meta={
        "codex_approval_kind": "mcp_tool_call",
        "persist": ["session", "always"],
        "tool_name": "t",
        "tool_params": {"a": 1},
    },
)
FORM = line(
    "mcpServer/elicitation/request",
    id=3,
    serverName="s",
    mode="form",
    message="Your name?",
    requestedSchema={"type": "object", "properties": {"name": {"type": "string"}}},
    _meta=None,
)
QUESTIONS = line(
    "item/tool/requestUserInput",
    id=4,
    itemId="q",
    isBlocking=True,
    questions=[
        {"id": "a", "header": "A", "question": "A?", "isOther": False, "options": [{"label": "x"}]},
        {"id": "b", "header": "B", "question": "B?", "isSecret": True, "options": None},
    ],
)


def ask(native: bytes, *before: bytes) -> tuple[CodexNormalizer, Draft]:
    target = normalizer()
    feed(*before, to=target)
    [draft] = feed(native, to=target)
    return target, draft


def answered(native: bytes, answer: Answer) -> dict[str, Any]:
    target, draft = ask(native)
    asked = getattr(draft.event, draft.kind.name.lower())
    request = target.request(asked.request_id)
    assert request is not None
    written = answers.encode_answer(request, answer)
    target.sent(written)
    assert target.request(asked.request_id) is None, "answered already"
    said: dict[str, Any] = json.loads(written)
    assert said.pop("id") == json.loads(native)["id"]
    result: dict[str, Any] = said["result"]
    return result


def permission(
    decision: interaction_pb2.PermissionDecision.ValueType = ACCEPT, *suggestions: str
) -> interaction_pb2.PermissionAnswer:
    return interaction_pb2.PermissionAnswer(decision=decision, suggestion_ids=suggestions)


def test_a_command_is_asked_with_all_that_is_to_be_known() -> None:
    _, draft = ask(COMMAND, started({"type": "commandExecution", "id": "c", "command": "touch x"}))
    asked = draft.event.permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert (asked.request_id, asked.native_request_id, asked.call_id) == ("request-0", "0", "c")
    assert (asked.command, asked.cwd, asked.reason) == ("touch x", "/w", "why not")
    assert list(asked.allowed_decisions) == [ACCEPT, FOR_SESSION, REJECT]
    assert [s.suggestion_id for s in asked.suggestions] == ["command_prefix"]
    assert not asked.takes_message
    assert not asked.takes_updated_arguments


def test_what_a_request_says_beyond_its_fields_is_kept() -> None:
    wider = {"fileSystem": {"write": ["/x"]}}
    command = {**json.loads(COMMAND)["params"], "additionalPermissions": wider}
    drafts = feed(line("item/commandExecution/requestApproval", id=0, **command))
    assert json.loads(drafts[0].event.metadata_json) == {
        "itemId": "c",
        "additionalPermissions": wider,
    }
    about = {"codex_approval_kind": "mcp_tool_call", "tool_name": "t", "tool_description": "d"}
    [asked] = feed(line("mcpServer/elicitation/request", id=2, serverName="s", _meta=about))
    assert json.loads(asked.event.metadata_json) == {"_meta": {"tool_description": "d"}}


def test_network_access_is_asked_as_such() -> None:
    native = line(
        "item/commandExecution/requestApproval",
        id=0,
        itemId="c",
        networkApprovalContext={"host": "example.org", "protocol": "https"},
        proposedNetworkPolicyAmendments=[{"host": "example.org", "action": "allow"}],
    )
    _, draft = ask(native)
    asked = draft.event.permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_NETWORK
    assert "example.org" in asked.reason
    result = answered(native, permission(ACCEPT, "network_0"))
    policy = {"network_policy_amendment": {"host": "example.org", "action": "allow"}}
    assert result == {"decision": {"applyNetworkPolicyAmendment": policy}}


def test_files_come_from_the_item() -> None:
    change = {"path": "/w/f", "kind": {"type": "add"}, "diff": "x\n"}
    item = {"type": "fileChange", "id": "f", "changes": [change], "status": "inProgress"}
    native = line("item/fileChange/requestApproval", id=1, itemId="f", reason=None, grantRoot=None)
    _, draft = ask(native, started(item))
    [file] = draft.event.permission_requested.files
    assert (file.path, file.diff) == ("/w/f", "@@ -0,0 +1 @@\n+x\n")


@pytest.mark.parametrize(
    ("native", "answer", "result"),
    [
        (COMMAND, permission(), {"decision": "accept"}),
        (COMMAND, permission(FOR_SESSION), {"decision": "acceptForSession"}),
        (COMMAND, permission(REJECT), {"decision": "decline"}),
        (
            COMMAND,
            permission(ACCEPT, "command_prefix"),
            {
                "decision": {
                    "acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["touch", "x"]}
                }
            },
        ),
        (
            GRANT,
            permission(),
            {"permissions": {"fileSystem": {"write": ["/x"]}}, "scope": "turn"},
        ),
        (
            GRANT,
            permission(FOR_SESSION),
            {"permissions": {"fileSystem": {"write": ["/x"]}}, "scope": "session"},
        ),
        (GRANT, permission(REJECT), {"permissions": {}, "scope": "turn"}),
        (MCP, permission(), {"action": "accept", "content": {}, "_meta": None}),
        (
            MCP,
            permission(FOR_SESSION),
            {"action": "accept", "content": {}, "_meta": {"persist": "session"}},
        ),
        (
            MCP,
            permission(ACCEPT, "persist_always"),
            {"action": "accept", "content": {}, "_meta": {"persist": "always"}},
        ),
        (MCP, permission(REJECT), {"action": "decline", "content": None, "_meta": None}),
        (
            FORM,
            interaction_pb2.FormAnswer(
                action=interaction_pb2.FORM_ACTION_ACCEPT, content_json='{"name":"Ann"}'
            ),
            {"action": "accept", "content": {"name": "Ann"}, "_meta": None},
        ),
        (
            FORM,
            interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_DECLINE),
            {"action": "decline", "content": None, "_meta": None},
        ),
        (
            FORM,
            interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL),
            {"action": "cancel", "content": None, "_meta": None},
        ),
        (
            QUESTIONS,
            interaction_pb2.QuestionAnswer(
                answered=interaction_pb2.AnsweredQuestions(
                    answers=[
                        interaction_pb2.SingleAnswer(question_id="a", labels=["x"]),
                        interaction_pb2.SingleAnswer(question_id="b", text="free"),
                    ]
                )
            ),
            {"answers": {"a": {"answers": ["x"]}, "b": {"answers": ["free"]}}},
        ),
        (
            QUESTIONS,
            interaction_pb2.QuestionAnswer(rejected=interaction_pb2.RejectedQuestions()),
            {"answers": {}},
        ),
    ],
)
def test_answers_are_written_as_codex_takes_them(
    native: bytes, answer: Answer, result: dict[str, Any]
) -> None:
    assert answered(native, answer) == result
    # What was written is read back from a transcript as the same kind of answer.
    written = json.dumps({"id": 0, "result": result}).encode()
    [action] = client_actions([written])
    assert type(action.answer) is type(answer) or native is FORM


def test_an_answer_of_another_kind_is_not_delivered() -> None:
    target, draft = ask(QUESTIONS)
    request = target.request(draft.event.question_requested.request_id)
    assert request is not None
    with pytest.raises(NotDelivered):
        answers.encode_answer(request, permission())


def test_questions_say_what_answers_they_take() -> None:
    _, draft = ask(QUESTIONS)
    first, second = draft.event.question_requested.questions
    assert [option.label for option in first.options] == ["x"]
    assert (first.free_text, first.secret) == (False, False)
    assert (second.free_text, second.secret) == (True, True)


def test_an_elicitation_is_a_form_and_keeps_its_schema() -> None:
    _, draft = ask(FORM)
    form = draft.event.form_requested
    assert json.loads(form.schema_json)["properties"] == {"name": {"type": "string"}}
    assert (form.server_name, form.message) == ("s", "Your name?")


def test_an_elicitation_elsewhere_has_a_url() -> None:
    native = line(
        "mcpServer/elicitation/request",
        id=5,
        serverName="s",
        mode="url",
        message="m",
        url="http://x",
    )
    assert ask(native)[1].event.form_requested.url == "http://x"


@pytest.mark.parametrize(
    "method",
    [
        "account/chatgptAuthTokens/refresh",
        "attestation/generate",
        "applyPatchApproval",
        "execCommandApproval",
        "item/tool/call",
        "no/such/request",
    ],
)
def test_a_request_nobody_can_answer_is_to_be_refused(method: str) -> None:
    target = normalizer()
    drafts = feed(line(method, id=6), to=target)
    [refused] = target.take_unsupported()
    assert (refused.native_id, refused.method) == ("6", method)
    assert items(drafts)[0].content[0].status.label == "unsupported_request"
    said = json.loads(answers.encode_refusal(refused.native_id, "no"))
    assert (said["id"], said["error"]["code"]) == (6, -32601)


def test_a_request_that_we_answered_is_not_resolved_again() -> None:
    target, _ = ask(COMMAND)
    target.sent(b'{"id":0,"result":{"decision":"accept"}}')
    assert feed(line("serverRequest/resolved", requestId=0), to=target) == []


def test_a_request_that_another_answered_is_resolved() -> None:
    target, _ = ask(COMMAND)
    [draft] = feed(line("serverRequest/resolved", requestId=0), to=target)
    assert draft.kind is Kind.PERMISSION_RESOLVED
    resolved = draft.event.permission_resolved
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_UNKNOWN


def test_after_the_end_of_the_turn_nothing_waits() -> None:
    target, _ = ask(COMMAND)
    feed(turn_completed(status="interrupted"), to=target)
    assert target.request("request-0") is None
    assert feed(line("serverRequest/resolved", requestId=0), to=target) == []


def test_ids_of_requests_are_written_back_as_they_came() -> None:
    assert json.loads(answers.encode_result("0", {}))["id"] == 0
    assert json.loads(answers.encode_result('"seven"', {}))["id"] == "seven"


def test_what_is_not_unicode_is_not_written() -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        answers.encode({"text": "half \ud800"})
    assert b"\n" not in answers.encode({"text": "two\nlines\u2028"})
