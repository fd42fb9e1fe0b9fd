import pytest

from agentstreamd.adapters.mock.effects import EFFECTS
from agentstreamd.adapters.mock.interpreter import Interpreter
from agentstreamd.adapters.mock.script import (
    DIRECTIVES,
    Directive,
    ScriptError,
    duration,
    filler,
    is_script,
    json_value,
    parse,
    quoted,
    size,
    text_of,
)


def names(directives: tuple[Directive, ...]) -> list[object]:
    return [(one.name, names(one.block)) if one.block else one.name for one in directives]


@pytest.mark.parametrize("text", ["say hi", "\n\n  say hi", "# a comment\nsay hi", "exit 1"])
def test_a_message_whose_first_line_begins_with_a_directive_is_a_script(text: str) -> None:
    assert is_script(text)


@pytest.mark.parametrize("text", ["", "Say hi", "hello\nsay hi", "saying hi", "# say hi"])
def test_other_messages_are_no_scripts(text: str) -> None:
    assert not is_script(text)


def test_every_directive_is_carried_out_by_something() -> None:
    handled = {name.removeprefix("_do_") for name in dir(Interpreter) if name.startswith("_do_")}
    assert handled | EFFECTS.keys() == DIRECTIVES
    assert not handled & EFFECTS.keys()


def test_blocks_nest() -> None:
    script = "agent A x\nsay one\nagent B y\nsay two\nend\nsay three\nend\nsay four"
    assert names(parse(script)) == [
        ("agent", ["say", ("agent", ["say"]), "say"]),
        "say",
    ]


def test_some_blocks_fit_on_one_line() -> None:
    script = "repeat 3 delta x\non reject say no\nspontaneous say hi\nrepeat 2 on accept say x"
    with pytest.raises(ScriptError, match="line 4: on must stand on a line of its own"):
        parse(script.replace("on accept say x", "on accept"))
    assert names(parse(script)) == [
        ("repeat", ["delta"]),
        ("on", ["say"]),
        ("spontaneous", ["say"]),
        ("repeat", [("on", ["say"])]),
    ]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("say hi\nsya hi", "line 2: there is no directive 'sya'"),
        ("say hi\nend", "line 2: there is nothing to end"),
        ("\nmessage\nsay hi", "line 2: message has no end"),
        ("repeat", "line 1: repeat needs an argument"),
        ("say hi\ntool", "line 2: tool needs the name of a tool"),
        ('write ""', "line 1: write needs a path"),
    ],
)
def test_an_error_of_a_script_names_its_line(script: str, sentence: str) -> None:
    with pytest.raises(ScriptError) as error:
        parse(script)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("text", "value"), [("5MB", 5 * 2**20), ("3 kb", 3072), ("7", 7), ("x", None), ("5XB", None)]
)
def test_sizes(text: str, value: int | None) -> None:
    assert size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("50ms", 0.05), ("1.5s", 1.5), ("5", None), ("soon", None)]
)
def test_durations(text: str, value: float | None) -> None:
    assert duration(text) == value


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("as it stands", "as it stands"),
        ('"a\\nb"', "a\nb"),
        ('"a" and more', '"a" and more'),
        ("@5", "The q"),
        ("@home", "@home"),
    ],
)
def test_texts(argument: str, text: str) -> None:
    assert text_of(argument) == text


def test_filler_has_the_size_that_is_asked_for() -> None:
    assert len(filler(1_000_003)) == 1_000_003


def test_arguments_are_taken_off_the_front() -> None:
    assert quoted('"two words" rest') == ("two words", "rest")
    assert quoted("one rest of it") == ("one", "rest of it")
    assert json_value('{"a": [1, "}"]} => out') == ('{"a": [1, "}"]}', "=> out")
    assert json_value("no json") == ("", "no json")
