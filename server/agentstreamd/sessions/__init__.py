"""Sessions: what a session is, its turns, requests and messages. Knows no gRPC and no agent."""
