"""agentstreamd: drives coding agents and serves their work as one event stream over gRPC."""

__version__ = "0.1.0"
