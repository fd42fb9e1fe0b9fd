import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstreamd.process import HeadTail, plain_text


@given(st.lists(st.text("abc\n", max_size=30)), st.integers(0, 20), st.integers(0, 20))
def test_head_and_tail_are_the_ends_of_what_was_added(
    parts: list[str], head_bytes: int, tail_bytes: int
) -> None:
    sample = HeadTail(head_bytes, tail_bytes)
    for part in parts:
        sample.add(part.encode())
    whole = "".join(parts)
    assert sample.total_bytes == len(whole)
    assert sample.omitted_bytes == max(0, len(whole) - head_bytes - tail_bytes)
    if sample.omitted_bytes:
        assert sample.head() == whole[:head_bytes]
        assert sample.tail() == whole[len(whole) - tail_bytes :]
    else:
        assert (sample.text(), sample.tail()) == (whole, "")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m plain", "red plain"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link", "alink"),
        (b"50%\r100%\x08\x07\tdone\r\n", "50%100%\tdone\n"),
        ("\x9b31mé…".encode(), "31mé…"),
        (b"bad \xff\xfe utf-8", "bad \ufffd\ufffd utf-8"),
    ],
)
def test_text_for_people_holds_no_terminal_escapes(written: bytes, shown: str) -> None:
    assert plain_text(written) == shown


def test_characters_cut_in_two_are_left_out() -> None:
    sample = HeadTail(4, 4)
    sample.add("ééé…ééé".encode()[1:])
    sample = HeadTail(3, 3)
    sample.add("é€xxxxx€é".encode())
    assert (sample.head(), sample.tail()) == ("é", "é")
