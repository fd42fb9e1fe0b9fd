"""A session whose agent asks, and answers to it."""

from typing import Any

from agentstream.v1 import interaction_pb2
from tests.support.scripted_adapter import (
    ScriptedDriver,
)
from tests.unit.sessions.lab import Lab, until


async def asking(lab: Lab, **config: Any) -> ScriptedDriver:
    """A session whose agent waits for a permission."""
    await lab.create(**config)
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    await lab.script.driver.ask()
    return lab.script.driver


def permission_answer(decision: str = "ACCEPT", **fields: Any) -> interaction_pb2.PermissionAnswer:
    value = interaction_pb2.PermissionDecision.Value(f"PERMISSION_DECISION_{decision}")
    return interaction_pb2.PermissionAnswer(decision=value, **fields)
