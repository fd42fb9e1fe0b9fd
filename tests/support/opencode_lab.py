"""What OpenCode needs to run shut in: settings for a scripted model, a quiet environment."""

import json
from pathlib import Path
from typing import Any

from tests.support.hermetic import base_environment

MODEL = "fake/main"


def opencode_settings(model_url: str, **more: Any) -> dict[str, Any]:
    """The settings (opencode.json) that know one provider: the scripted model."""
    limit = {"context": 200000, "output": 8192}
    main = {
        "name": "Main",
        "reasoning": True,
        "tool_call": True,
        "attachment": True,
        "interleaved": {"field": "reasoning_content"},
        "modalities": {"input": ["text", "image"], "output": ["text"]},
        "limit": limit,
    }
    priced = {**main, "name": "Priced", "cost": {"input": 1000, "output": 2000}}
    return {
        "autoupdate": False,
        "share": "disabled",
        "lsp": False,
        "formatter": False,
        "enabled_providers": ["fake"],
        "model": MODEL,
        "small_model": "fake/small",
        "provider": {
            "fake": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Fake",
                "options": {"baseURL": f"{model_url}/v1", "apiKey": "test-key"},
                "models": {
                    "main": main,
                    "priced": priced,
                    "gpt-5-fake": {**main, "name": "Patches"},
                    "small": {"name": "Small", "limit": limit},
                },
            }
        },
        **more,
    }


def opencode_environment(home: Path, model_url: str, **more: Any) -> dict[str, str]:
    """The environment that points OpenCode at a scripted model and keeps it off the network."""
    env = base_environment(home)
    settings = home / "opencode.json"
    settings.write_text(json.dumps(opencode_settings(model_url, **more)))
    models = home / "models.json"
    models.write_text("{}")
    switches = (
        "AUTOUPDATE",
        "MODELS_FETCH",
        "LSP_DOWNLOAD",
        "SHARE",
        "DEFAULT_PLUGINS",
        "EMBEDDED_WEB_UI",
        "EXTERNAL_SKILLS",
        "CLAUDE_CODE",
        "PROJECT_CONFIG",
    )
    return {
        **env,
        "OPENCODE_CONFIG": str(settings),
        "OPENCODE_MODELS_PATH": str(models),
        "OPENCODE_PURE": "1",
        **{f"OPENCODE_DISABLE_{name}": "1" for name in switches},
        # Else its plug-in package is looked up, once for each directory.
        "npm_config_registry": "http://127.0.0.1:9/",
        **{f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "STATE")},
        "XDG_CACHE_HOME": str(home / "cache"),
    }
