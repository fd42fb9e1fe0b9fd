"""A home for Codex under test: quiet, and pointed at a scripted model."""

from collections.abc import Mapping
from pathlib import Path

from agentstreamd.adapters.codex.launch import toml
from tests.support.hermetic import base_environment

MODEL = "gpt-5.5"
"""The model named to Codex decides which tools it offers; this one has the plain ones."""

_CONFIG: Mapping[str, object] = {
    "model": MODEL,
    "model_provider": "scripted",
    "check_for_update_on_startup": False,
    "web_search": "disabled",
    "suppress_unstable_features_warning": True,
    "analytics": {"enabled": False},
    "feedback": {"enabled": False},
    "tools": {"update_plan": {"enabled": True}},
    "features": {"apps": False, "plugins": False, "remote_plugin": False, "goals": False},
}


def codex_environment(home: Path, model_url: str, **more: object) -> dict[str, str]:
    """Make a home with a configuration and return the environment that goes with it.

    `more` are further settings, at the top of config.toml; tables are joined.
    """
    environment = base_environment(home)
    codex_home = home / ".codex"
    codex_home.mkdir(exist_ok=True)
    provider = {
        "name": "scripted",
        "base_url": f"{model_url}/v1",
        "wire_api": "responses",
        "env_key": "SCRIPTED_API_KEY",
        "requires_openai_auth": False,
        "supports_websockets": False,
        "request_max_retries": 1,
        "stream_max_retries": 1,
        "stream_idle_timeout_ms": 20000,
    }
    settings = {**_CONFIG, "model_providers": {"scripted": provider}}
    for name, value in more.items():
        old = settings.get(name)
        joined = isinstance(old, Mapping) and isinstance(value, Mapping)
        settings[name] = {**old, **value} if joined else value  # type: ignore[dict-item]
    lines = [f"{name} = {toml(value)}" for name, value in settings.items()]
    (codex_home / "config.toml").write_text("\n".join(lines) + "\n")
    return {**environment, "CODEX_HOME": str(codex_home), "SCRIPTED_API_KEY": "test-key"}
