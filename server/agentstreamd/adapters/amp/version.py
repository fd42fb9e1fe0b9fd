"""What a version of Amp can do. Versions are `0.0.SECONDS-gCOMMIT`, seconds since 1970."""

import re

IMAGES_SINCE = 1777897475
"""The first version seen to take images; one of January ends its session on them."""

CUT_UNTIL = 1777897475
"""The last version seen to cut a turn at once on a message that comes in it."""

_VERSION = re.compile(r"\b0\.0\.(\d{9,11})(?:-g[0-9a-f]+)?")


def read_version(said: str) -> str:
    """The version in what `amp --version` says; empty where there is none."""
    found = _VERSION.search(said)
    return found.group(0) if found else ""


def takes_images(version: str) -> bool:
    """Whether messages may carry images."""
    return _seconds(version) >= IMAGES_SINCE


def cuts_turns(version: str) -> bool:
    """Whether a message without content cuts the running turn."""
    return 0 < _seconds(version) <= CUT_UNTIL


def modes(version: str) -> tuple[tuple[str, str], ...]:
    """Names of the modes and what they are for."""
    if _seconds(version) > CUT_UNTIL:
        return (
            ("low", "Fast and cheap."),
            ("medium", "The default."),
            ("high", "Thinks longer."),
            ("ultra", "Thinks longest."),
        )
    return (
        ("smart", "The default."),
        ("rush", "Fast and cheap, for small tasks."),
        ("deep", "Thinks long, for hard tasks."),
        ("large", "A larger context window."),
    )


def _seconds(version: str) -> int:
    found = _VERSION.search(version)
    return int(found.group(1)) if found else 0
