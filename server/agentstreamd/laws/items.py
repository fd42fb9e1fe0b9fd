"""Laws 4, 5 and 6: items, their deltas and content, calls and results."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.laws.form import check_item_json
from agentstreamd.laws.joined import JoinedText
from agentstreamd.laws.violation import FORM, Report

_PART_OF_KIND = {
    item_pb2.ITEM_KIND_TOOL_CALL: "tool_call",
    item_pb2.ITEM_KIND_TOOL_RESULT: "tool_result",
    item_pb2.ITEM_KIND_STATUS: "status",
    item_pb2.ITEM_KIND_UNKNOWN: "json",
}

_PART_OF_DELTA = {
    event_pb2.DELTA_KIND_TEXT: "text",
    event_pb2.DELTA_KIND_REASONING: "reasoning",
    event_pb2.DELTA_KIND_TOOL_OUTPUT: "tool_result",
    event_pb2.DELTA_KIND_TOOL_ARGUMENTS: "tool_call",
}


@dataclass(slots=True)
class _OpenItem:
    turn_id: str
    kind: int
    role: int
    parent_id: str
    native_item_id: str
    joined: dict[int, JoinedText] = field(default_factory=dict)
    delta_kinds: dict[int, event_pb2.DeltaKind.ValueType] = field(default_factory=dict)


class ItemLaws:
    """Follows the items of a session. Keeps their ids, and the content of none."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._known: set[str] = set()
        self._open: dict[str, _OpenItem] = {}
        self._calls: dict[str, str] = {}
        self._unanswered: dict[str, str] = {}
        self._superseding: dict[str, str] = {}

    def started(self, event: event_pb2.Event) -> None:
        """Check `item_started`."""
        item = event.item_started.item
        if item.item_id in self._known:
            self._report(4, f"item {item.item_id} is started again")
            return
        if item.status != item_pb2.ITEM_STATUS_IN_PROGRESS:
            self._report(4, f"item {item.item_id} is started, but not in progress")
        self.parent(item.parent_id, f"item {item.item_id}")
        self._known.add(item.item_id)
        if self._superseding:
            self._superseding = {
                one: successor
                for one, successor in self._superseding.items()
                if successor != item.item_id
            }
        self._open[item.item_id] = _OpenItem(
            event.turn_id, item.kind, item.role, item.parent_id, item.native_item_id
        )
        self._correlate(item, event.turn_id, whole=False)

    def delta(self, event: event_pb2.Event) -> None:
        """Check `item_delta`."""
        delta = event.item_delta
        item = self._opened(delta.item_id, event.turn_id, "a delta")
        if item is None:
            return
        if delta.content_index < 0:
            self._report(4, f"a delta of item {delta.item_id} has a negative content_index")
        seen = item.delta_kinds.setdefault(delta.content_index, delta.kind)
        if seen != delta.kind:
            self._report(
                5, f"deltas of item {delta.item_id}, part {delta.content_index} change their kind"
            )
        if delta.operation == event_pb2.DELTA_OPERATION_REPLACE and not event.synthetic:
            self._report(5, f"a delta of item {delta.item_id} replaces, but is not synthetic")
        if not self._must_join(item):
            return
        joined = item.joined.setdefault(delta.content_index, JoinedText())
        if delta.operation == event_pb2.DELTA_OPERATION_REPLACE:
            joined.replace(delta.text)
        else:
            joined.append(delta.text)

    def completed(self, event: event_pb2.Event) -> None:
        """Check `item_completed`."""
        item = event.item_completed.item
        opened = self._opened(item.item_id, event.turn_id, "a completion")
        if opened is None:
            return
        del self._open[item.item_id]
        if item.status not in (item_pb2.ITEM_STATUS_COMPLETED, item_pb2.ITEM_STATUS_FAILED):
            self._report(
                4,
                f"item {item.item_id} is completed, but its status is neither completed nor failed",
            )
        self._check_identity(item, opened)
        self._check_superseded(item)
        self._check_parts(item)
        self._check_deltas(item, opened)
        check_item_json(item, event.synthetic, self._report)
        self._correlate(item, event.turn_id, whole=True)

    def parent(self, parent_id: str, what: str) -> None:
        """Check that a parent came before what names it."""
        if parent_id and parent_id not in self._known:
            self._report(6, f"{what} stands under {parent_id}, which did not come before")

    def turn_ended(self, turn_id: str) -> None:
        """Check that nothing of a turn is left open at its end."""
        self._check_closed(
            [one for one, item in self._open.items() if item.turn_id == turn_id],
            [one for one, turn in self._unanswered.items() if turn == turn_id],
            f"turn {turn_id} ended",
        )

    def session_ended(self) -> None:
        """Check that nothing is left open at the session's end."""
        self._check_closed(list(self._open), list(self._unanswered), "the session ended")

    def finish(self) -> None:
        """Check what may be settled late, at the end of a stream that is complete."""
        for item_id, successor in self._superseding.items():
            self._report(4, f"item {item_id} is superseded by {successor}, which is no item")
        self._superseding.clear()

    def _check_closed(self, items: Iterable[str], calls: Iterable[str], when: str) -> None:
        for item_id in items:
            self._report(4, f"item {item_id} was still in progress when {when}")
            del self._open[item_id]
        for call_id in calls:
            self._report(6, f"call {call_id} had no result when {when}")
            del self._unanswered[call_id]

    def _opened(self, item_id: str, turn_id: str, what: str) -> _OpenItem | None:
        item = self._open.get(item_id)
        if item is None:
            state = "is completed" if item_id in self._known else "is not started"
            self._report(4, f"there is {what} of item {item_id}, which {state}")
        elif item.turn_id != turn_id:
            self._report(
                3,
                f"item {item_id} started {_turn(item.turn_id)}, but {what} of it is "
                f"{_turn(turn_id)}",
            )
        return item

    def _check_identity(self, item: item_pb2.Item, opened: _OpenItem) -> None:
        for name, before, after in (
            ("kind", opened.kind, item.kind),
            ("role", opened.role, item.role),
            ("parent_id", opened.parent_id, item.parent_id),
        ):
            if before != after:
                self._report(4, f"item {item.item_id} changed its {name} since it started")
        if opened.native_item_id and opened.native_item_id != item.native_item_id:
            self._report(4, f"item {item.item_id} changed its native_item_id since it started")

    def _check_superseded(self, item: item_pb2.Item) -> None:
        if not item.superseded_by:
            return
        if item.status != item_pb2.ITEM_STATUS_FAILED:
            self._report(4, f"item {item.item_id} is superseded, but not failed")
        if item.superseded_by == item.item_id:
            self._report(4, f"item {item.item_id} is superseded by itself")
        elif item.superseded_by not in self._known:
            self._superseding[item.item_id] = item.superseded_by

    def _check_parts(self, item: item_pb2.Item) -> None:
        wanted = _PART_OF_KIND.get(item.kind)
        if wanted is None or (item.status == item_pb2.ITEM_STATUS_FAILED and not item.content):
            return
        if not item.content or item.content[0].WhichOneof("part") != wanted:
            self._report(FORM, f"the first part of item {item.item_id} is no {wanted} part")

    def _must_join(self, item: _OpenItem) -> bool:
        return item.role == item_pb2.ITEM_ROLE_ASSISTANT and item.kind == item_pb2.ITEM_KIND_MESSAGE

    def _check_deltas(self, item: item_pb2.Item, opened: _OpenItem) -> None:
        for index, kind in opened.delta_kinds.items():
            wanted = _PART_OF_DELTA.get(kind)
            found = None
            if 0 <= index < len(item.content):
                found = item.content[index].WhichOneof("part")
            joined = opened.joined.get(index)
            if found != wanted and (joined is None or joined.characters):
                self._report(
                    5,
                    f"deltas of item {item.item_id} are for a {wanted} part {index}, "
                    f"which the completed item does not have",
                )
        if not self._must_join(opened):
            return
        for index, part in enumerate(item.content):
            kind_of_part = part.WhichOneof("part")
            if kind_of_part == "text":
                text = part.text.text
            elif kind_of_part == "reasoning":
                text = part.reasoning.text
            else:
                continue
            joined = opened.joined.get(index) or JoinedText()
            if part.HasField("external"):
                difference = joined.difference_from_blob(text, part.external)
            else:
                difference = joined.difference(text)
            if difference:
                self._report(5, f"item {item.item_id}, part {index}: {difference}")

    def _correlate(self, item: item_pb2.Item, turn_id: str, *, whole: bool) -> None:
        for part in item.content:
            kind = part.WhichOneof("part")
            if kind == "tool_call" and part.tool_call.call_id:
                self._call(part.tool_call.call_id, item.item_id, turn_id)
            elif kind == "tool_result" and part.tool_result.call_id:
                call_id = part.tool_result.call_id
                if call_id not in self._calls:
                    self._report(
                        6,
                        f"item {item.item_id} is the result of call {call_id}, which did not "
                        "come before",
                    )
                elif whole:
                    self._unanswered.pop(call_id, None)

    def _call(self, call_id: str, item_id: str, turn_id: str) -> None:
        if call_id not in self._calls:
            self._calls[call_id] = item_id
            self._unanswered[call_id] = turn_id
        elif self._calls[call_id] != item_id:
            self._report(
                6, f"items {self._calls[call_id]} and {item_id} have the same call_id {call_id}"
            )


def _turn(turn_id: str) -> str:
    return f"in turn {turn_id}" if turn_id else "outside a turn"
