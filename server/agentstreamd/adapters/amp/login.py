"""Whether Amp has a key: in the environment, or kept by `amp login`."""

import json
from collections.abc import Mapping
from pathlib import Path

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.login import logged_in, logged_out, unknown

_FIX = "run `amp login` as the daemon's user, or set AMP_API_KEY for the daemon"


def secrets_file(environment: Mapping[str, str]) -> Path | None:
    """Where `amp login` keeps the key; None where there is no place."""
    home = environment.get("HOME", "")
    data = environment.get("XDG_DATA_HOME") or (home and f"{home}/.local/share")
    return Path(data, "amp", "secrets.json") if data else None


def read(environment: Mapping[str, str]) -> agent_pb2.AgentLogin:
    """The state in this environment. Whether the key is right only Amp's server knows."""
    if environment.get("AMP_API_KEY"):
        return logged_in("an API key, from AMP_API_KEY")
    path = secrets_file(environment)
    try:
        kept = json.loads(path.read_bytes()) if path is not None else None
    except FileNotFoundError:
        return logged_out(_FIX)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        return unknown(f"what `amp login` keeps can't be read: {why}")
    if kept is None:
        return logged_out(_FIX)
    names = kept if isinstance(kept, dict) else {}
    has_key = any(value for name, value in names.items() if name.startswith("apiKey@"))
    return logged_in("`amp login`") if has_key else logged_out(_FIX)
