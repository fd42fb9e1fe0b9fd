"""Adapters: one folder per agent, each a normalizer and a driver behind the same interface."""
