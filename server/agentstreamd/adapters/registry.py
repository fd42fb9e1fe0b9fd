"""The agents a daemon knows: built-in adapters, and those of other packages.

A package adds one with an entry point of the group `agentstream.adapters`, whose name is the
agent's name and whose object makes the adapter when called without arguments::

    [project.entry-points."agentstream.adapters"]
    my-agent = "my_package.adapter:MyAdapter"
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from agentstreamd.adapters.base import Adapter

_log = logging.getLogger(__name__)

GROUP = "agentstream.adapters"

AdapterFactory = Callable[[], Adapter]

BUILT_IN: Mapping[str, str] = {
    "claude": "agentstreamd.adapters.claude.adapter:ClaudeAdapter",
    "codex": "agentstreamd.adapters.codex.adapter:CodexAdapter",
    "opencode": "agentstreamd.adapters.opencode.adapter:OpenCodeAdapter",
    "amp": "agentstreamd.adapters.amp.adapter:AmpAdapter",
    "mock": "agentstreamd.adapters.mock.adapter:MockAdapter",
}
"""Name of the agent to where its adapter is; imported only when it is used."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class UnknownAgent(LookupError):
    """No adapter has this name."""


def factories(installed: Iterable[EntryPoint] | None = None) -> dict[str, AdapterFactory]:
    """All adapters by the name of their agent, as functions that import and make them.

    `installed` are the entry points of other packages; by default those of this Python
    installation. One with the name of a built-in adapter, or with no proper name, is left out with
    a warning: no package can take the place of an agent.
    """
    found: dict[str, AdapterFactory] = {name: _built_in(where) for name, where in BUILT_IN.items()}
    for point in entry_points(group=GROUP) if installed is None else installed:
        if not _NAME.fullmatch(point.name):
            _log.warning("adapter %r of %s is ignored: no proper name", point.name, point.value)
        elif point.name in found:
            _log.warning("adapter %r of %s is ignored: the name is taken", point.name, point.value)
        else:
            found[point.name] = _external(point)
    return found


def load(
    names: Collection[str] | None = None, *, installed: Iterable[EntryPoint] | None = None
) -> dict[str, Adapter]:
    """Make the adapters of these names, all by default.

    Raises `UnknownAgent` for a name nobody has. An adapter of another package that can't be made
    is left out with its error logged, unless it was named: then the error is raised.
    """
    known = factories(installed)
    wanted = known if names is None else names
    made: dict[str, Adapter] = {}
    for name in wanted:
        factory = known.get(name)
        if factory is None:
            raise UnknownAgent(f"there is no agent {name!r}; known are: {', '.join(sorted(known))}")
        try:
            made[name] = factory()
        except Exception:
            if names is not None or name in BUILT_IN:
                raise
            _log.exception("the adapter %r can't be used", name)
    return made


def _built_in(where: str) -> AdapterFactory:
    def make() -> Adapter:
        module, _, name = where.partition(":")
        return cast(AdapterFactory, getattr(import_module(module), name))()

    return make


def _external(point: EntryPoint) -> AdapterFactory:
    def make() -> Adapter:
        adapter = point.load()()
        if not isinstance(adapter, Adapter):
            raise TypeError(f"{point.value} does not make an Adapter")
        return adapter

    return make
