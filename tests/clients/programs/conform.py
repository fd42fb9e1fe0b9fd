"""The scenarios by the Python clients: `conform.py grpcio|grpcio-aio|betterproto`.

Reads the plan from standard input, writes an outcome a line; see tests/clients/test_conformance.py.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable

from tests.clients.programs.outcome import Client, Failed, Json


def emit(value: Json) -> None:
    """Write a line of output."""
    print(json.dumps(value), flush=True)


class Runner:
    """Carries out the plan."""

    def __init__(self, plan: Json, connect: Callable[[Json], Client]) -> None:
        self.plan = plan
        self.clients = {name: connect(it) for name, it in plan["connections"].items()}

    async def run(self) -> None:
        """Carry out all scenarios."""
        for scenario in self.plan["scenarios"]:
            remembered: dict[str, str] = {}
            for number, step in enumerate(scenario["steps"]):
                text = json.dumps(step)
                for name, value in remembered.items():
                    text = text.replace(f"${name}", value)
                result = await self.step(json.loads(text))
                if name := step.get("remember"):
                    remembered[name] = str(result["response"].get(name, 0))
                emit({"scenario": scenario["name"], "step": number, "result": result})

    async def step(self, step: Json) -> Json:
        """Carry out one step; its result."""
        client = self.clients[step.get("connection", "main")]
        seconds = step["timeoutMs"] / 1000 if "timeoutMs" in step else None
        if "call" in step:
            return await self.call(client, step["call"], step["request"], seconds)
        if "blob" in step:
            return await self.blob(client, step["blob"])
        return await self.stream(client, step, seconds)

    async def call(self, client: Client, method: str, request: Json, seconds: float | None) -> Json:
        """Call a unary method; its result."""
        try:
            return {"response": await client.unary(method, request, seconds)}
        except Failed as failed:
            return {"error": failed.error}

    async def blob(self, client: Client, request: Json) -> Json:
        """Read a blob; what it was."""
        digest = hashlib.sha256()
        try:
            async for piece in client.blob(request):
                digest.update(piece)
        except Failed as failed:
            return {"error": failed.error}
        return {"sha256": digest.hexdigest()}

    async def stream(self, client: Client, step: Json, seconds: float | None) -> Json:
        """Follow a stream and answer what is asked; the events and answers."""
        events: list[Json] = []
        answers: list[Json] = []
        result: Json = {"events": events}
        request = step["stream"]
        stream = client.stream(request, step.get("raw", False), seconds)
        try:
            async for event in stream:
                if event is None:
                    if step.get("announce"):
                        emit({"announce": "opened"})
                    continue
                events.append(event)
                for kind, bodies in step.get("answers", {}).items():
                    for body in bodies if kind in event else ():
                        answer = {
                            "sessionId": request["sessionId"],
                            "requestId": event[kind]["requestId"],
                            **body,
                        }
                        answers.append(await self.call(client, "Respond", answer, None))
                if len(events) == step.get("cancelAfter"):
                    client.cancel()
                if step.get("until") in event:
                    break
        except Failed as failed:
            result["error"] = failed.error
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        if answers:
            result["answers"] = answers
        return result


def main() -> None:
    """Carry out the plan."""
    kind = sys.argv[1]
    plan = json.load(sys.stdin)

    async def run() -> None:
        connect: Callable[[Json], Client]
        if kind == "betterproto":
            from tests.clients.programs.with_betterproto import Betterproto as connect
        elif kind == "grpcio-aio":
            from tests.clients.programs.with_grpcio import Aio as connect
        else:
            from tests.clients.programs.with_grpcio import Sync as connect
        await Runner(plan, connect).run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
