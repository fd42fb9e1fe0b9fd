"""The daemon: puts the parts together, runs until it is told to stop, drains."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from agentstreamd import collector, logs
from agentstreamd.adapters import registry
from agentstreamd.adapters.base import Adapter, HostContext
from agentstreamd.config import Config, environment_of
from agentstreamd.events import EventLogConfig, EventLogError, SqliteEventLog
from agentstreamd.events.privacy import keep_private
from agentstreamd.process import ProcessError, ProcessHost, sweep_leftovers
from agentstreamd.service.auth import TokenAuth
from agentstreamd.service.grant_file import GrantFileError
from agentstreamd.service.limits import CallLimits
from agentstreamd.service.listen import Address, ListenError
from agentstreamd.service.methods import SERVICE_NAME
from agentstreamd.service.peers import ClientScopes
from agentstreamd.service.server import Server, ServerSettings
from agentstreamd.service.stream import StreamSettings
from agentstreamd.service.tls import Certificates, TlsError, TlsFiles
from agentstreamd.sessions.config import SessionsConfig
from agentstreamd.sessions.manager import SessionManager
from agentstreamd.sessions.retention import Retention, RetentionLimits

if TYPE_CHECKING:
    from agentstreamd.telemetry import Telemetry

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_SETTINGS = 2
EXIT_DATA_DIR = 3
EXIT_LISTEN = 4

_CALL_GRACE_SECONDS = 1.0
_OTLP = "OTEL_EXPORTER_OTLP_"
_STOP_RESERVE = 0.25
"""Part of the drain timeout that is kept for what comes after the sessions."""

_log = logging.getLogger(__name__)


class StartError(Exception):
    """The daemon can't start. `str(error)` is a sentence for people; `code` its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run(config: Config) -> int:
    """Run the daemon until SIGTERM or SIGINT; returns its exit code."""
    logs.set_up(config.log_level, config.log_format)
    try:
        settings = server_settings(config, os.environ)
        telemetry = _telemetry(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, settings, telemetry))
    except StartError as error:
        print(f"agentstreamd: {error}", file=sys.stderr)
        return error.code
    except Exception:
        _log.exception("the daemon failed")
        return EXIT_FAULT
    return EXIT_OK


def server_settings(config: Config, environment: Mapping[str, str]) -> ServerSettings:
    """What the server gets. Raises StartError for files that can't be used, and for an address
    that others could reach without TLS and a token or certificates of clients.
    """
    addresses = [Address.parse(text) for text in config.listen]
    tls = auth = peers = None
    try:
        if config.tls_certificate_file is not None and config.tls_key_file is not None:
            tls = Certificates(
                TlsFiles(
                    config.tls_certificate_file, config.tls_key_file, config.tls_client_ca_file
                )
            )
        if config.token_file is not None:
            auth = TokenAuth.from_file(config.token_file)
        if config.client_scopes_file is not None:
            peers = ClientScopes(config.client_scopes_file)
    except (TlsError, GrantFileError) as error:
        raise StartError(str(error), EXIT_SETTINGS) from error
    safe = tls is not None and (auth is not None or tls.asks_clients)
    for address in addresses:
        if not (address.local or safe or config.insecure_behind_mesh):
            raise StartError(
                f"Refusing to listen on {address}: off loopback the daemon needs TLS "
                "(tls_certificate_file, tls_key_file) and a token (token_file) or clients' "
                "certificates (tls_client_ca_file).",
                EXIT_SETTINGS,
            )
    return ServerSettings(
        listen=addresses,
        tls=tls,
        auth=auth,
        reflection=config.reflection,
        streams=StreamSettings(
            progress_interval_seconds=config.progress_interval_seconds,
            max_streams=config.max_streams,
        ),
        peers=peers,
        limits=CallLimits(
            max_calls=config.max_calls,
            max_pending_bytes=config.max_pending_bytes,
            max_request_bytes=config.max_request_bytes,
            max_streams_per_client=config.max_streams_per_client,
        ),
    )


