"""`python -m bench.peers`: install the peers, so that a run without a network finds them."""

import sys

from bench.peers import claude_sdk, installed


def main() -> int:
    """Install what is missing; 1 where something can't be had."""
    try:
        for name in ("sandbox-agent", "opencode", "claude"):
            installed.program(name)
        claude_sdk.python()
    except installed.NotInstalled as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
