"""`python -m bench.peers`: install the peers, so that a run without a network finds them."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.peers import claude_sdk, installed

_PEERS: dict[str, Callable[[], Path]] = {
    **{name: partial(installed.program, name) for name in ("sandbox-agent", "opencode", "claude")},
    "claude-agent-sdk": claude_sdk.python,
}


def main() -> int:
    """Install what is missing; 1 where something can't be had, and all else is installed."""
    code = 0
    for name, install in _PEERS.items():
        try:
            install()
        except installed.NotInstalled as error:
            print(f"bench: {name} could not be installed: {error}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
