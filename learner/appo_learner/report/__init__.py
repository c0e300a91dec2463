"""Everything a run shows and records: console, TensorBoard, ``metrics.jsonl`` and the closing summary."""

from appo_learner.report.report import Report

__all__ = ["Report"]
