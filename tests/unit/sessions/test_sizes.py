"""Content that is too large for an event."""

import hashlib
from typing import Any

import pytest

from agentstream.v1 import event_pb2, interaction_pb2, item_pb2
from agentstreamd.laws import MAX_EVENT_BYTES
from agentstreamd.model import (
    Draft,
    Kind,
    completed,
    delta,
    event,
    file_ref_part,
    image_part,
    json_part,
    started,
    status_item,
    text_part,
    tool_call_item,
    tool_result_item,
    whole,
)
from agentstreamd.sessions.sizes import HEAD_CHARACTERS, TAIL_CHARACTERS
from tests.unit.sessions.keeping import RAW, Stream, assistant
from tests.unit.sessions.lab import ACCEPT, Lab, until

LARGE = "".join(f"line {number}\n" for number in range(200_000))
LARGE_JSON = '{"a":"' + "x" * 2_000_000 + '"}'


def check_external(stream: Stream, part: Any, content: bytes, head: str, *, tail: bool) -> None:
    reference = part
    assert stream.blobs[reference.blob_id] == content
    assert reference.size_bytes == len(content)
    assert reference.sha256 == hashlib.sha256(content).hexdigest()
    text = content.decode(errors="replace")
    assert text.startswith(head)
    assert len(head) <= HEAD_CHARACTERS
    assert bool(reference.tail) == tail
    assert len(reference.tail) <= TAIL_CHARACTERS
    assert text.endswith(reference.tail)


def largest(stream: Stream) -> int:
    sizes = []
    for one in stream.events:
        one.ClearField("raw")
        sizes.append(one.ByteSize())
    return max(sizes)


def test_tool_output() -> None:
    stream = Stream()
    stream.feed(
        *whole(tool_call_item("c", name="Bash", arguments_json="{}", call_id="k"), RAW),
        *whole(tool_result_item("r", call_id="k", output=LARGE), RAW),
    )
    (part,) = stream.completed("r").content
    check_external(stream, part.external, LARGE.encode(), part.tool_result.output, tail=True)
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES


def test_arguments() -> None:
    stream = Stream()
    call = tool_call_item("c", name="Write", arguments_json=LARGE_JSON, call_id="k")
    stream.feed(*whole(call, RAW))
    (part,) = stream.completed("c").content
    check_external(
        stream, part.external, LARGE_JSON.encode(), part.tool_call.arguments_json, tail=True
    )
    assert part.external.media_type == "application/json"
    stream.end()


def test_a_diff_an_image_and_a_status() -> None:
    stream = Stream()
    result = tool_result_item(
        "r",
        call_id="k",
        output="ok",
        more=[
            file_ref_part("a.txt", item_pb2.FILE_ACTION_PATCH, LARGE),
            image_part("image/png", b"\x89" * 2_000_000),
            json_part("whole", LARGE_JSON),
        ],
    )
    call = tool_call_item("c", name="Edit", arguments_json="{}", call_id="k")
    stream.feed(
        *whole(call, RAW), *whole(result, RAW), *whole(status_item("s", "note", LARGE), RAW)
    )
    output, file, image, data = stream.completed("r").content
    assert not output.HasField("external")
    check_external(
        stream, file.file_ref.diff_external, LARGE.encode(), file.file_ref.diff, tail=True
    )
    check_external(stream, image.external, b"\x89" * 2_000_000, "", tail=False)
    assert image.image.WhichOneof("source") is None
    check_external(stream, data.external, LARGE_JSON.encode(), data.json.json, tail=True)
    (status,) = stream.completed("s").content
    assert stream.blobs[status.external.blob_id] == LARGE.encode()
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES


