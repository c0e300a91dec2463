"""The result of a check: one line for everything that was verified."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import click

_PASSED, _VIOLATION, _WARNING = ("✓", "green"), ("✗", "red"), ("!", "yellow")
RULE_WIDTH = 23
_PLACES = re.compile(r"step \d+|reset\(\)|environments? \d+(, \d+)*( and \d+ more)?|-?\d+(\.\d+)?(e[-+]?\d+)?")


class Finding(NamedTuple):
    """Something that is wrong, or worth a look."""

    rule: str
    """Name of what was verified, e.g. ``"final observations"``."""
    text: str
    """What was found, and where."""
    remedy: str
    """What to do about it."""


class Report:
    """Says every finding as it is made, so that nothing is lost should the environment end the process."""

    def __init__(self, echo: Callable[[str], None] = click.echo) -> None:
        """``echo`` prints one line."""
        self._echo = echo
        self.violations: list[Finding] = []
        self.warnings: list[Finding] = []
        self._passed: set[str] = set()
        self._times: dict[tuple[str, str], int] = {}

    def violation(self, rule: str, text: str, remedy: str, detail: str = "") -> None:
        """Report what the contract does not allow; the same at another step or environment is counted only."""
        kind = (rule, _PLACES.sub("", text))
        self._times[kind] = self._times.get(kind, 0) + 1
        if self._times[kind] == 1:
            self.violations.append(Finding(rule, text, remedy))
            self._line(_VIOLATION, rule, f"{text} → {remedy}", detail)

    def warning(self, rule: str, text: str, remedy: str) -> None:
        """Report what is allowed and probably not meant."""
        finding = Finding(rule, text, remedy)
        if finding not in self.warnings:
            self.warnings.append(finding)
            self._line(_WARNING, rule, f"{text} → {remedy}")

    def passed(self, rule: str, text: str = "") -> None:
        """Report that ``rule`` was verified, once, and unless something was found against it."""
        if rule not in self._passed and not any(each.rule == rule for each in self.violations + self.warnings):
            self._passed.add(rule)
            self._line(_PASSED, rule, text)

    def note(self, rule: str, text: str) -> None:
        """Report a measurement."""
        self._line((" ", None), rule, text)

    def close(self) -> int:
        """Print the verdict; return the exit code, 0 or 1."""
        if not self.violations:
            warned = f", {_count(len(self.warnings), 'warning')}" if self.warnings else ""
            self._echo(f"no violation{warned}")
            return 0
        again = sum(self._times.values()) - len(self.violations)
        repeated = f", seen {again} more time{'s' * (again > 1)} at other steps" if again else ""
        self._echo(f"{_count(len(self.violations), 'violation')}{repeated}")
        return 1

    def _line(self, mark: tuple[str, str | None], rule: str, text: str, detail: str = "") -> None:
        symbol, colour = mark
        self._echo(f"{click.style(symbol, fg=colour)} {rule:<{RULE_WIDTH}}{text}".rstrip())
        for line in detail.splitlines():
            self._echo(f"      {line}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
