"""The two rollouts of ``helpers_counting.SCRIPT``, worked out by hand."""

from __future__ import annotations

from typing import Any


def flags(*rows: str) -> list[list[bool]]:
    """A row per step, a letter per environment."""
    return [[letter == "x" for letter in row] for row in rows]


# An observation is [steps of this episode, episodes before it]; a reward is 100 (env + 1) + 10 episode + step.
# Each row below is one step of the three environments; the script is in helpers_counting.
EXACT: list[dict[str, Any]] = [
    {
        "obs/policy": [
            [[0, 0], [0, 0], [0, 0]],
            [[1, 0], [0, 1], [1, 0]],
            [[2, 0], [1, 1], [2, 0]],
            [[3, 0], [2, 1], [3, 0]],
            [[0, 1], [0, 2], [4, 0]],
            [[1, 1], [1, 2], [5, 0]],
        ],
        "rewards": [
            [100, 200, 300],
            [101, 210, 301],
            [102, 211, 302],
            [103, 212, 303],
            [110, 220, 304],
            [111, 221, 305],
        ],
        "terminated": flags(".x.", "...", "...", "xx.", "...", "..x"),
        "truncated": flags("...", "...", "...", ".x.", "...", "x.."),
        "last_obs/policy": [[0, 2], [2, 2], [0, 1]],
        "final_index": [[5, 0]],
        "final_obs/policy": [[2, 1]],
        "episodes": [(200, 1, False), (406, 4, False), (633, 3, False), (221, 2, True), (1815, 6, False)],
    },
    {
        "obs/policy": [
            [[0, 2], [2, 2], [0, 1]],
            [[0, 3], [3, 2], [1, 1]],
            [[1, 3], [4, 2], [0, 2]],
            [[2, 3], [0, 3], [0, 3]],
            [[0, 4], [1, 3], [0, 4]],
            [[1, 4], [2, 3], [1, 4]],
        ],
        "rewards": [
            [120, 222, 310],
            [130, 223, 311],
            [131, 224, 320],
            [132, 230, 330],
            [140, 231, 340],
            [141, 232, 341],
        ],
        "terminated": flags("...", "...", "..x", "x..", "...", "..."),
        "truncated": flags("x..", "..x", ".xx", "..x", "...", "..."),
        "last_obs/policy": [[2, 4], [3, 3], [2, 4]],
        "final_index": [[0, 0], [1, 2], [2, 1], [3, 2]],
        "final_obs/policy": [[1, 2], [2, 1], [5, 2], [1, 3]],
        "episodes": [
            (120, 1, True),
            (621, 2, True),
            (1110, 5, True),
            (320, 1, False),
            (393, 3, False),
            (330, 1, True),
        ],
    },
]
# The same script where the step after an end only resets: the policy sees the final observation once more.
SKIPPING: list[dict[str, Any]] = [
    {
        "obs/policy": [
            [[0, 0], [0, 0], [0, 0]],
            [[1, 0], [1, 0], [1, 0]],
            [[2, 0], [0, 1], [2, 0]],
            [[3, 0], [1, 1], [3, 0]],
            [[4, 0], [2, 1], [4, 0]],
            [[0, 1], [3, 1], [5, 0]],
        ],
        "rewards": [[100, 200, 300], [101, 0, 301], [102, 210, 302], [103, 211, 303], [0, 212, 304], [110, 0, 305]],
        "terminated": flags(".x.", "...", "...", "x..", ".x.", "..x"),
        "truncated": flags("...", "...", "...", "...", ".x.", "..."),
        "valid": flags("xxx", "x.x", "xxx", "xxx", ".xx", "x.x"),
        "last_obs/policy": [[1, 1], [0, 2], [6, 0]],
        "final_index": [],
        "final_obs/policy": [],
        "episodes": [(200, 1, False), (406, 4, False), (633, 3, False), (1815, 6, False)],
    },
    {
        "obs/policy": [
            [[1, 1], [0, 2], [6, 0]],
            [[2, 1], [1, 2], [0, 1]],
            [[0, 2], [2, 2], [1, 1]],
            [[1, 2], [3, 2], [2, 1]],
            [[0, 3], [4, 2], [0, 2]],
            [[1, 3], [5, 2], [1, 2]],
        ],
        "rewards": [[111, 220, 0], [0, 221, 310], [120, 222, 311], [0, 223, 0], [130, 224, 320], [131, 0, 0]],
        "terminated": flags("...", "...", "...", "...", "..x", "..."),
        "truncated": flags("x..", "...", "x.x", "...", ".xx", "..."),
        "valid": flags("xx.", ".xx", "xxx", ".x.", "xxx", "x.."),
        "last_obs/policy": [[2, 3], [0, 3], [0, 3]],
        "final_index": [[0, 0], [2, 0], [2, 2], [4, 1]],
        "final_obs/policy": [[2, 1], [1, 2], [2, 1], [5, 2]],
        "episodes": [(221, 2, True), (120, 1, True), (621, 2, True), (1110, 5, True), (320, 1, False)],
    },
]