def _telemetry(config: Config) -> "Telemetry | None":
    """What watches the daemon; None where nobody asks for it."""
    listen = config.metrics_listen or ""
    if not (listen or any(name.startswith(_OTLP) for name in os.environ)):
        return None
    try:
        # Its packages are many, and nothing else needs them.
        from agentstreamd import telemetry
    except ImportError as error:
        raise StartError(
            f"Telemetry needs a package that is not installed ({error.name}): install "
            "agentstream[telemetry].",
            EXIT_SETTINGS,
        ) from error
    if not telemetry.wanted(os.environ, listen):
        return None
    try:
        return telemetry.Telemetry(os.environ, SERVICE_NAME, listen)
    except telemetry.TelemetryError as error:
        raise StartError(str(error), EXIT_LISTEN) from error


async def _serve(config: Config, settings: ServerSettings, telemetry: "Telemetry | None") -> None:
    stop = _StopSignals()
    async with _parts(config, telemetry) as manager:
        server = Server(manager, settings, telemetry.calls if telemetry else None)
        if telemetry is not None:
            telemetry.gauges.streams_open = lambda: server.streams.count
            telemetry.gauges.events_delivered = lambda: server.streams.delivered
            if telemetry.metrics_address:
                _log.info("metrics", extra={"address": telemetry.metrics_address})
        try:
            try:
                await server.start()
            except ListenError as error:
                raise StartError(str(error), EXIT_LISTEN) from error
            collector.calm()
            _say_ready(server.addresses)
            await stop.wait()
            _log.info("draining")
            timeout = config.drain_timeout_seconds
            noticed = asyncio.get_running_loop().time() + config.drain_notice_seconds
            try:
                # What lies beyond the sessions has bounds of its own, which fit in the reserve.
                async with asyncio.timeout(timeout * (1 - _STOP_RESERVE)):
                    manager.start_draining()
                    await server.drain()
                    await manager.drain()
            except TimeoutError:
                _log.warning("sessions did not stop in time; their agents are killed")
            # A call that arrives as the connections close gets CANCELLED, which tells its client
            # nothing: before that, whoever looks at health sends no more of them.
            await asyncio.sleep(noticed - asyncio.get_running_loop().time())
        finally:
            await server.stop(_CALL_GRACE_SECONDS)
    if telemetry is not None:
        await asyncio.to_thread(telemetry.stop)
    _log.info("stopped")


class _StopSignals:
    """The first SIGTERM or SIGINT asks to stop; the second ends the process at once.

    Its agents then end too: their supervisor stops them when the daemon is gone.
    """

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take, number)

    def _take(self, number: int) -> None:
        if self._asked.is_set():
            os._exit(128 + number)
        self._asked.set()

    async def wait(self) -> None:
        """Wait for the first."""
        await self._asked.wait()


