"""What the CLI asks, and how what is asked gets resolved."""

import json

import pytest

from agentstream.v1 import interaction_pb2, item_pb2
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.model import Draft, Kind
from tests.unit.adapters.claude.claude_lines import (
    COLOR,
    DIRECTORY,
    MODE,
    RULE,
    TOPPINGS,
    Json,
    answer,
    assistant,
    can_use_tool,
    completed,
    events,
    fed,
    feed,
    init,
    line,
    result,
    statuses,
    system,
    tool_result,
    tool_use,
)

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT


def asked(tool: str, arguments: Json, **more: object) -> interaction_pb2.PermissionRequest:
    (event,) = events(
        feed(init(), can_use_tool("r1", tool, arguments, **more)), Kind.PERMISSION_REQUESTED
    )
    return event.permission_requested


def resolved(drafts: list[Draft]) -> list[interaction_pb2.PermissionResolved]:
    return [e.permission_resolved for e in events(drafts, Kind.PERMISSION_RESOLVED)]


def test_a_command_is_asked_with_all_that_a_person_needs() -> None:
    native = can_use_tool(
        "r1",
        "Bash",
        {"command": "touch a", "description": "make"},
        description="make",
        decision_reason="needs approval",
        permission_suggestions=[RULE, DIRECTORY, MODE],
        blocked_path="/w/a",
        tool_use_id="t1",
    )

    (event,) = events(feed(init(), native), Kind.PERMISSION_REQUESTED)

    request = event.permission_requested
    assert request.request_id == request.native_request_id == "r1"
    assert request.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert (request.command, request.cwd) == ("touch a", "/workspace")
    assert request.arguments_json == '{"command":"touch a","description":"make"}'
    assert request.reason == "needs approval"
    assert request.call_id == "t1"
    assert list(request.allowed_decisions) == [ACCEPT, FOR_SESSION, REJECT]
    assert request.takes_message
    assert request.takes_updated_arguments
    rule, directory, mode = request.suggestions
    assert rule.description == "Bash(touch a)"
    assert rule.scope == interaction_pb2.PERMISSION_SCOPE_PROJECT
    assert json.loads(rule.native_json) == RULE
    assert directory.description == "Work in /w"
    assert mode.description == "Permission mode acceptEdits"
    assert mode.scope == interaction_pb2.PERMISSION_SCOPE_SESSION
    assert json.loads(event.metadata_json)["blocked_path"] == "/w/a"


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("Edit", interaction_pb2.PERMISSION_KIND_FILE_CHANGE),
        ("Write", interaction_pb2.PERMISSION_KIND_FILE_CHANGE),
        ("NotebookEdit", interaction_pb2.PERMISSION_KIND_FILE_CHANGE),
        ("WebFetch", interaction_pb2.PERMISSION_KIND_NETWORK),
        ("mcp__db__query", interaction_pb2.PERMISSION_KIND_MCP_TOOL),
        ("ExitPlanMode", interaction_pb2.PERMISSION_KIND_PLAN),
        ("Read", interaction_pb2.PERMISSION_KIND_TOOL),
        ("SomethingNew", interaction_pb2.PERMISSION_KIND_TOOL),
    ],
)
def test_kinds_of_permissions(tool: str, kind: interaction_pb2.PermissionKind.ValueType) -> None:
    assert asked(tool, {}).kind == kind


def test_an_edit_is_asked_with_its_diff() -> None:
    request = asked(
        "Edit",
        {"file_path": "/w/a", "old_string": "beta\n", "new_string": "BETA\n"},
        permission_suggestions=[MODE],
    )

    (file,) = request.files
    assert (file.path, file.action) == ("/w/a", item_pb2.FILE_ACTION_PATCH)
    assert file.diff == "@@ -1 +1 @@\n-beta\n+BETA\n"


def test_a_file_that_is_written_is_asked_with_its_content_as_diff() -> None:
    (file,) = asked("Write", {"file_path": "/w/a", "content": "x\ny"}).files

    assert (file.action, file.diff) == (item_pb2.FILE_ACTION_WRITE, "@@ -0,0 +1,2 @@\n+x\n+y\n")


def test_a_plan_is_asked_with_its_text() -> None:
    assert asked("ExitPlanMode", {"plan": "1. Look"}).plan == "1. Look"


def test_accepting_for_the_session_is_offered_only_where_a_rule_fits() -> None:
    assert FOR_SESSION not in asked("WebSearch", {"query": "x"}).allowed_decisions
    assert FOR_SESSION in asked("Edit", {"file_path": "/w/a"}).allowed_decisions
    assert FOR_SESSION not in asked("Edit", {"file_path": "relative"}).allowed_decisions


