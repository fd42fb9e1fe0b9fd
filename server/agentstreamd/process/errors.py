"""The errors of this package; each message is one plain sentence that can be shown to people."""

import errno
import os


class ProcessError(Exception):
    """Base of everything that this package raises on purpose."""


class SpawnFailed(ProcessError):
    """The program could not be started.

    ``errno`` is the number of the failed system call, 0 where none failed.
    """

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.errno = number


class ProcessGone(ProcessError):
    """The process ended, or closed its standard input, before it took what was written."""


def spawn_failure(stage: str, number: int, exists: bool, program: str, cwd: str) -> SpawnFailed:
    """Make the error for a failed system call of the start.

    ``stage`` is setup, cwd, exec, fork or pipe; ``exists`` tells whether the program's file is
    there.
    """
    reason = os.strerror(number)
    if stage == "cwd":
        message = {
            errno.ENOENT: f"The working directory {cwd} does not exist.",
            errno.ENOTDIR: f"The working directory {cwd} is not a directory.",
            errno.EACCES: f"The working directory {cwd} may not be entered.",
        }.get(number, f"The working directory {cwd} can't be entered: {reason}.")
    elif stage == "exec":
        message = {
            errno.ENOENT: f"The interpreter that {program} asks for was not found."
            if exists
            else f"The command {program} was not found.",
            errno.EACCES: f"The command {program} is not executable.",
            errno.ENOEXEC: f"The command {program} is not a program that this system can run.",
            errno.E2BIG: f"The arguments and environment of {program} are too large.",
        }.get(number, f"The command {program} can't be run: {reason}.")
    else:
        message = f"No process could be made for {program}: {reason}."
    return SpawnFailed(message, number)
