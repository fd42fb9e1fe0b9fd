"""How a command shows events: drawn for people, as they are for programs."""

from collections.abc import Callable

from agentstream.cli.context import Context
from agentstream.cli.render import View
from agentstream.cli.screen import Screen
from agentstream.cli.text import plain
from agentstream.v1 import blob_pb2, event_pb2


class Display:
    """Shows events on standard output.

    Attributes:
        show: Shows one event.
        finish: Ends a line that was begun.
    """

    def __init__(
        self,
        context: Context,
        *,
        json: bool = False,
        text_only: bool = False,
        raw: bool = False,
    ) -> None:
        """A display.

        Args:
            context: Where to write.
            json: One Event per line, as ProtoJSON; `raw` is then in the event.
            text_only: Only what the assistant says.
            raw: Below each event, the native messages it came from.
        """
        self.show: Callable[[event_pb2.Event], object]
        self.finish: Callable[[], object]
        if json:
            self.show, self.finish = context.json, lambda: None
            return
        screen = Screen(context.out)
        view = View(screen, text_only=text_only)
        self.finish = view.finish

        def show_with_raw(event: event_pb2.Event) -> None:
            view.show(event)
            for native in event.raw:
                screen.line((f"  {event.sequence} ← {_native(native)}", "dim"))

        self.show = show_with_raw if raw else view.show


def _native(native: blob_pb2.NativeMessage) -> str:
    match native.WhichOneof("content"):
        case "text":
            return plain(native.text)
        case "blob":
            return f"blob {native.blob.blob_id} ({native.blob.size_bytes} bytes)"
    return repr(native.data)
