"""Amp: normalizer, driver and the permission helper of the `amp` command line."""
