"""Builders of what a daemon answers, for tests of clients."""

from collections.abc import Mapping

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from agentstream.v1 import event_pb2, service_pb2, session_pb2


def opened(
    uid: str = "uid-1",
    latest: int = 0,
    state: session_pb2.SessionState.ValueType = session_pb2.SESSION_STATE_IDLE,
) -> service_pb2.StreamEventsResponse:
    session = session_pb2.Session(session_id="s", uid=uid, latest_sequence=latest, state=state)
    return service_pb2.StreamEventsResponse(opened=service_pb2.StreamOpened(session=session))


def batch(*sequences: int, last: int = 0, ended: bool = False) -> service_pb2.StreamEventsResponse:
    events = [event_pb2.Event(sequence=s, session_id="s") for s in sequences]
    if ended:
        events[-1].session_ended.SetInParent()
    through = last or (sequences[-1] if sequences else 0)
    return service_pb2.StreamEventsResponse(
        batch=service_pb2.EventBatch(events=events, last_sequence=through)
    )


def progress(last: int) -> service_pb2.StreamEventsResponse:
    return service_pb2.StreamEventsResponse(progress=service_pb2.StreamProgress(last_sequence=last))


def status_details(
    code: grpc.StatusCode,
    message: str,
    reason: str = "",
    metadata: Mapping[str, str] | None = None,
    violations: Mapping[str, str] | None = None,
    retry_seconds: float | None = None,
) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata with a google.rpc.Status."""
    status = status_pb2.Status(code=code.value[0], message=message)
    if reason:
        _add(
            status,
            error_details_pb2.ErrorInfo(
                reason=reason, domain="agentstream", metadata=dict(metadata or {})
            ),
        )
    if violations:
        bad = error_details_pb2.BadRequest()
        for field, description in violations.items():
            bad.field_violations.add(field=field, description=description)
        _add(status, bad)
    if retry_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(retry_seconds * 1000))
        _add(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return (("grpc-status-details-bin", status.SerializeToString()),)


def _add(status: status_pb2.Status, detail: object) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)  # type: ignore[arg-type]
    status.details.append(packed)
