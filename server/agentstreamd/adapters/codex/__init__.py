"""Codex: its normalizer (pure) and its driver, over the JSON-RPC protocol of `codex app-server`."""
