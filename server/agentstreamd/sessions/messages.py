"""Taking messages and changes of settings from clients."""

from collections.abc import Callable, Sequence

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, service_pb2
from agentstreamd.events.log import EventLog
from agentstreamd.sessions import errors, stored
from agentstreamd.sessions.agents import adapter_errors
from agentstreamd.sessions.checks import OUTSIDE, check_labels, check_title, check_word
from agentstreamd.sessions.config import SessionsConfig
from agentstreamd.sessions.local_images import with_local_images
from agentstreamd.sessions.prompts import check_message, has_part
from agentstreamd.sessions.roots import Roots
from agentstreamd.sessions.runtime import SessionRuntime

UPDATABLE = ("model", "permission_mode", "title", "labels")


async def send_message(
    runtime: SessionRuntime,
    agent: agent_pb2.Agent,
    request: service_pb2.SendMessageRequest,
    log: EventLog,
    config: SessionsConfig,
    check_room: Callable[[], None],
) -> service_pb2.SendMessageResponse:
    """Start a turn with a message, or do what it says for a busy session.

    `check_room` raises when no further session may run a turn now.
    """
    violations = check_message(request)
    if violations:
        raise errors.invalid(*violations)
    digest = stored.digest(request)
    if not request.client_message_id:
        return await _take(runtime, agent, request, digest, config, check_room)
    # One at a time: the same call again, at the same time, must find what the first one did.
    async with runtime.turns.sending.hold(request.client_message_id):
        earlier = await _earlier(runtime, request, digest, log)
        if earlier is not None:
            return earlier
        return await _take(runtime, agent, request, digest, config, check_room)


async def _take(
    runtime: SessionRuntime,
    agent: agent_pb2.Agent,
    request: service_pb2.SendMessageRequest,
    digest: bytes,
    config: SessionsConfig,
    check_room: Callable[[], None],
) -> service_pb2.SendMessageResponse:
    _check_capabilities(agent, request)
    roots = Roots(config.allowed_roots)
    if not roots.hold(runtime.config.working_directory):
        # Made before the roots were set, or a link on the way leads elsewhere by now.
        raise errors.agent_unavailable(agent.name, f"the session's working directory {OUTSIDE}")
    request = await with_local_images(request, roots)
    runtime.check_live()
    if not runtime.turns.current:
        check_room()
        return await runtime.turns.start_turn(request, digest)
    if request.when_busy == service_pb2.WHEN_BUSY_QUEUE:
        _check_queue(runtime.turns.queue, request, config)
        return await runtime.turns.enqueue(request, digest)
    if request.when_busy == service_pb2.WHEN_BUSY_STEER and runtime.keeper.turn_id:
        if not agent.capabilities.steer:
            raise errors.not_supported(
                agent.name, "steer", f"{agent.name} takes no message while a turn runs"
            )
        with adapter_errors(agent.name):
            return await runtime.turns.steer(request, digest)
    raise errors.SessionError(
        error_pb2.ERROR_REASON_TURN_IN_PROGRESS,
        f"a turn is running in session {runtime.session_id!r}; wait for it, interrupt it, or send "
        "with when_busy",
        {"turn_id": runtime.turns.current},
    )


def _check_queue(
    queue: Sequence[stored.Queued], request: service_pb2.SendMessageRequest, config: SessionsConfig
) -> None:
    if len(queue) >= config.max_queued_messages:
        raise errors.limit_exceeded("max_queued_messages", config.max_queued_messages)
    # Few enough to be added up each time.
    waiting = sum(queued.request.ByteSize() for queued in queue)
    if waiting + request.ByteSize() > config.max_queued_bytes:
        raise errors.limit_exceeded("max_queued_bytes", config.max_queued_bytes)


async def _earlier(
    runtime: SessionRuntime,
    request: service_pb2.SendMessageRequest,
    digest: bytes,
    log: EventLog,
) -> service_pb2.SendMessageResponse | None:
    """What was answered to this message before."""
    client_message_id = request.client_message_id
    with errors.log_errors(runtime.session_id):
        value = await log.get(runtime.session_id, stored.message_key(client_message_id))
    if value is not None:
        runtime.turns.forget_accepted(client_message_id)
        known, encoded = stored.split_digest(value)
        _check_same(client_message_id, known, digest)
        return service_pb2.SendMessageResponse.FromString(encoded)
    accepted = runtime.turns.accepted(client_message_id)
    if accepted is None:
        return None
    _check_same(client_message_id, accepted.digest, digest)
    await runtime.recording.committed(accepted.ticket)
    return accepted.response


def _check_same(client_message_id: str, known: bytes, digest: bytes) -> None:
    if known != digest:
        raise errors.SessionError(
            error_pb2.ERROR_REASON_MESSAGE_ID_REUSED,
            f"client_message_id {client_message_id!r} was used for another message",
            {"client_message_id": client_message_id},
            [("client_message_id", "was used for another message")],
        )


def _check_capabilities(agent: agent_pb2.Agent, request: service_pb2.SendMessageRequest) -> None:
    can = agent.capabilities
    for needed, allowed, capability, what in (
        (has_part(request, "image"), can.image_input, "image_input", "images"),
        (has_part(request, "file"), can.file_input, "file_input", "files"),
        (request.command, can.commands, "commands", "commands"),
        (request.model, can.message_model, "message_model", "model for a single message"),
        (request.effort, can.message_effort, "message_effort", "effort for a single message"),
    ):
        if needed and not allowed:
            raise errors.not_supported(agent.name, capability, f"{agent.name} takes no {what}")


async def update_settings(
    runtime: SessionRuntime, agent: agent_pb2.Agent, request: service_pb2.UpdateSessionRequest
) -> None:
    """Change what the mask names; returns when that is durable and the agent has taken it."""
    paths = list(dict.fromkeys(request.update_mask.paths))
    wanted = request.config
    found = [
        ("update_mask", f"{path!r} can't be updated") for path in paths if path not in UPDATABLE
    ]
    if not paths:
        found.append(("update_mask", "names nothing to update"))
    if "title" in paths:
        found.extend(check_title(wanted.title))
    if "labels" in paths:
        found.extend(check_labels(dict(wanted.labels)))
    if "model" in paths:
        found.extend(check_word("config.model", wanted.model))
    if "permission_mode" in paths and wanted.permission_mode not in {
        info.mode for info in agent.permission_modes
    }:
        found.append(("config.permission_mode", f"is not a mode of {agent.name}"))
    if found:
        raise errors.invalid(*found)
    runtime.check_live()
    can = agent.capabilities
    for path, allowed in (
        ("model", can.change_model),
        ("permission_mode", can.change_permission_mode),
    ):
        if path in paths and not allowed:
            raise errors.not_supported(
                agent.name, f"change_{path}", f"{agent.name} can't change its {path} mid-session"
            )
    model = wanted.model if "model" in paths else None
    mode = wanted.permission_mode if "permission_mode" in paths else None
    update = event_pb2.SessionUpdated()
    if model is not None or mode is not None:
        with adapter_errors(agent.name):
            update = await runtime.change_agent_settings(model, mode)
    config = runtime.config
    if model is not None:
        config.model = model
    if mode is not None:
        config.permission_mode = mode
    if "title" in paths:
        config.title = update.title = wanted.title
    if "labels" in paths:
        config.labels.clear()
        config.labels.update(wanted.labels)
        update.labels.labels.update(wanted.labels)
        update.labels.SetInParent()
    runtime.recording.tick()
    runtime.keeper.update(update)
    await runtime.recording.committed(
        runtime.recording.flush({stored.CONFIG: config.SerializeToString()})
    )