def test_trap_5_a_sub_agents_request_may_come_before_its_call() -> None:
    drafts = feed(
        init(),
        assistant("m1", tool_use("task", "Task")),
        system("task_started", task_id="agent1", tool_use_id="task", description="Look"),
        can_use_tool("r1", "Bash", {"command": "ls"}, tool_use_id="t2", agent_id="agent1"),
        assistant("s1", tool_use("t2", command="ls"), thread="task"),
    )

    (event,) = events(drafts, Kind.PERMISSION_REQUESTED)
    assert event.permission_requested.call_id == "t2"
    assert event.permission_requested.parent_id == "call:task"


def test_trap_5_several_requests_wait_at_once() -> None:
    normalizer = ClaudeNormalizer()

    fed(
        normalizer,
        can_use_tool("r1", "Read", {"file_path": "/etc/a"}, tool_use_id="t1"),
        can_use_tool("r2", "Read", {"file_path": "/etc/b"}, tool_use_id="t2"),
        tool_result("t2"),
    )

    assert normalizer.request("r1") is not None
    assert normalizer.request("r2") is None


def test_questions_are_asked_with_their_options() -> None:
    drafts = feed(
        can_use_tool("r1", "AskUserQuestion", {"questions": [COLOR, TOPPINGS]}, tool_use_id="q1")
    )

    (event,) = events(drafts, Kind.QUESTION_REQUESTED)
    request = event.question_requested
    assert (request.request_id, request.call_id) == ("r1", "q1")
    color, toppings = request.questions
    assert (color.question_id, color.header, color.text) == ("1", "Color", "Which color?")
    assert [(o.label, o.description, o.preview) for o in color.options] == [
        ("Red", "Warm", "# red"),
        ("Blue", "Cold", ""),
    ]
    assert (color.multi_select, toppings.multi_select) == (False, True)
    assert color.free_text
    assert not color.optional


def test_questions_that_cannot_be_read_are_asked_as_a_permission() -> None:
    drafts = feed(can_use_tool("r1", "AskUserQuestion", {"questions": "?"}))

    assert [draft.kind for draft in drafts] == [Kind.PERMISSION_REQUESTED]


def test_an_elicitation_is_a_form() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    native = {
        "subtype": "elicitation",
        "mcp_server_name": "db",
        "message": "Who?",
        "mode": "form",
        "requested_schema": schema,
    }

    (event,) = events(
        feed(line(type="control_request", request_id="r1", request=native)), Kind.FORM_REQUESTED
    )

    form = event.form_requested
    assert (form.message, form.server_name) == ("Who?", "db")
    assert json.loads(form.schema_json) == schema


def test_the_cli_may_withdraw_a_request() -> None:
    drafts = feed(
        can_use_tool("r1", "Bash", {"command": "ls"}),
        line(type="control_cancel_request", request_id="r1"),
        line(type="control_cancel_request", request_id="r1"),
    )

    (one,) = resolved(drafts)
    assert one.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    assert one.resolved_by == interaction_pb2.RESOLVED_BY_AGENT


def test_what_was_answered_is_not_resolved_again() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, can_use_tool("r1", "Bash", {"command": "ls"}, tool_use_id="t1"))
    normalizer.sent(answer("r1", {"behavior": "allow", "updatedInput": {"command": "ls"}}))

    assert resolved(fed(normalizer, tool_result("t1"))) == []


def test_what_is_no_answer_leaves_the_request_to_its_result() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, can_use_tool("r1", "Bash", {"command": "ls"}, tool_use_id="t1"))
    normalizer.sent(answer("r1", {"behavior": "maybe"}))

    (one,) = resolved(fed(normalizer, tool_result("t1", "ZodError", is_error=True)))

    assert one.outcome == interaction_pb2.REQUEST_OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    ("native", "outcome"),
    [
        (tool_result("t1"), interaction_pb2.REQUEST_OUTCOME_ACCEPTED),
        (
            tool_result("t1", "failed", "Error: failed", is_error=True),
            interaction_pb2.REQUEST_OUTCOME_UNKNOWN,
        ),
        (
            tool_result("t1", "no", "User rejected tool use", is_error=True),
            interaction_pb2.REQUEST_OUTCOME_REJECTED,
        ),
    ],
)
def test_without_the_clients_side_the_result_says_how_it_was_answered(
    native: bytes, outcome: interaction_pb2.RequestOutcome.ValueType
) -> None:
    (one,) = resolved(feed(can_use_tool("r1", "Bash", {}, tool_use_id="t1"), native))

    assert one.outcome == outcome
    assert one.resolved_by == interaction_pb2.RESOLVED_BY_UNSPECIFIED


