"""Builders of events and a screen to draw them on, for tests of the command line."""

import io

from rich.console import Console

from agentstream.cli.render import View
from agentstream.cli.screen import Screen
from agentstream.v1 import event_pb2, item_pb2

TEXT = event_pb2.DELTA_KIND_TEXT
REASONING = event_pb2.DELTA_KIND_REASONING
REPLACE = event_pb2.DELTA_OPERATION_REPLACE


def make_screen(*, terminal: bool = False, width: int = 200) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    system = "standard" if terminal else None
    console = Console(
        file=file,
        width=width,
        force_terminal=terminal,
        color_system=system,  # type: ignore[arg-type]
        no_color=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    return Screen(console), file


def drawn(*events: event_pb2.Event, text_only: bool = False) -> str:
    """What a view without formatting draws of `events`."""
    screen, file = make_screen()
    view = View(screen, text_only=text_only)
    for event in events:
        view.show(event)
    view.finish()
    return file.getvalue()


def delta(
    item_id: str,
    text: str,
    kind: event_pb2.DeltaKind.ValueType = TEXT,
    index: int = 0,
    operation: event_pb2.DeltaOperation.ValueType = event_pb2.DELTA_OPERATION_APPEND,
) -> event_pb2.Event:
    made = event_pb2.ItemDelta(
        item_id=item_id, content_index=index, kind=kind, text=text, operation=operation
    )
    return event_pb2.Event(item_delta=made)


def completed(item: item_pb2.Item) -> event_pb2.Event:
    if not item.status:
        item.status = item_pb2.ITEM_STATUS_COMPLETED
    return event_pb2.Event(item_completed=event_pb2.ItemCompleted(item=item))


def started(item: item_pb2.Item) -> event_pb2.Event:
    head = item_pb2.Item()
    head.CopyFrom(item)
    del head.content[:]
    return event_pb2.Event(item_started=event_pb2.ItemStarted(item=head))


def message(item_id: str, *texts: str, parent_id: str = "", user: bool = False) -> item_pb2.Item:
    return item_pb2.Item(
        item_id=item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_MESSAGE,
        role=item_pb2.ITEM_ROLE_USER if user else item_pb2.ITEM_ROLE_ASSISTANT,
        content=[item_pb2.ContentPart(text=item_pb2.TextPart(text=text)) for text in texts],
    )


def call(item_id: str, name: str, arguments: str = "{}", parent_id: str = "") -> item_pb2.Item:
    part = item_pb2.ToolCallPart(name=name, arguments_json=arguments, call_id=item_id)
    return item_pb2.Item(
        item_id=item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_TOOL_CALL,
        content=[item_pb2.ContentPart(tool_call=part)],
    )


def result(
    call_id: str, output: str, *parts: item_pb2.ContentPart, is_error: bool = False
) -> item_pb2.Item:
    part = item_pb2.ToolResultPart(call_id=call_id, output=output, is_error=is_error)
    return item_pb2.Item(
        item_id=f"{call_id}-result",
        parent_id=call_id,
        kind=item_pb2.ITEM_KIND_TOOL_RESULT,
        content=[item_pb2.ContentPart(tool_result=part), *parts],
    )
