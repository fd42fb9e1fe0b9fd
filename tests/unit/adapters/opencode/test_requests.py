"""Permissions and questions of OpenCode."""

import json

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.model import Kind
from tests.unit.adapters.opencode.opencode_events import (
    CHILD,
    assistant,
    begun,
    event,
    feed,
    idle,
    of,
    own,
    permission,
    post,
    prompt,
    tool,
    user,
    wrapped,
)

ONCE = {"reply": "once"}


def replied(reply: str, request_id: str = "per_1") -> bytes:
    return event("permission.replied", requestID=request_id, reply=reply)


def question(**more: object) -> bytes:
    options = [{"label": "Red", "description": "warm"}, {"label": "Red"}, {"label": "Blue"}]
    asked = {"question": "Which?", "header": "Color", "options": options, **more}
    call = {"messageID": "msg_a", "callID": "call_q"}
    return event("question.asked", id="que_1", questions=[asked], tool=call)


def test_a_command_is_asked_with_its_arguments() -> None:
    running = tool("running", input={"command": "echo hi", "description": "Say hi"})
    _, drafts = begun(running, permission())
    [said] = of(drafts, Kind.PERMISSION_REQUESTED)
    request = said.permission_requested
    assert request.request_id == request.native_request_id == "per_1"
    assert request.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert (request.command, request.call_id, request.tool_name) == ("echo hi", "call_1", "bash")
    assert json.loads(request.arguments_json)["description"] == "Say hi"
    assert json.loads(said.metadata_json) == {"permission": "bash", "patterns": ["echo hi"]}
    assert request.takes_message
    assert request.suggestions[0].description == "bash: echo *"
    assert list(request.allowed_decisions) == [
        interaction_pb2.PERMISSION_DECISION_ACCEPT,
        interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION,
        interaction_pb2.PERMISSION_DECISION_REJECT,
    ]


def test_one_that_comes_before_its_call_runs_waits_for_the_arguments() -> None:
    normalizer, drafts = begun(tool("pending"), permission(), permission())
    assert not of(drafts, Kind.PERMISSION_REQUESTED)
    drafts = feed(normalizer, tool("running", input={"command": "echo hi", "workdir": "/w"}))
    assert [d.kind for d in drafts] == [Kind.ITEM_COMPLETED, Kind.PERMISSION_REQUESTED]
    request = drafts[1].event.permission_requested
    assert json.loads(request.arguments_json) == {"command": "echo hi", "workdir": "/w"}
    assert request.cwd == "/w"


def test_one_that_waits_for_arguments_is_asked_when_it_is_answered_or_its_session_is_idle() -> None:
    for late, resolved in ((replied("once"), 1), (idle(), 0)):
        normalizer, _ = begun(tool("pending"), permission())
        drafts = feed(normalizer, late)
        assert len(of(drafts, Kind.PERMISSION_REQUESTED)) == 1
        assert len(of(drafts, Kind.PERMISSION_RESOLVED)) == resolved


def test_a_command_runs_where_the_session_does_unless_it_says_otherwise() -> None:
    asked = wrapped(permission(), directory="/repo")
    _, drafts = begun(tool("running", input={"command": "echo hi"}), asked)
    [said] = of(drafts, Kind.PERMISSION_REQUESTED)
    assert said.permission_requested.cwd == "/repo"


def test_one_that_says_nothing_waits_for_the_arguments_of_its_call() -> None:
    normalizer, drafts = begun(
        tool("pending", "echo_echo"), permission(permission="echo_echo", metadata={}, always=["*"])
    )
    assert not of(drafts, Kind.PERMISSION_REQUESTED)
    drafts = feed(normalizer, tool("running", "echo_echo", input={"text": "x"}))
    [said] = of(drafts, Kind.PERMISSION_REQUESTED)
    assert said.permission_requested.arguments_json == '{"text": "x"}'


def test_a_tool_of_an_mcp_server_is_known_by_its_name() -> None:
    normalizer = OpenCodeNormalizer(mcp_servers=["echo"])
    normalizer.sent(prompt())
    asked = permission(permission="echo_say", metadata={"a": 1})
    [said] = of(feed(normalizer, user(), assistant(), asked), Kind.PERMISSION_REQUESTED)
    assert said.permission_requested.kind == interaction_pb2.PERMISSION_KIND_MCP_TOOL


def test_a_file_change_shows_its_diff() -> None:
    asked = permission(permission="edit", metadata={"filepath": "a.txt", "diff": "+x"})
    _, drafts = begun(tool("running", "write", input={"filePath": "a.txt"}), asked)
    [said] = of(drafts, Kind.PERMISSION_REQUESTED)
    [file] = said.permission_requested.files
    assert (file.path, file.diff) == ("a.txt", "+x")


