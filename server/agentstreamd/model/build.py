"""Builders for drafts and parts that every adapter needs.

Messages are built by assignment: it costs a third of building from nested keyword arguments, and a
delta is made for every few characters a model writes.
"""

from collections.abc import Iterable, Sequence

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.model.draft import Draft, Kind

AGENT = event_pb2.EVENT_SOURCE_AGENT
DAEMON = event_pb2.EVENT_SOURCE_DAEMON

UNPARSED_PREVIEW_BYTES = 1024

SOME_IMAGE = "image/*"
"""The media type of a picture whose own the agent doesn't say."""

_IMAGE_TYPES = {
    "gif": "image/gif",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
}


def event(
    *, synthetic: bool = False, by_daemon: bool = False, metadata_json: str = ""
) -> event_pb2.Event:
    """An event without payload. `synthetic` implies that the daemon is its source."""
    made = event_pb2.Event()
    made.source = DAEMON if synthetic or by_daemon else AGENT
    if synthetic:
        made.synthetic = True
    if metadata_json:
        made.metadata_json = metadata_json
    return made


def started(
    item: item_pb2.Item,
    raw: tuple[bytes, ...] = (),
    *,
    synthetic: bool = False,
    metadata_json: str = "",
) -> Draft:
    """`item_started` for `item`; its status is set to in progress."""
    made = event(synthetic=synthetic, metadata_json=metadata_json)
    item.status = item_pb2.ITEM_STATUS_IN_PROGRESS
    made.item_started.item.CopyFrom(item)
    return Draft(Kind.ITEM_STARTED, made, raw)


def delta(
    item_id: str,
    content_index: int,
    kind: event_pb2.DeltaKind.ValueType,
    text: str,
    raw: tuple[bytes, ...] = (),
    *,
    replace: bool = False,
    synthetic: bool = False,
) -> Draft:
    """`item_delta`: `text` for the part `content_index` of an item that is started and not
    completed.
    """
    made = event_pb2.Event()
    if synthetic:
        made.source = DAEMON
        made.synthetic = True
    else:
        made.source = AGENT
    payload = made.item_delta
    payload.item_id = item_id
    if content_index:
        payload.content_index = content_index
    payload.kind = kind
    payload.text = text
    payload.operation = (
        event_pb2.DELTA_OPERATION_REPLACE if replace else event_pb2.DELTA_OPERATION_APPEND
    )
    return Draft(Kind.ITEM_DELTA, made, raw)


def completed(
    item: item_pb2.Item,
    raw: tuple[bytes, ...] = (),
    *,
    failed: bool = False,
    synthetic: bool = False,
    metadata_json: str = "",
) -> Draft:
    """`item_completed` for `item`; its status is set to completed, or failed."""
    made = event(synthetic=synthetic, metadata_json=metadata_json)
    item.status = item_pb2.ITEM_STATUS_FAILED if failed else item_pb2.ITEM_STATUS_COMPLETED
    made.item_completed.item.CopyFrom(item)
    return Draft(Kind.ITEM_COMPLETED, made, raw)


def whole(
    item: item_pb2.Item,
    raw: tuple[bytes, ...] = (),
    *,
    failed: bool = False,
    synthetic: bool = False,
    metadata_json: str = "",
) -> list[Draft]:
    """An item that the agent reports all at once: started (with the bare call, the status, or
    nothing) and completed.
    """
    head = item_pb2.Item()
    head.CopyFrom(item)
    del head.content[:]
    if item.content:
        first = item.content[0]
        match first.WhichOneof("part"):
            case "tool_call":
                call = head.content.add().tool_call
                call.name, call.call_id = first.tool_call.name, first.tool_call.call_id
            case "tool_result":
                head.content.add().tool_result.call_id = first.tool_result.call_id
            case "status":
                head.content.add().status.CopyFrom(first.status)
            case _:
                pass
    return [
        started(head, raw, synthetic=synthetic),
        completed(item, raw, failed=failed, synthetic=synthetic, metadata_json=metadata_json),
    ]


def text_part(text: str) -> item_pb2.ContentPart:
    """A text part."""
    part = item_pb2.ContentPart()
    part.text.text = text
    return part


def reasoning_part(
    text: str,
    visibility: item_pb2.ReasoningVisibility.ValueType = item_pb2.REASONING_VISIBILITY_FULL,
) -> item_pb2.ContentPart:
    """A reasoning part."""
    part = item_pb2.ContentPart()
    part.reasoning.text = text
    part.reasoning.visibility = visibility
    return part


