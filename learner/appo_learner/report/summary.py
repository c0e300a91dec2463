"""The closing lines of a run and ``summary.json``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appo_learner.metrics import RunPlan, RunSummary
from appo_learner.report import words
from appo_learner.report.jsonl import finite, write_atomically

_ACCOUNTS = ("trained", "discarded", "in_flight", "lost")


def steps_per_s(plan: RunPlan, summary: RunSummary) -> float | None:
    """Environment steps trained per second by this process; None if it took no time.

    ``summary.env_steps`` counts over the whole run and ``summary.wall_s`` is this process's, so the steps
    that a resumed run started with are taken off.
    """
    return (summary.env_steps - plan.start_env_steps) / summary.wall_s if summary.wall_s > 0 else None


def missing(book: dict[str, int]) -> int:
    """Rollouts sent that no account names; 0 when the book balances."""
    return book.get("sent", 0) - sum(book.get(account, 0) for account in _ACCOUNTS)


def book_line(name: str, book: dict[str, int]) -> str:
    """One collector's book as an equation, with what is missing where it does not balance."""
    right = " + ".join(f"{book.get(account, 0)} {account.replace('_', ' ')}" for account in _ACCOUNTS)
    gap = missing(book)
    tail = "" if gap == 0 else f"   DOES NOT BALANCE: {abs(gap)} {'unaccounted for' if gap > 0 else 'too many'}"
    return f"{words.clean(name)}: {book.get('sent', 0)} sent = {right}{tail}"


def lines(plan: RunPlan, summary: RunSummary) -> list[str]:
    """The closing lines, without colour."""
    rate = steps_per_s(plan, summary)
    resumed = f" (resumed at {plan.start_iteration})" if plan.start_iteration else ""
    best, final = words.number(summary.best_return), words.number(summary.final_return)
    text = [
        f"{plan.name}: {summary.reason}",
        f"  iterations   {summary.iterations}{resumed}",
        f"  env steps    {summary.env_steps:,}",
        f"  wall time    {words.duration(summary.wall_s)}",
        f"  env steps/s  {'-' if rate is None else words.count(rate)}",
        f"  return       best {best}, final {final}",
        f"  run          {plan.run_dir}",
        f"  checkpoint   {summary.checkpoint or 'none written'}",
    ]
    if summary.resume_command:
        text.append(f"  resume with  {summary.resume_command}")
    books = [book_line(name, book) for name, book in summary.books.items()]
    return text + [f"  {'rollouts     ' if i == 0 else ' ' * 13}{book}" for i, book in enumerate(books)]


def as_json(plan: RunPlan, summary: RunSummary) -> dict[str, Any]:
    """``summary.json``: the fields of :class:`RunSummary`, the run's name and directory, and steps per s."""
    rate = steps_per_s(plan, summary)
    return finite({"name": plan.name, "run_dir": plan.run_dir, **asdict(summary), "env_steps_per_s": rate})


def write(path: Path, plan: RunPlan, summary: RunSummary) -> None:
    """Write ``summary.json`` in one piece.

    Raises:
        OSError: the file cannot be written; an older one is unharmed.
    """
    write_atomically(path, json.dumps(as_json(plan, summary), indent=2).encode() + b"\n")
