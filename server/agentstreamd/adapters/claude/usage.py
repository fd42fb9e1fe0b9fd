"""Usage and cost of turns, from figures that the CLI adds up over the life of its process."""

from collections.abc import Mapping
from typing import Any

from agentstream.v1 import session_pb2

_TOKENS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_TURN_TOKENS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_LIMIT = 1 << 62


class UsageMeter:
    """Takes the difference of cumulative figures: they include sub-agents and compaction, which the
    turn's own `usage` does not.
    """

    def __init__(self) -> None:
        self._tokens = [0, 0, 0, 0]
        self._cost = 0
        self._carried = [0, 0, 0, 0]

    def take(self, result: Mapping[str, Any], *, carry: bool = False) -> session_pb2.Usage | None:
        """The usage since the last call. With `carry` it is kept and counts to the next call."""
        tokens = self._difference(result)
        if tokens is not None:
            self._carried = [a + b for a, b in zip(self._carried, tokens, strict=True)]
        if carry:
            return None
        usage = session_pb2.Usage()
        if tokens is not None or any(self._carried):
            fresh, written, cached, stored = self._carried
            usage.input_tokens = fresh + cached + stored
            usage.output_tokens = written
            usage.cache_read_tokens = cached
            usage.cache_write_tokens = stored
        self._carried = [0, 0, 0, 0]
        cost = result.get("total_cost_usd")
        if isinstance(cost, int | float) and 0 <= cost < 1e12:
            micro = round(cost * 1_000_000)
            # A figure that falls was begun anew.
            usage.cost_micro_usd = micro - self._cost if micro >= self._cost else micro
            self._cost = micro
        return usage

    def _difference(self, result: Mapping[str, Any]) -> list[int] | None:
        models = result.get("modelUsage")
        if isinstance(models, Mapping) and (models or not any(self._tokens)):
            each = [figures for figures in models.values() if isinstance(figures, Mapping)]
            now = [sum(_count(figures, name) for figures in each) for name in _TOKENS]
            before, self._tokens = self._tokens, now
            if all(a >= b for a, b in zip(now, before, strict=True)):
                return [a - b for a, b in zip(now, before, strict=True)]
        turn = result.get("usage")
        if isinstance(turn, Mapping):
            return [_count(turn, name) for name in _TURN_TOKENS]
        return None


def _count(figures: Mapping[str, Any], name: str) -> int:
    value = figures.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value < _LIMIT else 0
