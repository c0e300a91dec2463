"""Environments of other libraries in the contract."""
