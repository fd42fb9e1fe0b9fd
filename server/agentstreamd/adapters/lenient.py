"""JSON that strict parsers refuse: not all of it UTF-8, or with halves of surrogate pairs."""

import json
from typing import Any


def loads(text: bytes) -> Any:
    """Plain Python values; what is not UTF-8 is replaced.

    Raises ValueError where it is no JSON, NaN and Infinity included, and RecursionError.
    """
    return json.loads(text.decode("utf-8", "replace"), parse_constant=refuse)


def refuse(name: str) -> Any:
    """Raise ValueError: Python's parser takes this constant for JSON, and no other does."""
    raise ValueError(f"{name} is not JSON")
