"""An environment that says how many threads it met."""

from __future__ import annotations

import os
from typing import Any

import torch
from e2e_envs import Drift


class Threads(Drift):
    def __init__(self, num_envs: int, *, threads: int = 1, **overrides: Any) -> None:
        super().__init__(num_envs, **overrides)
        print(f"pool {threads}, torch {torch.get_num_threads()}, OpenMP {os.environ['OMP_NUM_THREADS']}", flush=True)
