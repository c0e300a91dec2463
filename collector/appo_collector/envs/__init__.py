"""Environments: the contract and the names; ``native`` tasks, and ``adapters`` for those of other libraries."""
