"""The client's messages that the server repeats: the session has written them already. Pure."""

from dataclasses import dataclass, field

from agentstreamd.adapters.codex.native import JsonObject, objects_in, text_in

_AT_MOST = 256

Said = list[tuple[str, str]]
"""What tells one input from another: the server adds members that the client left out."""


@dataclass(slots=True)
class Echoes:
    """The messages that are still to be repeated."""

    _expected: list[tuple[str, Said]] = field(default_factory=list)

    def expect(self, params: JsonObject) -> None:
        """A message was written: the parameters of `turn/start` or `turn/steer`."""
        echo = (text_in(params, "clientUserMessageId"), _said(params, "input"))
        self._expected = [*self._expected[-_AT_MOST + 1 :], echo]

    def take(self, item: JsonObject) -> bool:
        """Whether a `userMessage` repeats one; each is repeated once."""
        client_id, content = text_in(item, "clientId"), _said(item, "content")
        for index, (expected_id, expected) in enumerate(self._expected):
            if expected_id == client_id and (client_id or expected == content):
                del self._expected[index]
                return True
        return False


def _said(holder: JsonObject, name: str) -> Said:
    return [
        (
            text_in(part, "type"),
            text_in(part, "text") or text_in(part, "url") or text_in(part, "path"),
        )
        for part in objects_in(holder, name)
    ]
