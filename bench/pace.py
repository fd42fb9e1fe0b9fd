"""Agents that write at a steady pace, all from one process.

Run as `python -m bench.pace RATE SECONDS FDS`.
RATE is in lines a second of each; FDS is a JSON list of the pipes' descriptors.
"""

import json
import os
import sys
import time

from bench import native


def main(rate: float, seconds: float, descriptors: list[int]) -> None:
    """Write a turn to each pipe: its deltas begin with the monotonic time in nanoseconds."""
    said: list[list[str]] = [[] for _ in descriptors]
    for descriptor in descriptors:
        os.write(descriptor, native.begin() + native.opening())
    pause = 1 / rate / len(descriptors)
    begun = time.monotonic()
    for number in range(int(rate * seconds) * len(descriptors)):
        wait = begun + number * pause - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        place = number % len(descriptors)
        text = f"{time.monotonic_ns()} "
        said[place].append(text)
        os.write(descriptors[place], native.delta(text))
    for descriptor, texts in zip(descriptors, said, strict=True):
        os.write(descriptor, native.closing("".join(texts)) + native.end())


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3]))
