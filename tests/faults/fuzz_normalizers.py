"""A fuzz target for atheris: the line framer and, behind it, one agent's normalizer.

    python -m tests.faults.fuzz_normalizers AGENT [libFuzzer's flags] CORPUS...

An input is what an agent writes, in chunks whose size follows from its length; what comes of it
obeys the laws. `test_fuzz_normalizers.py` runs it from the recordings on, for a bounded time.
"""

import random
import sys

import atheris

with atheris.instrument_imports(include=["agentstreamd.adapters", "agentstreamd.sessions"]):
    from agentstreamd.adapters.registry import load
    from agentstreamd.laws import check
    from agentstreamd.process import LineFramer
    from agentstreamd.replay import replay

from tests.support.oddities import odd_lines

MAX_LINE_BYTES = 64 * 1024
LONGEST_CHUNK_BYTES = 251


BYTEWISE = 0.2
"""The share of inputs that are mutated byte by byte. Most of those break a line's JSON, where only
the framer and the parser get to see them; the others are mutated as transcripts."""


def mutated(data: bytes, max_size: int, seed: int) -> bytes:
    """Another input, made of one: what atheris asks for before each run."""
    chance = random.Random(seed)
    if chance.random() < BYTEWISE:
        return bytes(atheris.Mutate(data, max_size))
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 4)):
        lines = odd_lines(lines, chance)
    return b"\n".join(lines)[:max_size]


def main() -> None:
    """Fuzz the agent that the command line names."""
    agent = sys.argv.pop(1)
    adapter = load([agent])[agent]

    def one_input(data: bytes) -> None:
        size = 1 + len(data) % LONGEST_CHUNK_BYTES
        framer = LineFramer(MAX_LINE_BYTES)
        lines = []
        for start in range(0, len(data), size):
            lines += framer.feed(data[start : start + size])
        lines += framer.finish()
        events = list(replay(adapter, [line for line in lines if line != b""]))
        violations = check(events, complete=True, raw=False)
        if violations:
            raise AssertionError("\n".join(map(str, violations)))

    atheris.Setup(sys.argv, one_input, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
