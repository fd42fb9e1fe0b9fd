"""Law 5: the deltas of a part joined, without keeping them."""

import hashlib

from agentstream.v1 import blob_pb2

_HEAD_CHARACTERS = 512


class JoinedText:
    """The text that a part's deltas give, as digest, length and beginning: constant memory."""

    def __init__(self) -> None:
        self.replace("")

    def replace(self, text: str) -> None:
        """Take a delta that replaces all text so far."""
        self._digest = hashlib.sha256()
        self.characters = 0
        self.bytes = 0
        self._head = ""
        self.append(text)

    def append(self, text: str) -> None:
        """Take a delta that appends."""
        encoded = text.encode()
        self._digest.update(encoded)
        self.characters += len(text)
        self.bytes += len(encoded)
        if len(self._head) < _HEAD_CHARACTERS:
            self._head += text[: _HEAD_CHARACTERS - len(self._head)]

    def difference(self, text: str) -> str:
        """Say how the deltas differ from a completed text; empty where they give it."""
        if self.characters == len(text):
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest == self._digest.hexdigest():
                return ""
        return (
            f"its deltas give {self.characters} characters{self._where(text)}, "
            f"the completed text has {len(text)}"
        )

    def difference_from_blob(self, beginning: str, blob: blob_pb2.BlobRef) -> str:
        """Say how the deltas differ from a text that was moved to a blob."""
        if blob.sha256 != self._digest.hexdigest() or blob.size_bytes != self.bytes:
            return (
                f"its deltas give {self.bytes} bytes with SHA-256 "
                f"{self._digest.hexdigest()}, its blob has {blob.size_bytes} with {blob.sha256}"
            )
        if not beginning.startswith(self._head[: len(beginning)]):
            return "its text is not the beginning of what its deltas give"
        return ""

    def _where(self, text: str) -> str:
        for index, (ours, theirs) in enumerate(zip(self._head, text, strict=False)):
            if ours != theirs:
                return f" (they differ from character {index} on)"
        return ""