def test_a_request_is_asked_once() -> None:
    _, drafts = begun(permission(), permission())
    assert len(of(drafts, Kind.PERMISSION_REQUESTED)) == 1


def test_an_answer_of_ours_is_no_news() -> None:
    normalizer, _ = begun(permission())
    normalizer.sent(post("/permission/per_1/reply", ONCE))
    assert feed(normalizer, replied("once")) == []


def test_an_answer_that_did_not_arrive_is_forgotten() -> None:
    normalizer, _ = begun(permission())
    normalizer.sent(post("/permission/per_1/reply", ONCE))
    normalizer.not_sent(request_id="per_1")
    [said] = of(feed(normalizer, replied("reject")), Kind.PERMISSION_RESOLVED)
    assert said.permission_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_REJECTED


def test_what_is_rejected_along_is_resolved_by_the_agent() -> None:
    normalizer, _ = begun(permission(), permission("per_2"))
    normalizer.sent(post("/permission/per_1/reply", {"reply": "reject"}))
    drafts = feed(normalizer, replied("reject"), replied("reject", "per_2"))
    [said] = of(drafts, Kind.PERMISSION_RESOLVED)
    assert said.permission_resolved.request_id == "per_2"
    assert said.permission_resolved.resolved_by == interaction_pb2.RESOLVED_BY_AGENT


def test_what_was_given_for_the_session_covers_what_waits_and_what_comes() -> None:
    normalizer, _ = begun(permission(), permission("per_2"), permission("per_3", always=["rm *"]))
    normalizer.sent(post("/permission/per_1/reply", ONCE))
    [said] = of(normalizer.requests.grant([("bash", "echo *")]), Kind.PERMISSION_RESOLVED)
    assert said.permission_resolved.request_id == "per_2"
    assert said.permission_resolved.resolved_by == interaction_pb2.RESOLVED_BY_POLICY
    later = feed(normalizer, permission("per_4"))
    assert [d.kind for d in later] == [Kind.PERMISSION_REQUESTED, Kind.PERMISSION_RESOLVED]
    assert [ask.request_id for ask in normalizer.take_accepts()] == ["per_2", "per_4"]
    assert normalizer.take_accepts() == []
    assert feed(normalizer, replied("once", "per_4")) == []


def test_what_would_allow_nothing_more_is_not_covered() -> None:
    normalizer, _ = begun()
    normalizer.requests.grant([("bash", "echo *")])
    feed(normalizer, permission(always=[]), permission("per_2", always=["echo *", "cat *"]))
    assert set(normalizer.requests.pending) == {"per_1", "per_2"}


def test_what_a_turn_leaves_unanswered_waits_no_more_and_is_not_asked_again() -> None:
    normalizer, _ = begun(permission(), assistant(done=True), idle())
    assert not normalizer.requests.pending
    assert feed(normalizer, permission()) == []


def test_a_request_that_is_gone_is_resolved_as_unknown() -> None:
    normalizer, _ = begun(permission())
    [said] = of(feed(normalizer, own("gone", requestID="per_1")), Kind.PERMISSION_RESOLVED)
    assert said.permission_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_UNKNOWN


def test_a_sub_agents_request_stands_under_its_call() -> None:
    running = tool("running", "task", metadata={"sessionId": CHILD})
    _, drafts = begun(running, permission(session=CHILD, tool={"callID": "call_c"}))
    [said] = of(drafts, Kind.PERMISSION_REQUESTED)
    assert said.permission_requested.parent_id == "prt_t"


def test_questions_have_options_once_and_take_words_unless_told() -> None:
    _, drafts = begun(question(multiple=True))
    [said] = of(drafts, Kind.QUESTION_REQUESTED)
    [asked] = said.question_requested.questions
    assert (asked.text, asked.header) == ("Which?", "Color")
    assert [option.label for option in asked.options] == ["Red", "Blue"]
    assert asked.multi_select
    assert asked.free_text
    _, drafts = begun(question(custom=False))
    [said] = of(drafts, Kind.QUESTION_REQUESTED)
    assert not said.question_requested.questions[0].free_text


def test_an_answer_by_another_way_is_told_in_labels_and_words() -> None:
    normalizer, _ = begun(question())
    answered = event("question.replied", requestID="que_1", answers=[["Blue", "or green"]])
    [said] = of(feed(normalizer, answered), Kind.QUESTION_RESOLVED)
    [answer] = said.question_resolved.answer.answered.answers
    assert (list(answer.labels), answer.text) == (["Blue"], "or green")


def test_rejected_questions_are_resolved() -> None:
    normalizer, _ = begun(question())
    rejected = event("question.rejected", requestID="que_1")
    [said] = of(feed(normalizer, rejected), Kind.QUESTION_RESOLVED)
    assert said.question_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_REJECTED
