"""The mock agent: the reference adapter, scripted by the prompt (see docs/mock-agent.md).

`program` is the agent: it reads prompts and writes native messages, one JSON object a line. It
runs inside the daemon (`host.LocalChannel`) or as a real process (`python -m
agentstreamd.adapters.mock.program`), by the same code and with the same bytes. `normalizer` and
`driver` are the adapter's two halves; `adapter` has the rest.
"""
