"""The order of the messages of one `StreamEvents` call."""

from agentstream.v1 import service_pb2
from agentstreamd.laws.violation import Violation


class ResponseChecker:
    """Checks the responses of one `StreamEvents` call, in order: what a subscriber relies on.

    All of it is law 1: each event once, in order, without gap, from the cursor on.

    Attributes:
        last_sequence: How far the stream has come; where a resumed reader goes on.
        violations: What was found.
    """

    def __init__(self, *, after_sequence: int = 0, filtered: bool = False) -> None:
        """`after_sequence` and `filtered` (a filter of kinds was given) as in the request."""
        self.last_sequence = after_sequence
        self.violations: list[Violation] = []
        self._after = after_sequence
        self._filtered = filtered
        self._opened = False

    def feed(self, response: service_pb2.StreamEventsResponse) -> list[Violation]:
        """Take the next response and return what it breaks."""
        before = len(self.violations)
        kind = response.WhichOneof("response")
        if (kind == "opened") == self._opened:
            self._report("opened comes again" if self._opened else f"{kind} comes before opened")
        if kind == "opened":
            self._check_opened(response.opened)
        elif kind == "batch":
            self._check_batch(response.batch)
        elif kind == "progress":
            self._check_progress(response.progress)
        else:
            self._report("a response is empty")
        return self.violations[before:]

    def _check_opened(self, opened: service_pb2.StreamOpened) -> None:
        self._opened = True
        if not opened.session.uid:
            self._report("opened has no uid of the session")
        if self._after > opened.session.latest_sequence:
            self._report("opened has a latest_sequence below the cursor")

    def _check_batch(self, batch: service_pb2.EventBatch) -> None:
        if not batch.events and not self._filtered:
            self._report("a batch has no events")
        for event in batch.events:
            expected = self.last_sequence + 1
            if event.sequence < expected or (event.sequence > expected and not self._filtered):
                self._report(f"sequence {event.sequence} follows {self.last_sequence}")
            self.last_sequence = event.sequence
        if batch.last_sequence < self.last_sequence or (
            batch.last_sequence != self.last_sequence and not self._filtered
        ):
            self._report(
                f"a batch that comes to {self.last_sequence} has last_sequence "
                f"{batch.last_sequence}"
            )
        self.last_sequence = max(self.last_sequence, batch.last_sequence)

    def _check_progress(self, progress: service_pb2.StreamProgress) -> None:
        if progress.last_sequence < self.last_sequence or (
            progress.last_sequence > self.last_sequence and not self._filtered
        ):
            self._report(
                f"progress says {progress.last_sequence}, but the stream came to "
                f"{self.last_sequence}"
            )
        self.last_sequence = max(self.last_sequence, progress.last_sequence)
        if not progress.HasField("time"):
            self._report("progress has no time")

    def _report(self, sentence: str) -> None:
        self.violations.append(Violation(1, self.last_sequence, sentence))
