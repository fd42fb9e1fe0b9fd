"""The gRPC edge: calls in, calls of the session manager and reads of the log out.

Knows nothing of agents. Every failure leaves here as a `google.rpc.Status` with one `ErrorInfo`.
"""
