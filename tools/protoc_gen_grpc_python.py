"""A protoc plugin for the Python stubs of gRPC services: `python -m tools.protoc_gen_grpc_python`.

grpc_tools carries the generator only inside its own protoc, which buf does not offer as a
built-in; this hands a CodeGeneratorRequest on to it.
"""

import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc


def generate(request: CodeGeneratorRequest) -> CodeGeneratorResponse:
    """Return a `*_pb2_grpc.py` for each file to generate, or a response with its error set."""
    response = CodeGeneratorResponse(
        supported_features=CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    # A file without a service has nothing but boilerplate in its stubs.
    with_services = {file.name for file in request.proto_file if file.service}
    names = [name for name in request.file_to_generate if name in with_services]
    if not names:
        return response
    with tempfile.TemporaryDirectory() as scratch:
        descriptors = Path(scratch, "descriptors.binpb")
        descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
        out = Path(scratch, "out")
        out.mkdir()
        arguments = [f"--descriptor_set_in={descriptors}", f"--grpc_python_out={out}", *names]
        if protoc.main(["protoc", *arguments]) != 0:
            response.error = f"grpc_tools.protoc failed on {', '.join(names)}"
            return response
        for path in sorted(out.rglob("*.py")):
            response.file.add(name=path.relative_to(out).as_posix(), content=path.read_text())
    return response


def main() -> None:
    """Serve one request of protoc: it comes on stdin, its response goes to stdout."""
    request = CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    sys.stdout.buffer.write(generate(request).SerializeToString())


if __name__ == "__main__":
    main()
