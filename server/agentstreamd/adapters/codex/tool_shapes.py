"""How each type of tool item shows: name, arguments, result. Pure."""

from dataclasses import dataclass

from msgspec import Raw as RawJson

from agentstream.v1 import item_pb2
from agentstreamd.adapters.codex.content import (
    file_parts,
    tool_output,
    url_part,
)
from agentstreamd.adapters.codex.native import (
    JsonObject,
    as_object,
    dump_text,
    known,
    members,
    objects_in,
    text_in,
    text_of,
    whole_in,
)
from agentstreamd.model import file_ref_part, image_at_part, json_part

Verbatim = dict[str, RawJson]
"""The members of a native item, each verbatim."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How a native item shows as a call."""

    name: str
    arguments_json: str
    files: tuple[item_pb2.ContentPart, ...] = ()
    metadata_json: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How a native item shows as a result."""

    output: str
    failed: bool
    exit_code: int | None = None
    more: tuple[item_pb2.ContentPart, ...] = ()
    metadata_json: str = ""


def tool_name(item: JsonObject) -> str:
    """What a tool is called in the stream."""
    match item.get("type"):
        case "commandExecution":
            return "shell"
        case "fileChange":
            return "apply_patch"
        case "mcpToolCall":
            return f"{text_in(item, 'server')}/{text_in(item, 'tool')}"
        case "dynamicToolCall":
            return "/".join(filter(None, (text_in(item, "namespace"), text_in(item, "tool"))))
        case "functionCallOutput":
            return "/".join(filter(None, (text_in(item, "namespace"), text_in(item, "name"))))
        case "collabAgentToolCall":
            return f"collab/{text_in(item, 'tool')}"
        case "webSearch":
            return "web_search"
        case "imageView":
            return "view_image"
        case _:
            return "image_generation"


def arguments_of(item: JsonObject, verbatim: Verbatim) -> str:
    """The arguments of a tool, as JSON; verbatim where Codex passes the model's on."""
    match item.get("type"):
        case "commandExecution":
            return dump_text(known(item, "command", "cwd"))
        case "fileChange":
            # The contents are in the file_ref parts.
            return dump_text(
                {
                    "changes": [
                        known(change, "path", "kind") for change in objects_in(item, "changes")
                    ]
                }
            )
        case "mcpToolCall" | "dynamicToolCall":
            given = text_of(verbatim.get("arguments", RawJson()))
            return given if given and given != "null" else "{}"
        case "collabAgentToolCall":
            names = ("prompt", "model", "reasoningEffort", "receiverThreadIds")
            return dump_text({k: v for k, v in known(item, *names).items() if v not in ("", [])})
        case "webSearch":
            return dump_text(known(item, "query", "action"))
        case "imageView":
            return dump_text(known(item, "path"))
        case "imageGeneration":
            return dump_text(known(item, "revisedPrompt", "transparentBackground", "inputImages"))
        case _:
            return "{}"


def call_of(item: JsonObject, verbatim: Verbatim) -> Seen:
    """How a native item shows as a call."""
    files: tuple[item_pb2.ContentPart, ...] = ()
    if item.get("type") == "fileChange":
        files = tuple(file_parts(item))
    elif item.get("type") == "imageView" and (path := text_in(item, "path")):
        files = (file_ref_part(path, item_pb2.FILE_ACTION_READ),)
    said = known(item, "commandActions", "readOnlyHint", "appContext", "pluginId")
    metadata = dump_text(said) if said else ""
    return Seen(tool_name(item), arguments_of(item, verbatim), files, metadata)


def result_of(item: JsonObject, verbatim: Verbatim) -> Result:
    """How a native item that has ended shows as a result."""
    failed = text_in(item, "status") not in ("completed", "")
    match item.get("type"):
        case "commandExecution":
            exit_code = whole_in(item, "exitCode")
            if exit_code is not None and abs(exit_code) >= 1 << 31:
                exit_code = None
            said = _status(item) | known(item, "source", "processId", "durationMs")
            output = text_in(item, "aggregatedOutput")
            return Result(output, failed, exit_code, (), dump_text(said) if said else "")
        case "fileChange":
            files = () if failed else tuple(file_parts(item))
            said = _status(item)
            return Result("", failed, None, files, dump_text(said) if said else "")
        case "mcpToolCall":
            return _mcp_result(item, verbatim, failed)
        case "dynamicToolCall":
            output, parts = tool_output(item.get("contentItems") or ())
            failed = failed or item.get("success") is False
            return Result(output, failed, None, tuple(parts))
        case "collabAgentToolCall":
            return _collab_result(item, failed)
        case "webSearch":
            results = text_of(verbatim.get("results", RawJson()))
            more = (json_part("results", results),) if results not in ("", "null", "[]") else ()
            return Result("", False, None, more)
        case "imageGeneration":
            return _generated(item)
        case "functionCallOutput":
            said_output = item.get("output")
            blocks = said_output if isinstance(said_output, list) else []
            output, parts = tool_output(blocks)
            text = said_output if isinstance(said_output, str) else output
            return Result(text, False, None, tuple(parts))
        case _:
            return Result("", False)


def _status(item: JsonObject) -> JsonObject:
    """How it ended, where that says more than completed or failed."""
    said = known(item, "status")
    return {} if said.get("status") in ("completed", "failed") else said


def _mcp_result(item: JsonObject, verbatim: Verbatim, failed: bool) -> Result:
    result = as_object(item.get("result"))
    content = result.get("content")
    output, parts = tool_output(content if isinstance(content, list) else ())
    if result.get("structuredContent") is not None:
        structured = members(verbatim.get("result", RawJson())).get("structuredContent", RawJson())
        parts.append(json_part("structured_content", text_of(structured)))
    output = output or text_in(as_object(item.get("error")), "message")
    said = known(item, "durationMs")
    return Result(output, failed, None, tuple(parts), dump_text(said) if said else "")


def _collab_result(item: JsonObject, failed: bool) -> Result:
    states = as_object(item.get("agentsStates"))
    messages = [text_in(as_object(state), "message") for state in states.values()]
    more = (json_part("agents", dump_text(states)),) if states else ()
    said = known(item, "receiverThreadIds", "model", "reasoningEffort")
    said = {name: value for name, value in said.items() if value not in ("", [])}
    metadata = dump_text(said) if said else ""
    return Result("\n".join(filter(None, messages)), failed, None, more, metadata)


def _generated(item: JsonObject) -> Result:
    failure = item.get("failure")
    more: list[item_pb2.ContentPart] = []
    if path := text_in(item, "savedPath"):
        more.append(image_at_part(path=path))
    elif result := text_in(item, "result"):
        more.append(url_part(f"data:image/png;base64,{result}"))
    output = dump_text(failure) if failure is not None else ""
    failed = failure is not None or text_in(item, "status") == "failed"
    return Result(output, failed, None, tuple(more))
