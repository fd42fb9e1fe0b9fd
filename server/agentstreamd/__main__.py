"""The `agentstreamd` command."""

import os
import sys

# Read when grpc is imported. Its fork handlers have aborted the core while other threads spawned;
# the daemon itself never forks.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def main() -> int:
    """Run the daemon; returns its exit code, see `--help`."""
    from agentstreamd.config import ConfigError, load

    try:
        command = load(sys.argv[1:], os.environ)
    except ConfigError as error:
        print(f"agentstreamd: {error}", file=sys.stderr)
        return 2
    if command.print_config:
        print(command.config.shown())
        return 0

    from agentstreamd.daemon import run

    return run(command.config)


if __name__ == "__main__":
    sys.exit(main())
