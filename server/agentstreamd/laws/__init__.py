"""The laws of a stream, checked.

Every session's stream obeys them, whatever its agent did, crashed in or was killed at:

1. `sequence` is 1, 2, 3, ... without gap.
2. `session_started` is first and once; `session_ended` is last and at most once.
3. Turns do not overlap, and each that starts ends. Items and requests outside a turn bear no
   `turn_id`; one that began in a turn keeps its `turn_id`.
4. An item is started once, before its deltas, and completed once, after them; none is in progress
   when its turn ends. A superseded item names the one that supersedes it.
5. The deltas of an assistant message's text and reasoning give its completed content.
6. A parent comes before what stands under it, a call before its result; each call has a result
   when its turn has ended. Call ids are unique.
7. Every request is resolved exactly once, at the latest when its turn, or the session, ends.
8. What is synthetic comes from the daemon. A client's answer does too, and is not synthetic.
9. `raw` is absent unless asked for; when asked for, every event of the agent has it.

`LawChecker` checks events one by one, `check` a whole stream, `ResponseChecker` the messages of a
`StreamEvents` call. Violations of law 0 are of an event's form: ids, enums, JSON, sizes.
"""

from agentstreamd.laws.checker import MAX_VIOLATIONS, LawChecker, check
from agentstreamd.laws.form import MAX_EVENT_BYTES
from agentstreamd.laws.responses import ResponseChecker
from agentstreamd.laws.violation import FORM, Violation

__all__ = [
    "FORM",
    "MAX_EVENT_BYTES",
    "MAX_VIOLATIONS",
    "LawChecker",
    "ResponseChecker",
    "Violation",
    "check",
]
