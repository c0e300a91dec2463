"""Environments: the contract, the registry of names, and the native MuJoCo tasks."""
