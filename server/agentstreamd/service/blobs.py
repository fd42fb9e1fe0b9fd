"""ReadBlob: streams content that is kept beside the log."""

import re

from agentstream.v1 import blob_pb2, service_pb2

from .ports import Sessions
from .stream import Write

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobReads:
    """Serves blobs."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def read_blob(self, request: service_pb2.ReadBlobRequest, write: Write) -> None:
        """Serve one blob; the request is checked already."""
        log = self._sessions.log
        size = await log.blob_size(request.session_id, request.blob_id)
        # Blobs are named by their digest; the media type is with the reference in the event.
        digest = request.blob_id if _SHA256.fullmatch(request.blob_id) else ""
        response = service_pb2.ReadBlobResponse(
            blob=blob_pb2.BlobRef(blob_id=request.blob_id, size_bytes=size, sha256=digest)
        )
        pieces = log.read_blob(
            request.session_id,
            request.blob_id,
            offset=request.offset_bytes,
            limit=request.limit_bytes or None,
        )
        async for piece in pieces:
            response.data = piece
            await write(response.SerializeToString())
            response = service_pb2.ReadBlobResponse()
        if response.HasField("blob"):
            await write(response.SerializeToString())
