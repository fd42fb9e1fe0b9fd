"""Benchmarks of the daemon: `make bench`. Figures are for comparison within one run."""
