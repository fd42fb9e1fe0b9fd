"""The zygote: forks keepers on request and ends the orphans of keepers that were killed."""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn

from .keeper import Keeper
from .tree import (
    KILL_BOUND_SECONDS,
    KILL_PASS_SECONDS,
    PR_SET_CHILD_SUBREAPER,
    descendants_of,
    drain,
    prctl,
    set_name,
    signal_descendant,
    watch_children,
)

# After the daemon vanished: the time that keepers get before they are killed as well.
KEEPERS_BOUND_SECONDS = 4.0


class Zygote:
    """Forks keepers on request and ends the orphans of keepers that were killed."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.keepers: set[int] = set()
        self.strays_until = 0.0
        self.wakeup = watch_children()

    def run(self) -> None:
        """Serve until the daemon is gone and nothing is left."""
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(self.wakeup, select.POLLIN)
        while True:
            self.reap()
            hunting = time.monotonic() < self.strays_until and self.kill_strays()
            for descriptor, _ in poller.poll(int(KILL_PASS_SECONDS * 1000) if hunting else None):
                if descriptor == self.wakeup:
                    drain(self.wakeup)
                elif not self.serve():
                    self.channel.close()
                    return self.finish()

    def serve(self) -> bool:
        """Take one request; False when the daemon is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.channel, 256, 8)
        except ConnectionError:
            return False
        if not data:
            return False
        try:
            pid = os.fork()
        except OSError as error:
            report = {"event": "failed", "stage": "fork", "errno": error.errno, "exists": False}
            with contextlib.suppress(OSError):
                os.write(descriptors[0], json.dumps(report).encode() + b"\n")
            pid = -1
        if pid == 0:
            self.become_keeper(descriptors)
        if pid > 0:
            self.keepers.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def become_keeper(self, descriptors: list[int]) -> NoReturn:
        """Turn the forked process into a keeper and end with it."""
        status = 1
        try:
            self.channel.close()
            os.close(self.wakeup)
            os.setsid()
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            set_name("agentstream-kpr")
            keeper = Keeper(socket.socket(fileno=descriptors[0]), descriptors[1:])
            keeper.run()
            status = 0 if keeper.empty else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def reap(self) -> bool:
        """Reap all that ended; True when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid in self.keepers:
                self.keepers.discard(pid)
                if status != 0:
                    self.strays_until = time.monotonic() + KILL_BOUND_SECONDS

    def kill_strays(self) -> bool:
        """Kill the children that are no keepers: orphans of killed keepers. False if none."""
        strays = descendants_of(os.getpid(), frozenset(self.keepers))
        for pid, parent in strays:
            signal_descendant(pid, parent, signal.SIGKILL)
        return bool(strays)

    def finish(self) -> None:
        """Let the keepers end their trees; kill what is left after the bound."""
        deadline = time.monotonic() + KEEPERS_BOUND_SECONDS
        while not self.reap():
            now = time.monotonic()
            if now >= deadline:
                self.keepers.clear()
            if now >= deadline + KILL_BOUND_SECONDS:
                return
            self.kill_strays()
            select.select([self.wakeup], [], [], KILL_PASS_SECONDS)
            drain(self.wakeup)


def main() -> None:
    """Run the zygote on the inherited socket argv[1]; return when all is ended."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    # A service manager signals every process of the service at once; the daemon decides here.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    set_name("agentstream-sup")
    gc.freeze()
    gc.disable()
    Zygote(channel).run()