def json_part(label: str, json: str) -> item_pb2.ContentPart:
    """A part of structured data; `json` is one JSON value, verbatim."""
    part = item_pb2.ContentPart()
    part.json.label = label
    part.json.json = json
    return part


def image_part(media_type: str, data: bytes) -> item_pb2.ContentPart:
    """A picture; `data` is the encoded image itself."""
    part = item_pb2.ContentPart()
    part.image.media_type = media_type or SOME_IMAGE
    part.image.data = data
    return part


def image_at_part(*, url: str = "", path: str = "", media_type: str = "") -> item_pb2.ContentPart:
    """A picture at a URL or in a file. Where its type isn't said, the name's suffix tells it."""
    part = item_pb2.ContentPart()
    if url:
        part.image.url = url
    else:
        part.image.path = path
    name = path or url.partition("?")[0]
    part.image.media_type = media_type or _IMAGE_TYPES.get(
        name.rpartition(".")[2].lower(), SOME_IMAGE
    )
    return part


def file_ref_part(
    path: str,
    action: item_pb2.FileAction.ValueType,
    diff: str = "",
    new_path: str = "",
) -> item_pb2.ContentPart:
    """A file that is read or changed."""
    part = item_pb2.ContentPart()
    part.file_ref.path = path
    part.file_ref.action = action
    part.file_ref.diff = diff
    part.file_ref.new_path = new_path
    return part


def tool_call_item(
    item_id: str,
    *,
    name: str,
    arguments_json: str,
    call_id: str,
    parent_id: str = "",
    native_item_id: str = "",
    files: Iterable[item_pb2.ContentPart] = (),
) -> item_pb2.Item:
    """A tool_call item: the call, then `file_ref` parts for the files it names."""
    item = item_pb2.Item(
        item_id=item_id,
        native_item_id=native_item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_TOOL_CALL,
        role=item_pb2.ITEM_ROLE_ASSISTANT,
    )
    call = item.content.add().tool_call
    call.name = name
    call.arguments_json = arguments_json
    call.call_id = call_id
    item.content.extend(files)
    return item


def tool_result_item(
    item_id: str,
    *,
    call_id: str,
    output: str,
    is_error: bool = False,
    exit_code: int | None = None,
    parent_id: str = "",
    native_item_id: str = "",
    more: Sequence[item_pb2.ContentPart] = (),
) -> item_pb2.Item:
    """A tool_result item: the result, then `more` parts (images, files, JSON)."""
    item = item_pb2.Item(
        item_id=item_id,
        native_item_id=native_item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_TOOL_RESULT,
        role=item_pb2.ITEM_ROLE_TOOL,
    )
    result = item.content.add().tool_result
    result.call_id = call_id
    result.output = output
    result.is_error = is_error
    if exit_code is not None:
        result.exit_code = exit_code
    item.content.extend(more)
    return item


def status_item(
    item_id: str,
    label: str,
    detail: str = "",
    *,
    key: str = "",
    parent_id: str = "",
    more: Sequence[item_pb2.ContentPart] = (),
) -> item_pb2.Item:
    """A status item: a status part, then `more` parts with the details."""
    item = item_pb2.Item(
        item_id=item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_STATUS,
        role=item_pb2.ITEM_ROLE_SYSTEM,
    )
    status = item.content.add().status
    status.label = label
    status.detail = detail
    status.key = key
    item.content.extend(more)
    return item


def unknown_item(item_id: str, label: str, json: str, *, parent_id: str = "") -> item_pb2.Item:
    """An item for a native message of a type that is not known; `json` is the message, verbatim."""
    item = item_pb2.Item(
        item_id=item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_UNKNOWN,
        role=item_pb2.ITEM_ROLE_SYSTEM,
    )
    item.content.append(json_part(label, json))
    return item


def unparsed(native: bytes, error: str, *, size_bytes: int | None = None) -> Draft:
    """`agent_unparsed` for output that is not of the agent's protocol.

    `native` may be only the beginning of a line that was too long to keep; then `size_bytes` says
    how long it was.
    """
    made = event(synthetic=True)
    payload = made.agent_unparsed
    payload.error = error
    payload.preview = native[:UNPARSED_PREVIEW_BYTES].decode("utf-8", "replace")
    payload.size_bytes = len(native) if size_bytes is None else size_bytes
    return Draft(Kind.AGENT_UNPARSED, made, (native,))
