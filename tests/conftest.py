"""Hooks of every test run: one that includes tests/agents has only loopback, where possible."""

from tests.support.laboratory import pytest_cmdline_main, pytest_report_header

__all__ = ["pytest_cmdline_main", "pytest_report_header"]
