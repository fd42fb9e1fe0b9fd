"""OpenCode, driven through its own server (`opencode serve`: HTTP and server-sent events)."""
