"""Claude Code: its normalizer (pure) and its driver, over the stream-json protocol."""
