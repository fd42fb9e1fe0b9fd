import pytest

from agentstream.cli.text import count, duration, one_line, plain, size, visible


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x1b\\", "link"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("50%\r100%", r"50%\x0d100%"),
        ("\x9b31m", r"\x9b31m"),
        ("\x1b", r"\x1b"),
        ("abc\u202edef", r"abc\u202edef"),
        ("žluťoučký 🐎", "žluťoučký 🐎"),
    ],
)
def test_plain_text_has_no_control_characters(written: str, expected: str) -> None:
    assert plain(written) == expected


def test_visible_text_hides_nothing() -> None:
    assert visible("a\x1b[8mb") == r"a\x1b[8mb"


def test_one_line_is_cut_at_its_width() -> None:
    assert one_line("a\n  b\tc", 20) == "a b c"
    assert one_line("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (999_950, "1.0M")]
)
def test_counts_are_short(number: int, text: str) -> None:
    assert count(number) == text


def test_sizes_and_durations_have_units() -> None:
    assert [size(n) for n in (10, 2048, 5 << 20, 3 << 30)] == [
        "10 bytes",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]
    assert [duration(s) for s in (-1, 0.84, 12.4, 65, 7800, 400_000)] == [
        "0.0 s",
        "0.8 s",
        "12 s",
        "1 min 5 s",
        "2 h 10 min",
        "4 d",
    ]
