"""What the permission modes mean for Codex: an approval policy and a sandbox. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentstream.v1 import agent_pb2

PLAN_MODE = "plan"


@dataclass(frozen=True, slots=True)
class Policy:
    """When Codex asks, and what commands can do without being asked for.

    Attributes:
        approval: An `AskForApproval`: `untrusted`, `on-request` or `never`.
        sandbox: A `SandboxMode`: `read-only`, `workspace-write` or `danger-full-access`.
        collaboration: The collaboration mode: `plan` or `default`.
        description: What that means, for people.
    """

    approval: str
    sandbox: str
    collaboration: str
    description: str


_DEFAULT = Policy(
    "untrusted",
    "workspace-write",
    "default",
    "Approval policy untrusted, sandbox workspace-write: every command that is not known to only "
    "read is asked for, and every change of a file. What is accepted may run outside the sandbox: "
    "Codex repeats a command there, without asking again, when the sandbox stops it.",
)

POLICIES: Mapping[agent_pb2.PermissionMode.ValueType, Policy] = {
    agent_pb2.PERMISSION_MODE_UNSPECIFIED: _DEFAULT,
    agent_pb2.PERMISSION_MODE_DEFAULT: _DEFAULT,
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: Policy(
        "on-request",
        "workspace-write",
        "default",
        "Approval policy on-request, sandbox workspace-write: file changes in the working "
        "directory are not asked for. Commands run in a sandbox that lets them write there, and "
        "reach no network; what needs more is asked for.",
    ),
    agent_pb2.PERMISSION_MODE_PLAN: Policy(
        "on-request",
        "read-only",
        PLAN_MODE,
        "Approval policy on-request, sandbox read-only, collaboration mode plan: Codex looks, asks "
        "and plans; commands cannot write, and any change is asked for. To have the plan carried "
        "out, change the permission mode.",
    ),
    agent_pb2.PERMISSION_MODE_BYPASS: Policy(
        "never",
        "danger-full-access",
        "default",
        "Approval policy never, sandbox danger-full-access: nothing is asked for but questions, "
        "nothing is confined.",
    ),
}
"""The policy of each permission mode."""

APPROVALS = ("untrusted", "on-request", "never")
SANDBOXES = ("read-only", "workspace-write", "danger-full-access")

_SANDBOX_TYPES = {
    "readOnly": "read-only",
    "workspaceWrite": "workspace-write",
    "dangerFullAccess": "danger-full-access",
}


def sandbox_policy(sandbox: str) -> dict[str, object]:
    """The `SandboxPolicy` (an object) of a `SandboxMode` (a string): requests differ in this."""
    match sandbox:
        case "read-only":
            return {"type": "readOnly", "networkAccess": False}
        case "workspace-write":
            return {
                "type": "workspaceWrite",
                "writableRoots": [],
                "networkAccess": False,
                "excludeTmpdirEnvVar": False,
                "excludeSlashTmp": False,
            }
        case _:
            return {"type": "dangerFullAccess"}


def mode_of(
    approval: object, sandbox_type: object, collaboration: object
) -> agent_pb2.PermissionMode.ValueType:
    """The permission mode of these settings; unspecified where they are none of the table's."""
    sandbox = _SANDBOX_TYPES.get(str(sandbox_type))
    said = (approval, sandbox, collaboration or "default")
    for mode, policy in POLICIES.items():
        if mode and (policy.approval, policy.sandbox, policy.collaboration) == said:
            return mode
    return agent_pb2.PERMISSION_MODE_UNSPECIFIED