def test_without_the_clients_side_answers_are_read_from_the_result() -> None:
    said = {
        "questions": [COLOR, TOPPINGS],
        "answers": {"Which color?": "dark green", "Which toppings?": "Cheese, Ham"},
    }

    drafts = feed(
        can_use_tool("r1", "AskUserQuestion", {"questions": [COLOR, TOPPINGS]}, tool_use_id="q1"),
        tool_result("q1", "Your questions have been answered: ...", said),
    )

    (event,) = events(drafts, Kind.QUESTION_RESOLVED)
    color, toppings = event.question_resolved.answer.answered.answers
    assert (list(color.labels), color.text) == ([], "dark green")
    assert (list(toppings.labels), toppings.text) == (["Cheese", "Ham"], "")


def test_a_request_that_nobody_here_answers_is_handed_to_the_driver_and_shown() -> None:
    normalizer = ClaudeNormalizer()
    native = {"subtype": "hook_callback", "callback_id": "c"}

    drafts = fed(normalizer, line(type="control_request", request_id="r9", request=native))

    (control,) = normalizer.take_controls()
    assert (control.kind, control.request_id, control.error) == (
        "unsupported",
        "r9",
        "hook_callback",
    )
    assert statuses(drafts)[0].label == "unsupported_request"
    assert normalizer.take_controls() == []


def test_a_denial_without_asking_is_a_status_under_the_call() -> None:
    drafts = feed(
        init(),
        assistant("m1", tool_use("t1")),
        system("permission_denied", tool_name="Bash", tool_use_id="t1", message="Denied: mode."),
        result(permission_denials=[{"tool_name": "Bash", "tool_use_id": "t1"}]),
    )

    (status,) = statuses(drafts)
    assert (status.label, status.detail) == ("permission_denied", "Denied: mode.")


def test_denials_that_only_the_result_names_are_shown_unless_they_were_asked_for() -> None:
    denials = [
        {"tool_name": "Bash", "tool_use_id": "t1", "tool_input": {"command": "ls"}},
        {"tool_name": "Bash", "tool_use_id": "t2", "tool_input": {}},
    ]

    drafts = feed(
        can_use_tool("r1", "Bash", {}, tool_use_id="t2"), result(permission_denials=denials)
    )

    (item,) = [i for i in completed(drafts) if i.kind == item_pb2.ITEM_KIND_STATUS]
    assert item.parent_id == "call:t1"
    assert json.loads(item.content[1].json.json) == denials[0]


@pytest.mark.parametrize(
    ("tool", "arguments", "description", "reason"),
    [
        ("Bash", {"command": "touch z", "description": "z"}, "z", "z"),
        ("Edit", {"file_path": "/w/a.txt", "old_string": "b"}, "a.txt", ""),
        ("WebFetch", {"url": "http://example.com/x"}, "http://example.com/x", ""),
        ("Skill", {"skill": "deploy"}, "Deploys the site", "Deploys the site"),
    ],
)
def test_a_reason_says_more_than_the_arguments(
    tool: str, arguments: Json, description: str, reason: str
) -> None:
    assert asked(tool, arguments, description=description).reason == reason


def test_a_request_that_got_no_proper_answer_is_cancelled() -> None:
    failed = "Tool permission request failed: Error: Stream closed"
    drafts = feed(
        can_use_tool("r1", "Bash", {"command": "ls"}, tool_use_id="t1"),
        tool_result("t1", failed, f"Error: {failed}", is_error=True),
    )

    (request,) = resolved(drafts)
    assert request.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    assert request.resolved_by == interaction_pb2.RESOLVED_BY_AGENT


def test_questions_that_cannot_be_shown_are_asked_as_a_permission() -> None:
    permission = asked("AskUserQuestion", {"questions": [COLOR, {**TOPPINGS, "question": ""}]})
    assert permission.tool_name == "AskUserQuestion"


def test_options_that_cannot_be_told_apart_are_one() -> None:
    options = [{"label": "Red"}, {"label": ""}, {"label": "Red"}, {"description": "none"}]
    native = can_use_tool("r1", "AskUserQuestion", {"questions": [{**COLOR, "options": options}]})
    (event,) = events(feed(native), Kind.QUESTION_REQUESTED)
    (question,) = event.question_requested.questions
    assert [option.label for option in question.options] == ["Red"]
