"""The `agentstream` command: sessions of coding agents on the terminal and for scripts."""
