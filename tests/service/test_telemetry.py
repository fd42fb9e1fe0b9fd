"""Traces and metrics of a real daemon: what is exported, and what is not."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import field_mask_pb2
from prometheus_client.parser import text_string_to_metric_families

from agentstream.v1 import service_pb2, session_pb2
from tests.support.daemon import DaemonFailed, start
from tests.support.e2e import COMPLETED, QUEUE, Bench, Lab, lab
from tests.support.otlp import Collector, attributes

TURN = "invoke_agent mock"
SEND = "agentstream.v1.AgentService/SendMessage"
STREAM = "agentstream.v1.AgentService/StreamEvents"
SECRET = "a-secret-that-is-nobodys-business"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as made:
        yield made


@pytest.fixture
async def daemon(tmp_path: Path, collector: Collector) -> AsyncIterator[Lab]:
    flags = ("--metrics-listen=127.0.0.1:0", "--log-format=json")
    async with lab(tmp_path, collector.environment, *flags) as made:
        yield made


@pytest.fixture
async def bench(daemon: Lab, tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(daemon, "mock", tmp_path, {"TOKEN": SECRET})
    yield made
    for session in made.sessions:
        await session.end()
        await session.verify(unparsed=True)


async def scrape(daemon: Lab) -> dict[str, float]:
    """The values that Prometheus sees, by name and labels."""
    lines = [json.loads(line) for line in daemon.daemon.stderr.splitlines()]
    [address] = [line["address"] for line in lines if line["message"] == "metrics"]

    def get() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics") as response:
            text: str = response.read().decode()
            return text

    found = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(get)):
        for sample in family.samples:
            pairs = sorted(sample.labels.items())
            labels = ",".join(f"{k}={v}" for k, v in pairs if k != "le" and "otel_scope" not in k)
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


async def test_a_turn_is_a_child_of_the_call_that_started_it_and_its_tools_of_the_turn(
    bench: Bench, collector: Collector
) -> None:
    session = await bench.session()
    part = service_pb2.InputPart(text=f'say {SECRET}\ntool Bash {{"x":"{SECRET}"}} => ! no')
    request = service_pb2.SendMessageRequest(session_id=session.id, parts=[part])
    metadata = (("traceparent", TRACEPARENT), ("x-request-id", "my-request"))
    sent = await bench.lab.stub.SendMessage(request, metadata=metadata)
    await session.turn_ended(sent.turn_id)
    call, turn, tool = [await collector.span(name) for name in (SEND, TURN, "execute_tool Bash")]
    assert call.trace_id.hex() == TRACEPARENT.split("-")[1]
    assert call.parent_span_id.hex() == TRACEPARENT.split("-")[2]
    assert attributes(call)["rpc.response.status_code"] == "OK"
    assert attributes(call)["agentstream.request_id"] == "my-request"
    assert (turn.trace_id, turn.parent_span_id) == (call.trace_id, call.span_id)
    assert (tool.trace_id, tool.parent_span_id) == (call.trace_id, turn.span_id)
    assert turn.start_time_unix_nano <= tool.start_time_unix_nano <= tool.end_time_unix_nano
    said = attributes(turn)
    assert said["agentstream.turn.status"] == "completed"
    assert said["agentstream.turn.trigger"] == "client"
    assert said["gen_ai.conversation.id"] == session.id
    assert said["gen_ai.usage.input_tokens"] > 0
    assert tool.status.code == 2, "the tool failed"
    logged = [json.loads(line) for line in bench.lab.daemon.stderr.splitlines()]
    [line] = [one for one in logged if one.get("request_id") == "my-request"]
    assert line["trace_id"] == call.trace_id.hex()


async def test_a_turn_that_waited_is_linked_to_the_call_that_brought_it(
    bench: Bench, collector: Collector
) -> None:
    session = await bench.session()
    await session.send("wait interrupt")
    queued = await session.send("say later", when_busy=QUEUE)
    await session.interrupt()
    await session.turn_ended(queued.turn_id)
    await collector.span(TURN, 2)
    [turn] = [
        span
        for span in collector.named(TURN)
        if attributes(span)["agentstream.turn.id"] == queued.turn_id
    ]
    call = await collector.span(SEND, 2)
    assert not turn.parent_span_id
    assert [link.span_id for link in turn.links] == [call.span_id]
    assert attributes(turn)["agentstream.turn.trigger"] == "queue"


async def test_the_span_of_a_stream_ends_when_the_stream_is_open(
    bench: Bench, collector: Collector
) -> None:
    session = await bench.session()
    span = await collector.span(STREAM)
    assert session._following, "the stream goes on"
    assert attributes(span)["rpc.response.status_code"] == "OK"


async def test_a_failed_call_says_its_reason(bench: Bench, collector: Collector) -> None:
    session = await bench.session()
    mask = field_mask_pb2.FieldMask(paths=["agent"])
    request = service_pb2.UpdateSessionRequest(
        session_id=session.id, config=session_pb2.SessionConfig(), update_mask=mask
    )
    with pytest.raises(Exception, match="update_mask"):
        await bench.lab.stub.UpdateSession(request)
    span = await collector.span("agentstream.v1.AgentService/UpdateSession")
    assert attributes(span)["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert attributes(span)["error.type"] == "INVALID_FIELD"


async def test_nothing_that_was_said_is_exported(bench: Bench, collector: Collector) -> None:
    session = await bench.session()
    await session.turn(f"say {SECRET}\nerror overloaded {SECRET}\nfail authentication {SECRET}")
    turn = await collector.span(TURN)
    assert attributes(turn)["error.type"] == "authentication"
    await collector.until(lambda: "agentstream.errors" in collector.metrics)
    exported = str(collector.spans) + str(collector.metrics) + str(await scrape(bench.lab))
    assert SECRET not in exported


async def test_metrics_tell_what_goes_on(bench: Bench, collector: Collector) -> None:
    session = await bench.session(agent_options={"process": "true"})
    sent = await session.send('garbage\nask permission command "make"')
    asked = await session.permission()
    waiting = await scrape(bench.lab)
    assert waiting["agentstream_requests_pending{agentstream_agent=mock}"] == 1
    assert waiting["agentstream_requests_oldest_age_seconds{}"] > 0
    assert waiting["agentstream_turns_running{}"] == 1
    assert waiting["agentstream_sessions_loaded{}"] == 1
    assert waiting["agentstream_streams_open{}"] == 1
    assert waiting["agentstream_processes_running{}"] == 1
    assert waiting["agentstream_events_unparsed_total{agentstream_agent=mock}"] == 1
    await session.decide(asked)
    assert (await session.turn_ended(sent.turn_id)).status == COMPLETED
    rest = await scrape(bench.lab)
    labels = "{agentstream_agent=mock,agentstream_turn_status=completed}"
    assert rest[f"agentstream_turn_duration_seconds_count{labels}"] == 1
    assert rest["agentstream_requests_pending{agentstream_agent=mock}"] == 0
    assert rest["agentstream_requests_oldest_age_seconds{}"] == 0
    answered = "{agentstream_agent=mock,agentstream_request_outcome=accepted}"
    assert rest[f"agentstream_request_duration_seconds_count{answered}"] == 1
    appended = rest["agentstream_events_appended_total{agentstream_agent=mock}"]
    assert appended == session.events[-1].sequence
    # An event is counted once its write returned, and here before that.
    while rest["agentstream_events_delivered_total{}"] < session.events[-1].sequence:
        rest = await scrape(bench.lab)
    assert rest["agentstream_log_append_duration_seconds_count{}"] > 0
    assert rest["agentstream_processes_started_total{}"] == 1
    calls = [name for name in rest if name.startswith("rpc_server_call_duration_seconds_count")]
    assert any("SendMessage" in name for name in calls)
    await collector.until(lambda: "agentstream.turn.duration" in collector.metrics)


async def test_metrics_are_not_served_off_loopback(tmp_path: Path) -> None:
    with pytest.raises(DaemonFailed) as failed:
        await start(tmp_path / "data", "--metrics-listen=0.0.0.0:0")
    assert failed.value.code == 2
    assert "only on loopback" in failed.value.stderr


async def test_an_address_that_is_taken_is_said(tmp_path: Path, daemon: Lab) -> None:
    taken = daemon.daemon.target
    with pytest.raises(DaemonFailed) as failed:
        await start(tmp_path / "other", f"--metrics-listen={taken}")
    assert failed.value.code == 4
    assert f"Can't serve metrics on {taken}" in failed.value.stderr


async def test_a_collector_that_is_not_there_keeps_nothing_from_working(tmp_path: Path) -> None:
    nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    async with lab(tmp_path, nowhere) as daemon:
        bench = Bench(daemon, "mock", tmp_path, {})
        session = await bench.session()
        assert (await session.turn("say hello")).status == COMPLETED
        await bench.finish()
