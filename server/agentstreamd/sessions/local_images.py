"""Images that a message names by their path: read once, when the message is accepted."""

import asyncio
import os
import stat

from agentstream.v1 import service_pb2
from agentstreamd.sessions import errors
from agentstreamd.sessions.checks import OUTSIDE
from agentstreamd.sessions.prompts import IMAGE_TYPES, MAX_IMAGE_BYTES
from agentstreamd.sessions.roots import Roots

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


async def with_local_images(
    request: service_pb2.SendMessageRequest, roots: Roots
) -> service_pb2.SendMessageRequest:
    """The message with the content of its local images in the place of their paths.

    Raises INVALID_FIELD for each that can't be read, or is no image that agents take.
    """
    local = [
        index
        for index, part in enumerate(request.parts)
        if part.WhichOneof("part") == "image" and part.image.WhichOneof("source") == "path"
    ]
    if not local:
        return request
    loaded = service_pb2.SendMessageRequest()
    loaded.CopyFrom(request)
    found = []
    for index in local:
        image = loaded.parts[index].image
        try:
            data = await asyncio.to_thread(_read, image.path, roots)
            media_type = _media_type(data)
            if image.media_type not in ("", media_type):
                raise ValueError(f"is {media_type}, not {image.media_type}")
        except OSError as error:
            found.append((f"parts[{index}].image.path", f"can't be read: {error.strerror}"))
        except ValueError as error:
            found.append((f"parts[{index}].image.path", str(error)))
        else:
            image.data = data
            image.media_type = media_type
    if found:
        raise errors.invalid(*found)
    return loaded


def _read(path: str, roots: Roots) -> bytes:
    if not roots.hold(path):
        raise ValueError(OUTSIDE)
    # Not blocking: opening a FIFO would wait for somebody to write to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_IMAGE_BYTES:
        raise ValueError("is larger than 20 MiB")
    return data


def _media_type(data: bytes) -> str:
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError(f"holds none of {', '.join(IMAGE_TYPES)}")
