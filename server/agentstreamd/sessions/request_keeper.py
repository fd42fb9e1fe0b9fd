"""The part of the stream keeper that keeps requests: each resolved exactly once."""

from collections.abc import Callable

from agentstream.v1 import interaction_pb2
from agentstreamd.model import Draft, Kind
from agentstreamd.sessions.item_keeper import ItemKeeper
from agentstreamd.sessions.items import Remembered
from agentstreamd.sessions.requests import (
    REQUESTED,
    RESOLVED,
    Pending,
    Resolved,
    as_resolution_of,
    request_of,
    resolution,
    resolved_of,
)
from agentstreamd.sessions.stamp import Stamper


class RequestKeeper:
    """Keeps the requests of one stream.

    Attributes:
        pending: Requests that wait for an answer, by request id, oldest first.
        asked: Requests that came since the stream keeper last took them.
        resolved: Resolutions since then: request id, resolution, sequence.
        handlers: What to do with each kind of draft about requests.
    """

    def __init__(self, stamper: Stamper, items: ItemKeeper, *, timeout_ns: int) -> None:
        """Keep the requests of the stream that `stamper` numbers; 0 for no timeout."""
        self.pending: dict[str, Pending] = {}
        self.asked: list[Pending] = []
        self.resolved: list[tuple[str, Resolved, int]] = []
        self.handlers: dict[Kind, Callable[[Draft], None]] = {
            **dict.fromkeys(REQUESTED, self._on_requested),
            **dict.fromkeys(RESOLVED, self._on_resolved),
        }
        self._stamper = stamper
        self._items = items
        self._timeout_ns = timeout_ns
        self._requests: Remembered[str, None] = Remembered()

    def restore(self, pending: Pending) -> None:
        """A request that is in the log already."""
        self._requests.put(pending.request.request_id, None)
        self.pending[pending.request.request_id] = pending

    def remember(self, request_id: str) -> None:
        """A request that was resolved before a moment when nothing was under way."""
        self._requests.put(request_id, None)

    def cancel_all(self, turn_id: str | None, reason: str) -> None:
        """Cancel the requests of a turn (all, for None)."""
        for pending in list(self.pending.values()):
            if turn_id is None or pending.turn_id == turn_id:
                self._cancel(pending, reason)

    def _on_requested(self, draft: Draft) -> None:
        book = self._items.book
        request = request_of(draft.kind, draft.event)
        adapter_id = request.request_id
        if any(pending.adapter_id == adapter_id for pending in self.pending.values()):
            return
        request.request_id = _unused_request(adapter_id, self._requests)
        self._requests.put(request.request_id, None)
        request.call_id = book.current_call(request.call_id)
        if request.parent_id:
            parent = book.current(request.parent_id)
            if parent not in book.known:
                self._items.stub_parent(parent)
            request.parent_id = parent
        now_ns = self._stamper.time_ns
        if self._timeout_ns and not request.HasField("expire_time"):
            request.expire_time.FromNanoseconds(now_ns + self._timeout_ns)
        sequence = self._stamper.stamp(draft, self._items.turn_id)
        pending = Pending(draft.kind, request, adapter_id, sequence, now_ns, self._items.turn_id)
        self.pending[request.request_id] = pending
        self.asked.append(pending)

    def _on_resolved(self, draft: Draft) -> None:
        resolved = resolved_of(draft.kind, draft.event)
        for pending in self.pending.values():
            if pending.adapter_id == resolved.request_id:
                resolved.request_id = pending.request.request_id
                self.settle(pending, as_resolution_of(pending, draft))
                return

    def _cancel(self, pending: Pending, reason: str) -> None:
        self.settle(
            pending,
            resolution(
                pending,
                interaction_pb2.REQUEST_OUTCOME_CANCELLED,
                interaction_pb2.RESOLVED_BY_DAEMON,
                reason=reason,
                synthetic=True,
            ),
        )

    def settle(self, pending: Pending, draft: Draft) -> None:
        """Resolve `pending` with the event `draft`."""
        request_id = pending.request.request_id
        del self.pending[request_id]
        sequence = self._stamper.stamp(draft, pending.turn_id)
        self.resolved.append((request_id, resolved_of(draft.kind, draft.event), sequence))


def _unused_request(request_id: str, taken: Remembered[str, None]) -> str:
    if request_id not in taken:
        return request_id
    number = 2
    while f"{request_id}~{number}" in taken:
        number += 1
    return f"{request_id}~{number}"
