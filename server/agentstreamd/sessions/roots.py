"""The directories that sessions are confined to, where the daemon is told any."""

import os
from collections.abc import Sequence
from pathlib import Path


class Roots:
    """Directories; without any, every path is inside.

    What counts is where a path really leads: symbolic links and `..` are followed first. It keeps
    clients to directories, not agents, whose tools run as the daemon's user.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(os.path.realpath(directory) for directory in directories)

    def hold(self, path: str) -> bool:
        """Whether `path`, which is absolute, leads to one of the directories or into it."""
        real = os.path.realpath(path)
        return not self._directories or any(
            os.path.commonpath((real, directory)) == directory for directory in self._directories
        )
