"""The supervisor program: forks, watches and sweeps the agents' process trees.

It runs as a program of its own (see ``supervisor_command``), uses the standard library only and
imports nothing from outside this folder: it must start in milliseconds, stay small, and stay
single-threaded so that it may fork at any time.

Two roles:

* The *zygote* (zygote.py) is the process itself. Each packet on its socket carries four file
  descriptors (control channel, stdin, stdout, stderr of one agent); it forks a keeper for them.
* A *keeper* (keeper.py) owns one agent. It reads the start order from the control channel, starts
  the agent, reports on it, obeys commands, and ends the agent's whole process tree.

The control channel carries one JSON object a line. Daemon to keeper: first the start order, then
``{"op": "signal" | "stop" | "kill", ...}``. Keeper to daemon: ``failed`` or ``started``, then
``exited``, then ``gone``.

Both roles are child sub-reapers: a process that lost its parent, also one that called setsid, lands
under its keeper (or, when that was killed, under the zygote). "waitpid says there are no children"
therefore means that nothing of the tree is left, without a race.
"""
