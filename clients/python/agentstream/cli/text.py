"""Text for terminals: nothing that an agent writes may control the terminal."""

import re
from typing import Final

# CSI, OSC and the like, as programs write them to colour their output.
_ANSI: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """`text` without colours and cursor movements, other control characters escaped."""
    return visible(_ANSI.sub("", text).replace("\r\n", "\n"))


def visible(text: str) -> str:
    """`text` with every control character (also of writing direction) as an escape.

    For what a person decides on: nothing can be hidden from sight in it.
    """
    return _CONTROL.sub(_escape, text)


def one_line(text: str, width: int = 100) -> str:
    """`text` on one line of at most `width` characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def count(number: int) -> str:
    """A short form of a number: 950, 1.2k, 3.4M."""
    if number < 1000:
        return str(number)
    if number < 999_950:
        return f"{number / 1000:.1f}k"
    return f"{number / 1_000_000:.1f}M"


def size(number: int) -> str:
    """A number of bytes."""
    value = float(number)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def duration(seconds: float) -> str:
    """A span of time: 0.8 s, 12 s, 3 min 5 s, 2 h 10 min, 4 d."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d"


def enum_name(name: str, prefix: str) -> str:
    """The name of an enum value for people: without `prefix`, in small letters."""
    return name.removeprefix(prefix).replace("_", " ").lower()


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
