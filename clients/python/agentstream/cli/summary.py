"""The lines that frame a session: how it began, what changed, how turns and it ended."""

from rich.text import Text

from agentstream.cli.text import count, duration, enum_name, one_line, plain, size, visible
from agentstream.v1 import agent_pb2, error_pb2, event_pb2, item_pb2, session_pb2


def session_line(event: event_pb2.Event) -> Text:
    """How the session began."""
    began = event.session_started
    parts = [f"{began.agent} {began.agent_version}".rstrip(), began.model, began.working_directory]
    if began.permission_mode not in (
        agent_pb2.PERMISSION_MODE_UNSPECIFIED,
        agent_pb2.PERMISSION_MODE_DEFAULT,
    ):
        parts.append(permission_mode_name(began.permission_mode))
    if began.resumed:
        parts.append("resumed")
    text = Text.assemble(("session ", "dim"), (event.session_id, "bold"))
    return text.append("  " + " · ".join(visible(part) for part in parts if part), "dim")


def update_lines(update: event_pb2.SessionUpdated) -> list[Text]:
    """What changed, as far as people care."""
    lines = []
    if update.HasField("model"):
        lines.append(f"model {update.model}")
    if update.HasField("mode"):
        lines.append(f"mode {update.mode}")
    if update.permission_mode:
        lines.append(f"permission mode {permission_mode_name(update.permission_mode)}")
    if update.HasField("title"):
        lines.append(f"title {update.title}")
    if update.HasField("queue") and update.queue.messages:
        waiting = ", ".join(repr(message.preview) for message in update.queue.messages)
        lines.append(f"waiting messages: {waiting}")
    for server in update.mcp_servers.servers:
        if server.error or server.status == "failed":
            lines.append(f"MCP server {server.name}: {server.status} {server.error}".rstrip())
    return [Text(f"· {one_line(line, 200)}", "dim") for line in lines]


def turn_line(ended: event_pb2.TurnEnded, seconds: float | None, shown_error: str = "") -> Text:
    """How a turn ended and what it used. `shown_error` was written already, not once more."""
    match ended.status:
        case event_pb2.TURN_STATUS_COMPLETED:
            text = Text.assemble(("✓ completed", "green"))
        case event_pb2.TURN_STATUS_INTERRUPTED:
            text = Text.assemble(("◼ interrupted", "yellow"))
        case event_pb2.TURN_STATUS_SUPERSEDED:
            text = Text.assemble(("◦ went into another turn", "dim"))
        case _:
            text = Text.assemble(("✗ failed", "red"))
            if ended.error.message and ended.error.message != shown_error:
                text.append(f": {one_line(ended.error.message, 300)}", "red")
    parts = [usage_text(ended.usage), "" if seconds is None else duration(seconds)]
    for part in filter(None, parts):
        text.append(f" · {part}", "dim")
    return text


def usage_text(usage: session_pb2.Usage) -> str:
    """Tokens and cost, as far as they are known."""
    parts = []
    if usage.HasField("input_tokens"):
        cached = f" ({count(usage.cache_read_tokens)} cached)" if usage.cache_read_tokens else ""
        parts.append(f"{count(usage.input_tokens)} in{cached}")
    if usage.HasField("output_tokens"):
        parts.append(f"{count(usage.output_tokens)} out")
    if usage.HasField("cost_micro_usd"):
        parts.append(f"${usage.cost_micro_usd / 1_000_000:.4f}")
    return ", ".join(parts)


def ended_line(ended: event_pb2.SessionEnded) -> list[Text]:
    """How the session ended, with what the agent wrote to its standard error if it went wrong."""
    reason = event_pb2.SessionEndReason.Name(ended.reason)
    wrong = ended.reason in (
        event_pb2.SESSION_END_REASON_START_FAILED,
        event_pb2.SESSION_END_REASON_NOT_RESUMABLE,
    )
    style = "red" if wrong else "dim"
    line = Text(f"session ended: {enum_name(reason, 'SESSION_END_REASON_')}", style)
    if ended.error_code:
        code = error_pb2.ErrorCode.Name(ended.error_code)
        line.append(f" after a failure ({enum_name(code, 'ERROR_CODE_')})", style)
    if ended.message:
        line.append(f": {one_line(ended.message, 300)}", style)
    if not wrong:
        return [line]
    stderr = plain(ended.stderr_head + ended.stderr_tail).strip().splitlines()[-10:]
    return [line, *(Text(f"  {said}", "dim") for said in stderr)]


def error_line(error: error_pb2.Error) -> Text:
    """Something that went wrong, and whether it is tried again."""
    style = "yellow" if error.will_retry else "red"
    text = Text.assemble((f"✗ {one_line(error.message, 500)}", style))
    if error.code:
        text.append(f"  {enum_name(error_pb2.ErrorCode.Name(error.code), 'ERROR_CODE_')}", "dim")
    if error.will_retry:
        text.append("  the agent tries again", "dim")
        if error.HasField("retry_delay"):
            text.append(f" in {duration(error.retry_delay.ToMilliseconds() / 1000)}", "dim")
        if error.HasField("attempt"):
            most = f" of {error.max_attempts}" if error.HasField("max_attempts") else ""
            text.append(f" (attempt {error.attempt}{most})", "dim")
    return text


def agent_error(unparsed: event_pb2.AgentUnparsed) -> str:
    """A line of the agent that could not be read."""
    return f"· the agent wrote what can't be read: {unparsed.error}: {one_line(unparsed.preview)}"


def image_line(part: item_pb2.ContentPart) -> Text:
    """A picture, which a terminal does not show."""
    image = part.image
    match image.WhichOneof("source"):
        case "url":
            where = image.url
        case "path":
            where = image.path
        case _:
            blob = part.external
            where = f"blob {blob.blob_id}" if blob.blob_id else size(len(image.data))
    return Text(f"[{visible(image.media_type) or 'image'}: {visible(where)}]", "dim")


def permission_mode_name(mode: agent_pb2.PermissionMode.ValueType) -> str:
    """The mode as it is written on the command line."""
    name = agent_pb2.PermissionMode.Name(mode).removeprefix("PERMISSION_MODE_")
    return name.lower().replace("_", "-")
