"""Agents that write at a steady pace, all from one process.

Run as `python -m bench.pace RATE SECONDS FDS`: RATE is in lines a second of each agent, FDS is a
JSON list of their pipes' descriptors. Without SECONDS (0) they write until standard input ends.
"""

import json
import os
import select
import sys
import time
from collections.abc import Iterator

from bench import native


def main(rate: float, seconds: float, descriptors: list[int]) -> None:
    """Write a turn to each pipe: its deltas begin with the monotonic time in nanoseconds."""
    said: list[list[str]] = [[] for _ in descriptors]
    for descriptor in descriptors:
        os.write(descriptor, native.begin() + native.opening())
    for number in _moments(rate * len(descriptors), seconds):
        place = number % len(descriptors)
        text = f"{time.monotonic_ns()} "
        said[place].append(text)
        os.write(descriptors[place], native.delta(text))
    for descriptor, texts in zip(descriptors, said, strict=True):
        os.write(descriptor, native.closing("".join(texts)) + native.end())


def _moments(rate: float, seconds: float) -> Iterator[int]:
    """Numbers, each when it is time; those that are late at once."""
    begun, number = time.monotonic(), 0
    watched = [] if seconds else [sys.stdin]
    while not seconds or number < rate * seconds:
        wait = max(0.0, begun + number / rate - time.monotonic())
        if select.select(watched, [], [], wait)[0]:
            return
        yield number
        number += 1


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3]))
