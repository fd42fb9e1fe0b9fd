import json

import msgspec
import pytest

from agentstreamd.adapters.claude import native
from tests.unit.adapters.claude.claude_lines import assistant, text_delta, tool_use


def test_arguments_keep_their_bytes() -> None:
    arguments = b'{"b": 1.10,\t"a":12345678901234567890123,"u":"\\u00e9"}'
    line = assistant("m", {"type": "tool_use", "id": "t", "name": "X"}).replace(
        b'"name":"X"', b'"name":"X","input":' + arguments
    )

    message = native.decode(line).message

    assert message is not None
    (block,) = native.blocks(message.content)
    assert bytes(block.input) == arguments


def test_members_of_another_shape_count_as_absent() -> None:
    line = native.decode(
        b'{"type":"assistant","subtype":[1],"uuid":7,'
        b'"message":{"id":{"new":1},"model":"m","content":[{"type":"text","text":"hi"},"odd"]}}'
    )

    assert line.type == "assistant"
    assert line.subtype is None
    assert line.uuid is None
    assert line.message is not None
    assert line.message.id == ""
    assert line.message.model == "m"
    assert [block.text for block in native.blocks(line.message.content)] == ["hi"]


def test_type_need_not_come_first() -> None:
    assert native.decode(b'{"uuid":"u","new_field":{"a":[1]},"type":"result"}').type == "result"


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    line = native.decode(b'{"type":"user","message":{"content":"a\\ud83d b \\ud83d\\ude00"}}')

    assert line.message is not None
    (block,) = native.blocks(line.message.content)
    assert block.text == "a\ufffd b \U0001f600"


def test_a_delta_keeps_half_a_surrogate_pair_until_the_other_comes() -> None:
    line = native.decode(text_delta(0, "x").replace(b'"x"', b'"\\ud83d"'))

    assert line.event is not None
    assert line.event.delta is not None
    assert line.event.delta.text == "\ud83d"
    assert not line.intact


def test_numbers_that_json_does_not_have_become_null() -> None:
    said = native.fields(b'{"type":"system","a":NaN,"b":-Infinity,"c":[Infinity,1]}')

    assert said == {"type": "system", "a": None, "b": None, "c": [None, 1]}


def test_invalid_utf8_is_replaced() -> None:
    assert native.fields(b'{"type":"x","text":"a\xffb"}')["text"] == "a\ufffdb"


@pytest.mark.parametrize(
    "line", [b"", b"null", b"[]", b'"text"', b"{", b"Error: no", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_is_no_json_object_is_unreadable(line: bytes) -> None:
    with pytest.raises(native.Unreadable):
        native.decode(line)


def test_unknown_blocks_do_not_hide_known_ones() -> None:
    content = [{"type": "new", "text": {"deep": 1}}, tool_use("t", "Bash", command="ls")]

    unknown, call = native.blocks(msgspec.Raw(json.dumps(content).encode()))

    assert (unknown.type, unknown.text) == ("new", "")
    assert (call.id, call.name) == ("t", "Bash")
