"""Write content that was too large for an event to standard output or a file."""

import argparse
import contextlib
import hashlib
import sys
from pathlib import Path
from typing import BinaryIO

from agentstream.cli.context import Context
from agentstream.cli.exits import FAILED, OK, CliError, usage_error
from agentstream.client import typed_errors
from agentstream.v1 import blob_pb2, service_pb2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("session", metavar="SESSION", help="the session")
    parser.add_argument("blob", metavar="BLOB", help="the blob, from a BlobRef of an event")
    parser.add_argument("--output", "-o", metavar="FILE", help="where to write it")
    parser.add_argument("--offset", type=int, default=0, metavar="BYTES", help="first byte")
    parser.add_argument("--limit", type=int, default=0, metavar="BYTES", help="at most so many")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    request = service_pb2.ReadBlobRequest(
        session_id=arguments.session,
        blob_id=arguments.blob,
        offset_bytes=arguments.offset,
        limit_bytes=arguments.limit,
    )
    digest = hashlib.sha256()
    about: blob_pb2.BlobRef | None = None
    with contextlib.ExitStack() as files:
        file: BinaryIO | None = None
        async with context.connect() as client:
            with typed_errors():
                async for piece in client.stub.ReadBlob(request):
                    if about is None:
                        about = piece.blob
                        file = _open(arguments.output, about, files)
                    assert file is not None
                    file.write(piece.data)
                    digest.update(piece.data)
        if file is not None:
            file.flush()
    whole = not arguments.offset and not arguments.limit
    if about is not None and whole and digest.hexdigest() != about.sha256:
        raise CliError("The blob is damaged: its digest is not the one it should have.", FAILED)
    return OK


def _open(path: str | None, about: blob_pb2.BlobRef, files: contextlib.ExitStack) -> BinaryIO:
    if path is not None:
        try:
            return files.enter_context(Path(path).open("wb"))
        except OSError as error:
            raise usage_error(f"{path} can't be written: {error.strerror}.") from error
    if sys.stdout.isatty() and not about.media_type.startswith("text/"):
        raise usage_error(f"The blob is {about.media_type}, not text: give a file with --output.")
    return sys.stdout.buffer
