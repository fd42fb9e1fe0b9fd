"""The `agentstreamd` command."""

import os
import sys

# Read when grpc is imported. Its fork handlers have aborted the core while other threads spawned;
# the daemon itself never forks.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def main() -> int:
    """Run the daemon; returns its exit code, see `--help`."""
    from agentstreamd.config import ConfigError, load

    arguments = sys.argv[1:]
    target = None
    if arguments[:1] == ["backup"]:
        if len(arguments) < 2 or arguments[1].startswith("-"):
            print("agentstreamd: backup needs a directory: backup DIR [flags].", file=sys.stderr)
            return 2
        target, arguments = arguments[1], arguments[2:]
    try:
        command = load(arguments, os.environ)
    except ConfigError as error:
        print(f"agentstreamd: {error}", file=sys.stderr)
        return 2
    if target is not None:
        from agentstreamd.backup import run as back_up

        return back_up(command.config.data_dir, target)
    if command.print_config:
        print(command.config.shown())
        return 0

    from agentstreamd.daemon import run

    return run(command.config)


if __name__ == "__main__":
    sys.exit(main())