@contextlib.asynccontextmanager
async def _parts(config: Config, telemetry: "Telemetry | None") -> AsyncIterator[SessionManager]:
    """Everything below the server, started; stopped at the end, in the opposite order."""
    environment = environment_of(os.environ, config.agent_environment)
    async with contextlib.AsyncExitStack() as stack:
        log = await _open_log(config, telemetry.appended if telemetry else None)
        stack.push_async_callback(log.close)
        # Only now: the log's lock makes sure that no other daemon lives on this directory.
        instance_id = _instance_id(config.data_dir)
        swept = await asyncio.to_thread(sweep_leftovers, instance_id)
        if swept.ended or swept.survivors:
            _log.warning(
                "ended processes of an earlier run",
                extra={"ended": len(swept.ended), "survivors": len(swept.survivors)},
            )
        processes = ProcessHost(instance_id)
        stack.push_async_callback(processes.close)
        try:
            await processes.start()
        except ProcessError as error:
            raise StartError(str(error), EXIT_FAULT) from error
        agents_directory = _private_directory(config.data_dir / "agents")
        adapters = await _start_adapters(config, environment, processes, agents_directory, stack)
        manager = SessionManager(
            log=log,
            adapters=adapters,
            processes=processes,
            config=SessionsConfig(
                state_directory=agents_directory,
                agent_environment=environment,
                allowed_roots=config.allowed_roots,
                interrupt_grace_seconds=config.interrupt_grace_seconds,
                idle_agent_seconds=config.agent_idle_stop_seconds,
                max_running_sessions=config.max_running_sessions,
                max_queued_messages=config.max_queued_messages,
                max_queued_bytes=config.max_queued_bytes,
            ),
            watch=telemetry.sessions.watch if telemetry else None,
        )
        if telemetry is not None:
            telemetry.gauges.sessions_loaded = lambda: manager.loaded
            telemetry.gauges.turns_running = lambda: manager.running
            telemetry.gauges.processes_running = lambda: len(processes.children)
            telemetry.gauges.processes_started = lambda: processes.started
        try:
            await manager.start()
        except EventLogError as error:
            raise StartError(f"{_sentence(error)}", EXIT_DATA_DIR) from error
        limits = RetentionLimits(
            ended_sessions_seconds=config.retention_ended_sessions_seconds,
            event_age_seconds=config.retention_event_age_seconds,
            session_bytes=config.retention_session_bytes,
        )
        async with Retention(log, manager.delete, limits).running():
            yield manager


async def _open_log(config: Config, on_append: Callable[[float], None] | None) -> SqliteEventLog:
    _private_directory(config.data_dir)
    try:
        return await SqliteEventLog.open(
            EventLogConfig(
                directory=config.data_dir / "events",
                synchronous="FULL" if config.event_log_synchronous == "full" else "NORMAL",
            ),
            on_append=on_append,
        )
    except EventLogError as error:
        raise StartError(_sentence(error), EXIT_DATA_DIR) from error


async def _start_adapters(
    config: Config,
    environment: Mapping[str, str],
    processes: ProcessHost,
    directory: Path,
    stack: contextlib.AsyncExitStack,
) -> Mapping[str, Adapter]:
    adapters = registry.load()
    for name in config.agents:
        if name not in adapters:
            known = ", ".join(sorted(adapters))
            raise StartError(
                f"The settings name an agent {name!r} that there is no adapter for; known are: "
                f"{known}.",
                EXIT_SETTINGS,
            )
    for name, adapter in adapters.items():
        agent = config.agents.get(name)
        await adapter.start(
            HostContext(
                processes=processes,
                environment=environment,
                state_directory=_private_directory(directory / name),
                executable=agent.executable if agent else "",
                options=agent.options if agent else {},
            )
        )
        stack.push_async_callback(adapter.close)
    return adapters


def _private_directory(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_private(path)
    except EventLogError as error:
        raise StartError(_sentence(error), EXIT_DATA_DIR) from error
    except OSError as error:
        raise StartError(
            f"The directory {path} can't be made: {error.strerror}.", EXIT_DATA_DIR
        ) from error
    return path


def _instance_id(data_dir: Path) -> str:
    """The mark of this data directory's processes; the same in every run."""
    path = data_dir / "instance-id"
    try:
        found = path.read_text("ascii").strip()
        if found:
            return found
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} can't be read.", EXIT_DATA_DIR) from error
    made = secrets.token_hex(8)
    try:
        fresh = path.with_name("instance-id.new")
        fresh.write_text(made + "\n", "ascii")
        fresh.replace(path)
    except OSError as error:
        raise StartError(f"{path} can't be written: {error.strerror}.", EXIT_DATA_DIR) from error
    return made


def _sentence(error: EventLogError) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _say_ready(addresses: Sequence[Address]) -> None:
    """The one line on standard output, for programs that wait for it."""
    where = " ".join(map(str, addresses))
    _log.info("listening", extra={"addresses": where})
    with contextlib.suppress(OSError):
        print(f"agentstreamd listening on {where}", flush=True)
