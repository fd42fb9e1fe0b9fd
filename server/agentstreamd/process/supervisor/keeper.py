"""The keeper: owns one agent from its start until nothing of its process tree is left."""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from typing import Any, NoReturn

from .tree import (
    KILL_BOUND_SECONDS,
    KILL_PASS_SECONDS,
    PR_SET_PDEATHSIG,
    descendants_of,
    drain,
    prctl,
    signal_descendant,
    stat_of,
    watch_children,
)

# After the daemon vanished nothing may live for more than 5 s: TERM, this grace, KILL, give up.
ORPHAN_GRACE_SECONDS = 1.5


def program_exists(program: str, env: dict[str, str]) -> bool:
    """Tell whether the program's file is there, whether or not it could be run."""
    if "/" in program:
        return os.path.exists(program)
    return any(os.path.isfile(os.path.join(path, program)) for path in os.get_exec_path(env))


def become_agent(order: dict[str, Any], stdio: list[int], keeper: int, errors: int) -> NoReturn:
    """Turn the forked process into the agent; on failure write the reason to errors."""
    stage = "setup"
    try:
        # A session of its own: an agent that signals its process group must not hit its keeper.
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        os.closerange(3, errors)
        os.closerange(errors + 1, 1 << 20)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["open_files"], hard))
        os.umask(order["umask"])
        stage = "cwd"
        os.chdir(order["cwd"])
        stage = "exec"
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        exists = stage == "exec" and program_exists(order["argv"][0], order["env"])
        report = {"stage": stage, "errno": error.errno, "exists": exists}
        os.write(errors, json.dumps(report).encode())
    finally:
        os._exit(127)


class Keeper:
    """Owns one agent: starts it, reports on it, and ends all that it left running."""

    def __init__(self, control: socket.socket, stdio: list[int]) -> None:
        self.control = control
        self.stdio = stdio
        self.received = bytearray()
        self.agent = 0
        self.exited = False
        self.empty = False
        self.orphaned = False
        self.killing = False
        self.deadline: float | None = None
        self.sweep_grace = 0.0
        self.swept: set[int] = set()
        self.wakeup = watch_children()

    def run(self) -> None:
        """Serve until the tree is gone."""
        order = self.read_order()
        if order is None or not self.start(order):
            self.empty = True
            return
        self.sweep_grace = order["sweep_grace_seconds"]
        poller = select.poll()
        poller.register(self.wakeup, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        give_up: float | None = None
        while True:
            self.reap()
            if self.exited and self.empty:
                break
            now = time.monotonic()
            if self.deadline is not None and now >= self.deadline:
                self.killing = True
            if self.killing:
                give_up = give_up or now + KILL_BOUND_SECONDS
                if now >= give_up:
                    break
                self.signal_all(signal.SIGKILL)
                wait = KILL_PASS_SECONDS
            else:
                wait = -1.0 if self.deadline is None else self.deadline - now
            ready = poller.poll(None if wait < 0 else max(1, int(wait * 1000) + 1))
            for descriptor, _ in ready:
                if descriptor == self.wakeup:
                    drain(self.wakeup)
                elif not self.read_commands():
                    poller.unregister(self.control)
                    self.orphaned = True
                    self.sweep(ORPHAN_GRACE_SECONDS)
        survivors = [] if self.empty else [pid for pid, _ in descendants_of(os.getpid())]
        self.report(event="gone", swept=len(self.swept), survivors=survivors)
        # A command on its way to a closed channel would cost the daemon the reports in it.
        while self.receive():
            pass

    def report(self, **message: object) -> None:
        """Tell the daemon; a daemon that is gone is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> bool:
        """Take in what the daemon wrote; False when it is gone."""
        try:
            data = self.control.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.received += data
        return bool(data)

    def read_order(self) -> dict[str, Any] | None:
        """Wait for the start order; None when the daemon is gone."""
        while b"\n" not in self.received:
            if not self.receive():
                return None
        line, _, rest = self.received.partition(b"\n")
        self.received = rest
        order: dict[str, Any] = json.loads(line)
        return order

    def start(self, order: dict[str, Any]) -> bool:
        """Start the agent and report started or failed; False when there is no agent to keep."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        keeper = os.getpid()
        try:
            self.agent = os.fork()
        except OSError as error:
            self.report(event="failed", stage="fork", errno=error.errno, exists=False)
            return False
        if self.agent == 0:
            become_agent(order, self.stdio, keeper, writer)
        os.close(writer)
        for descriptor in self.stdio:
            os.close(descriptor)
        poller = select.poll()
        poller.register(reader, select.POLLIN)
        poller.register(self.control, select.POLLRDHUP)
        if any(descriptor != reader for descriptor, _ in poller.poll()):
            os.kill(self.agent, signal.SIGKILL)  # not reaped yet: the pid is still its own
        failure = os.read(reader, 4096)
        os.close(reader)
        if failure:
            os.waitpid(self.agent, 0)
            self.report(event="failed", **json.loads(failure))
            return False
        stat = stat_of(self.agent)
        self.report(
            event="started", pid=self.agent, start_time=stat[2] if stat else 0, keeper_pid=keeper
        )
        return True

    def read_commands(self) -> bool:
        """Obey what the daemon wrote; False when the daemon is gone."""
        alive = self.receive()
        while b"\n" in self.received:
            line, _, self.received = self.received.partition(b"\n")
            self.obey(json.loads(line))
        return alive

    def obey(self, command: dict[str, Any]) -> None:
        """Carry out one command."""
        operation = command["op"]
        if operation == "kill":
            self.killing = True
        elif operation == "stop":
            self.sweep_grace = command["sweep_grace_seconds"]
            if self.exited:
                self.bring_forward(self.sweep_grace)
            else:
                self.signal_agent(signal.SIGTERM)
                self.signal_agent(signal.SIGCONT)
                self.bring_forward(command["term_grace_seconds"])
        elif operation == "signal":
            self.signal_agent(command["signal"])

    def signal_agent(self, number: int) -> None:
        """Signal the agent alone."""
        if not self.exited:  # not reaped yet: the pid is still its own
            with contextlib.suppress(OSError):
                os.kill(self.agent, number)

    def signal_all(self, *signals: int) -> None:
        """Signal the agent and all its descendants."""
        for pid, parent in descendants_of(os.getpid()):
            if signal_descendant(pid, parent, *signals) and pid != self.agent:
                self.swept.add(pid)

    def bring_forward(self, seconds: float) -> None:
        """Kill in so many seconds, or when it was due already, if that is sooner."""
        moment = time.monotonic() + seconds
        self.deadline = moment if self.deadline is None else min(self.deadline, moment)

    def sweep(self, grace: float) -> None:
        """Ask everything in the tree to end; what has not after the grace is killed."""
        self.signal_all(signal.SIGTERM, signal.SIGCONT)
        self.bring_forward(grace)

    def reap(self) -> None:
        """Reap all that ended; the agent's end starts the sweep."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            self.empty = False
            if pid == 0:
                return
            if pid == self.agent:
                self.exited = True
                code = os.waitstatus_to_exitcode(status)
                self.report(
                    event="exited",
                    code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                )
                if not self.orphaned:
                    # The leftovers get a time of their own, not what the agent left of its time.
                    self.deadline = None
                self.sweep(self.sweep_grace)
