"""ReadBlob: streams content that is kept beside the log."""

from agentstream.v1 import service_pb2

from .ports import Sessions
from .stream import Write


class BlobReads:
    """Serves blobs."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def read_blob(self, request: service_pb2.ReadBlobRequest, write: Write) -> None:
        """Serve one blob; the request is checked already."""
        log = self._sessions.log
        blob = await self._sessions.blob(request.session_id, request.blob_id)
        response = service_pb2.ReadBlobResponse(blob=blob)
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