def test_text_that_came_by_deltas_and_as_a_whole() -> None:
    stream = Stream()
    stream.feed(started(assistant("a"), RAW))
    for at in range(0, len(LARGE), 300_000):
        text = LARGE[at : at + 300_000]
        stream.feed(delta("a", 0, event_pb2.DELTA_KIND_TEXT, text, RAW))
    stream.feed(completed(assistant("a", LARGE), RAW), *whole(assistant("b", LARGE), RAW))
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES
    (part,) = stream.completed("a").content
    check_external(stream, part.external, LARGE.encode(), part.text.text, tail=True)
    for item_id in "ab":
        deltas = [o.item_delta.text for o in stream.events if o.item_delta.item_id == item_id]
        assert "".join(deltas) == LARGE


def test_large_text_of_an_item_that_is_cut_off() -> None:
    stream = Stream()
    stream.feed(started(assistant("a", LARGE), RAW), started(assistant("b"), RAW))
    stream.feed(delta("b", 0, event_pb2.DELTA_KIND_TEXT, LARGE, RAW))
    stream.end()
    assert stream.completed("b").content[0].external.size_bytes == len(LARGE)


def test_characters_of_four_bytes() -> None:
    stream = Stream()
    text = "\U0001f600" * 600_000
    stream.feed(*whole(assistant("a", text), RAW))
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
@pytest.mark.parametrize(("parts", "length"), [(50, 32_000), (400, 20_000), (2000, 300)])
def test_many_parts(character: str, parts: int, length: int) -> None:
    stream = Stream()
    texts = [f"{number} ".ljust(length, character) for number in range(parts)]
    stream.feed(*whole(assistant("a", *texts), RAW))
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES
    for part, text in zip(stream.completed("a").content, texts, strict=True):
        kept = stream.blobs[part.external.blob_id].decode() if part.external.blob_id else ""
        assert (kept or part.text.text) == text


def test_what_does_not_fit_at_all_is_kept_as_a_whole() -> None:
    stream = Stream()
    call = tool_call_item("c", name="Bash", arguments_json="{}", call_id="k")
    more = [text_part(str(number)) for number in range(300_000)]
    stream.feed(
        *whole(call, RAW), *whole(tool_result_item("r", call_id="k", output="", more=more), RAW)
    )
    rest = stream.completed("r").content[-1]
    everything = item_pb2.Item.FromString(stream.blobs[rest.external.blob_id])
    assert len(everything.content) == 300_001
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES


def request(**fields: Any) -> Draft:
    made = event()
    made.permission_requested.CopyFrom(
        interaction_pb2.PermissionRequest(
            request_id="p",
            kind=interaction_pb2.PERMISSION_KIND_TOOL,
            allowed_decisions=[interaction_pb2.PERMISSION_DECISION_ACCEPT],
            **fields,
        )
    )
    return Draft(Kind.PERMISSION_REQUESTED, made, RAW)


def test_a_permission_with_large_arguments_and_files() -> None:
    stream = Stream()
    files = [
        item_pb2.FileRefPart(path=str(n), action=item_pb2.FILE_ACTION_PATCH, diff=LARGE)
        for n in range(50)
    ]
    suggestions = [
        interaction_pb2.PermissionSuggestion(suggestion_id=str(n), native_json=LARGE_JSON)
        for n in range(3)
    ]
    stream.feed(
        request(
            arguments_json=LARGE_JSON,
            files=files,
            command=LARGE,
            plan=LARGE,
            reason=LARGE,
            suggestions=suggestions,
        )
    )
    asked = stream.since[0].permission_requested
    check_external(
        stream, asked.arguments_external, LARGE_JSON.encode(), asked.arguments_json, tail=True
    )
    assert stream.blobs[asked.files[0].diff_external.blob_id] == LARGE.encode()
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES


def test_large_questions_and_forms() -> None:
    stream = Stream()
    questions = event()
    questions.question_requested.request_id = "q"
    for number in range(40):
        question = questions.question_requested.questions.add(
            question_id=str(number), text=LARGE, header=LARGE
        )
        for label in "abc":
            question.options.add(label=label, description=LARGE, preview=LARGE)
    form = event()
    form.form_requested.request_id = "f"
    form.form_requested.message = LARGE
    form.form_requested.schema_json = LARGE_JSON
    stream.feed(Draft(Kind.QUESTION_REQUESTED, questions, RAW))
    stream.feed(Draft(Kind.FORM_REQUESTED, form, RAW))
    kept = stream.since[0].question_requested.questions
    assert [question.question_id for question in kept] == [str(number) for number in range(40)]
    assert [option.label for option in kept[0].options] == ["a", "b", "c"]
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES


