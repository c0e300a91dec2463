"""The table of collectors in the live view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from appo_learner.metrics import CollectorView
from appo_learner.report import words

_STATE_STYLES = {"joining": "magenta", "collecting": "green", "waiting": "cyan", "silent": "bold red"}
_PATH_STYLES = {"shm": "green", "tcp": "blue"}
_LONGEST_NAME = 20


@dataclass(frozen=True)
class _Column:
    title: str
    text: Callable[[CollectorView], str]
    dispensable: int = 0
    """0 always stays; else the largest number is left out first where the terminal is narrow."""
    left: bool = False
    style: Callable[[CollectorView], str] = lambda view: ""


_COLUMNS = (
    _Column("#", lambda v: str(v.index)),
    _Column("collector", lambda v: _short(v.name), left=True, style=lambda v: "bold"),
    _Column("host", lambda v: _short(v.host), 2, left=True),
    _Column("path", lambda v: _short(v.path), 1, left=True, style=lambda v: _PATH_STYLES.get(v.path, "")),
    _Column("state", lambda v: _short(v.state), left=True, style=lambda v: _STATE_STYLES.get(v.state, "")),
    _Column("envs", lambda v: str(v.num_envs), 7),
    _Column("version", lambda v: str(v.policy_version), 3),
    _Column("steps/s", lambda v: words.count(v.steps_per_s)),
    _Column("trained", lambda v: words.count(v.rollouts_trained), 4),
    _Column("discarded", lambda v: words.count(v.rollouts_discarded), 5),
    _Column("cpu", lambda v: f"{v.cpu_percent:.0f}%", 6),
    _Column("mem", lambda v: f"{words.count(v.memory_mb * 1e6)}", 8),
)


def fleet_table(fleet: Sequence[CollectorView], width: int, height: int) -> list[Text]:
    """At most ``height`` lines of at most ``width`` cells: a heading and one line per collector.

    Where they do not all fit, those that are silent come first and the last line counts the rest by state.
    """
    if height < 2 or not fleet:
        return []
    shown = list(fleet)
    rest: list[CollectorView] = []
    if len(shown) > height - 1:
        shown.sort(key=lambda view: (view.state != "silent", view.index))
        shown, rest = shown[: height - 2], shown[height - 2 :]
    columns, gap = list(_COLUMNS), 2
    widths = _widths(columns, shown)
    while sum(widths) + gap * (len(widths) - 1) > width:
        spare = max(columns, key=lambda column: column.dispensable)
        if gap > 1:
            gap = 1
        elif spare.dispensable == 0:
            break
        else:
            columns.remove(spare)
            widths = _widths(columns, shown)
    lines = [_line([(c.title, "dim") for c in columns], columns, widths, gap)]
    lines += [_line([(c.text(v), c.style(v)) for c in columns], columns, widths, gap) for v in shown]
    if rest:
        states = ", ".join(f"{n} {_short(state)}" for state, n in Counter(v.state for v in rest).most_common())
        lines.append(Text(f"and {len(rest)} more: {states}", style="dim"))
    return lines


def _widths(columns: Sequence[_Column], fleet: Sequence[CollectorView]) -> list[int]:
    return [max(cell_len(c.title), *(cell_len(c.text(view)) for view in fleet), 0) for c in columns]


def _line(cells: list[tuple[str, str]], columns: Sequence[_Column], widths: Sequence[int], gap: int) -> Text:
    line = Text()
    for i, ((text, style), column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        padding = " " * (width - cell_len(text))
        line.append((" " * gap if i else "") + ("" if column.left else padding))
        line.append(text, style=style)
        line.append(padding if column.left else "")
    return line


def _short(text: str) -> str:
    """A name from another machine, safe and short enough for a column."""
    text = words.clean(text).replace("\n", " ").replace("\t", " ")
    return text if cell_len(text) <= _LONGEST_NAME else set_cell_size(text, _LONGEST_NAME - 1) + "~"
