"""The live view's lines: a snapshot laid out for a width and a height."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from appo_learner.report import words
from appo_learner.report.fleet_table import fleet_table
from appo_learner.report.progress import TIMERS, Snapshot

_LABEL = 11
"""Width of the left column with the names of the lines."""

_CHART_ROWS = 6
_TIMER_STYLES = dict(zip(TIMERS, ("yellow", "blue", "green", "magenta"), strict=True))
_TERMS_SHOWN = 8

Field = tuple[str, str, str]
"""Text before the value, the value, text after it."""


def compose(snapshot: Snapshot, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
    """At most ``height`` lines of at most ``width`` cells. Where room is short, what matters least goes."""
    inner = max(20, width - 2)
    # (how dispensable, lines): the largest number is dropped first.
    sections: list[tuple[int, list[Text]]] = [
        (0, [_title(snapshot, inner)]),
        (0, [_progress_bar(snapshot, inner, ascii_only)]),
        (9, [Text()]),
        (1, _progress(snapshot, inner)),
        (0, _returns(snapshot, inner, 1, ascii_only)),
        (3, _episodes(snapshot, inner)),
        (7, _terms(snapshot, inner)),
        (2, _speed(snapshot, inner)),
        (4, _lag(snapshot, inner)),
        (6, _learning(snapshot, inner)),
        (5, _time_bar(snapshot, inner, ascii_only)),
        (1, [_verdict(snapshot)]),
        (8, [Text()]),
    ]
    fleet_rows = 1 + len(snapshot.fleet)
    used = sum(len(lines) for _, lines in sections)
    if used + fleet_rows <= height:
        rows = min(_CHART_ROWS, 1 + height - used - fleet_rows)
        sections[4] = (0, _returns(snapshot, inner, rows, ascii_only))
    while used + min(fleet_rows, 4) > height:
        dropped = max(sections, key=lambda section: section[0])
        if dropped[0] == 0:
            break
        sections.remove(dropped)
        used -= len(dropped[1])
    lines = [line for _, section in sections for line in section]
    lines += fleet_table(snapshot.fleet, inner, height - len(lines))
    for line in lines:
        line.pad_left(1)
        line.truncate(width, overflow="crop" if ascii_only else "ellipsis")
    return lines[: max(1, height)]


def _title(snapshot: Snapshot, width: int) -> Text:
    name = Text(words.clean(snapshot.plan.name), style="bold cyan")
    where = Text(words.clean(snapshot.plan.run_dir), style="dim")
    room = width - name.cell_len - 2
    if where.cell_len > room:
        # The end of a path tells more than its beginning.
        where = Text("..." + where.plain[-max(0, room - 3) :], style="dim") if room > 12 else Text()
    name.pad_right(max(1, width - name.cell_len - where.cell_len))
    return name.append_text(where)


def _progress_bar(snapshot: Snapshot, width: int, ascii_only: bool) -> Text:
    done = snapshot.done
    tail = f"  {words.percent(done):>4}" if done is not None else "  no end set"
    tail += f"   elapsed {words.duration(snapshot.elapsed_s)}"
    tail += f"   ETA {words.duration(snapshot.eta_s)}" if done is not None else ""
    # A tail of even length keeps the bar from jumping when a digit is added.
    tail = tail.rjust(len(tail) + len(tail) % 2)
    full, rest = words.bar(done or 0.0, max(5, width - len(tail)), ascii_only=ascii_only)
    return Text.assemble((full, "cyan"), (rest, "bright_black"), (tail, "bold"))


def _progress(snapshot: Snapshot, width: int) -> list[Text]:
    plan, metrics = snapshot.plan, snapshot.metrics
    total = f"/{plan.max_iterations}" if plan.max_iterations else ""
    steps = f"/{words.count(plan.max_env_steps)}" if plan.max_env_steps else ""
    iteration = metrics.iteration if metrics else plan.start_iteration
    trained = metrics.env_steps if metrics else plan.start_env_steps
    return _flow(
        "progress",
        [
            ("iteration ", f"{iteration}{total}", ""),
            ("", f"{words.count(trained)}{steps}", " env steps trained"),
            *([("", words.count(metrics.env_steps_collected), " collected")] if metrics else []),
        ],
        width,
    )


def _returns(snapshot: Snapshot, width: int, rows: int, ascii_only: bool) -> list[Text]:
    mean = snapshot.metrics.return_mean if snapshot.metrics else None
    value = f"{words.number(mean):<9}"
    curve = words.chart(snapshot.returns, min(100, width - _LABEL - len(value) - 8), rows, ascii_only=ascii_only)
    lines = []
    for row, points in enumerate(curve):
        head = _label("return" if row == 0 else "")
        head.append(value if row == 0 else " " * len(value), style="bold green")
        lines.append(head.append(points, style="green"))
    if snapshot.returns and rows > 1:
        # The scale stands at the right end of the top and the bottom line.
        for line, edge in ((lines[0], max(snapshot.returns)), (lines[-1], min(snapshot.returns))):
            line.append(f" {words.number(edge)}", style="dim")
    return lines


def _episodes(snapshot: Snapshot, width: int) -> list[Text]:
    metrics = snapshot.metrics
    if metrics is None or metrics.length_mean is None:
        return [_label("episodes").append("none has ended yet", style="dim")]
    return _flow(
        "episodes",
        [
            ("", f"{metrics.length_mean:.0f}", " steps long"),
            ("", words.percent(metrics.timeout_rate), " end at the time limit"),
            ("", "", "means of the last 100"),
        ],
        width,
    )


def _terms(snapshot: Snapshot, width: int) -> list[Text]:
    terms = snapshot.metrics.reward_terms if snapshot.metrics else {}
    if not terms:
        return []
    top = sorted(terms.items(), key=lambda item: -abs(item[1]))[:_TERMS_SHOWN]
    fields = [(f"{words.clean(name)} ", words.number(value), "") for name, value in top]
    if len(terms) > len(top):
        fields.append(("", "", f"{len(terms) - len(top)} more"))
    return _flow("rewards", fields, width)[:2]


def _speed(snapshot: Snapshot, width: int) -> list[Text]:
    metrics = snapshot.metrics
    if metrics is None:
        return []
    return _flow(
        "speed",
        [
            ("", words.count(metrics.fps), " env steps/s trained"),
            ("", words.count(metrics.fps_collected), " collected"),
        ],
        width,
    )


def _lag(snapshot: Snapshot, width: int) -> list[Text]:
    metrics = snapshot.metrics
    if metrics is None:
        return []
    return _flow(
        "policy lag",
        [
            ("mean ", f"{metrics.lag_mean:.1f}", ""),
            ("max ", str(metrics.lag_max), " versions"),
            ("", str(metrics.rollouts_discarded), " rollouts discarded"),
        ],
        width,
    )


def _learning(snapshot: Snapshot, width: int) -> list[Text]:
    metrics = snapshot.metrics
    if metrics is None:
        return []
    losses = [(f"{name} ", words.number(value), "") for name, value in metrics.losses.items()]
    rest = [
        ("rate ", f"{metrics.learning_rate:.1e}", ""),
        ("action std ", words.number(metrics.action_std), ""),
    ]
    return _flow("losses", losses, width)[:2] + _flow("learning", rest, width)


def _time_bar(snapshot: Snapshot, width: int, ascii_only: bool) -> list[Text]:
    """One bar that is wall time, cut by timer, and a legend in the same colours."""
    if not snapshot.shares:
        return []
    line = _label("time")
    legend = [(name, f"{name} {words.percent(snapshot.shares[name])}") for name in TIMERS]
    room = width - _LABEL - sum(len(text) + 2 for _, text in legend)
    cells = max(0, min(40, room))
    drawn = 0
    for name in TIMERS:
        n = min(round(snapshot.shares[name] * cells), cells - drawn)
        line.append((name[0] if ascii_only else "█") * n, style=_TIMER_STYLES[name])
        drawn += n
    line.append(("." if ascii_only else "░") * (cells - drawn), style="bright_black")
    for name, text in legend:
        line.append("  " if cells or name != TIMERS[0] else "").append(text, style=_TIMER_STYLES[name])
    return [line]


def _verdict(snapshot: Snapshot) -> Text:
    if snapshot.status:
        return _label("").append(f"waiting: {words.clean(snapshot.status)}", style="bold yellow")
    return _label("").append(snapshot.pace, style="italic")


def _label(name: str) -> Text:
    line = Text()
    line.append(f"{name:<{_LABEL}}", style="dim")
    return line


def _flow(name: str, fields: Iterable[Field], width: int) -> list[Text]:
    """Fields side by side behind their label, on as many lines as they need."""
    lines = [_label(name)]
    first = True
    for before, value, after in fields:
        needs = len(before) + len(value) + len(after)
        if not first and lines[-1].cell_len + 3 + needs > width:
            lines.append(_label(""))
            first = True
        if not first:
            lines[-1].append("   ")
        lines[-1].append(before, style="dim").append(value, style="bold").append(after, style="dim")
        first = False
    return lines