def test_large_answers() -> None:
    stream = Stream()
    questions = event()
    questions.question_requested.request_id = "q"
    questions.question_requested.questions.add(question_id="a", text="?", free_text=True)
    form = event()
    form.form_requested.request_id = "f"
    stream.feed(
        request(takes_updated_arguments=True),
        Draft(Kind.QUESTION_REQUESTED, questions, RAW),
        Draft(Kind.FORM_REQUESTED, form, RAW),
    )
    accepted = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    answers: list[tuple[str, Any]] = [
        (
            "p",
            interaction_pb2.PermissionAnswer(
                decision=interaction_pb2.PERMISSION_DECISION_ACCEPT,
                updated_arguments_json=LARGE_JSON,
            ),
        ),
        (
            "q",
            interaction_pb2.QuestionAnswer(
                answered=interaction_pb2.AnsweredQuestions(
                    answers=[interaction_pb2.SingleAnswer(question_id="a", text=LARGE)]
                )
            ),
        ),
        (
            "f",
            interaction_pb2.FormAnswer(
                action=interaction_pb2.FORM_ACTION_ACCEPT, content_json=LARGE_JSON
            ),
        ),
    ]
    for request_id, answer in answers:
        stream.keeper.resolve(
            request_id, accepted, interaction_pb2.RESOLVED_BY_CLIENT, answer=answer
        )
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES


def test_large_errors_ends_and_updates() -> None:
    stream = Stream()
    error = event()
    error.error.message = LARGE
    update = event()
    update.session_updated.tools.names.extend(f"tool {number}" for number in range(200_000))
    update.session_updated.model = "m"
    ended = event(metadata_json=LARGE_JSON)
    ended.turn_ended.status = event_pb2.TURN_STATUS_FAILED
    ended.turn_ended.error.message = LARGE
    ended.turn_ended.stop_reason = LARGE
    stream.feed(Draft(Kind.ERROR, error, RAW), Draft(Kind.SESSION_UPDATED, update, RAW))
    stream.feed(Draft(Kind.TURN_ENDED, ended, RAW))
    stream.end()
    assert largest(stream) <= MAX_EVENT_BYTES
    assert stream.since[1].session_updated.model == "m"


def test_a_large_native_message_is_kept_as_a_blob() -> None:
    stream = Stream()
    native = b'{"x":"' + b"y" * 2_000_000 + b'"}'
    stream.feed(*whole(assistant("a", "short"), (native, b"\xff", b"ok")))
    raw = stream.since[-1].raw
    assert stream.blobs[raw[0].blob.blob_id] == native
    assert (raw[1].data, raw[2].text) == (b"\xff", "ok")
    stream.end()


async def test_the_daemon_keeps_what_is_large_beside_the_stream(lab: Lab) -> None:
    await lab.create()
    await lab.send(LARGE)
    await until(lambda: lab.script.prompts)
    driver = lab.script.driver
    await driver.say(LARGE)
    draft = request(arguments_json=LARGE_JSON)
    await driver.publish(draft)
    (pending,) = (await lab.get()).pending_requests
    assert pending.ByteSize() < MAX_EVENT_BYTES
    await lab.respond("p", ACCEPT)
    await driver.end_turn()
    references = [i.item.content[0].external for i in await lab.only("item_completed")]
    (asked,) = await lab.only("permission_requested")
    for reference in (*references, asked.arguments_external):
        pieces = [piece async for piece in lab.log.read_blob("s", reference.blob_id)]
        assert hashlib.sha256(b"".join(pieces)).hexdigest() == reference.sha256
        assert await lab.manager.blob("s", reference.blob_id) == reference
    assert references[0] == references[1]
