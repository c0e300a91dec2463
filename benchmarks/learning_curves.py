"""Do variants of a configuration learn alike? Trains each in turn on this host and compares returns at equal env steps.

    python benchmarks/learning_curves.py cartpole-swingup --vary network.transport=auto,tcp --seeds 1,2,3
    python benchmarks/learning_curves.py quadruped-velocity --seeds 1 --max-env-steps 4000000 --picture curve.png

Prints the median return of the seeds (and their range) at four points of the run, the wall time to the end and the
env steps per second; writes the same as JSON, and the curves as a picture.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

Curve = list[dict[str, Any]]
"""Lines of one run's ``metrics.jsonl``."""
POINTS = (0.25, 0.5, 0.75, 1.0)


@click.command()
@click.argument("config")
@click.option("--vary", default="train.seed=", metavar="KEY=A,B,...", help="Key that differs between the variants.")
@click.option("--seeds", default="1,2,3", show_default=True, help="Seeds of each variant.")
@click.option("--collectors", default=2, show_default=True, help="Local collectors.")
@click.option("--max-env-steps", default=1_000_000, show_default=True, help="Environment steps of each run.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Further settings of all variants.")
@click.option("--picture", type=click.Path(path_type=Path), help="Write the curves to this PNG.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(
    config: str,
    vary: str,
    seeds: str,
    collectors: int,
    max_env_steps: int,
    sets: tuple[str, ...],
    picture: Path | None,
    json_path: Path | None,
) -> None:
    key, _, values = vary.partition("=")
    variants = [f"{key}={value}" for value in values.split(",")] if values else [config]
    curves: dict[str, list[Curve]] = {variant: [] for variant in variants}
    for seed in seeds.split(","):  # seeds outside: a noisy minute of the machine hits every variant
        for variant in variants:
            varied = [variant] if values else []
            curves[variant].append(train(config, [*sets, *varied], seed, collectors, max_env_steps))
    rows = {variant: figures(runs, max_env_steps) for variant, runs in curves.items()}
    print_table(rows)
    if json_path:
        json_path.write_text(json.dumps({"command": sys.argv, "variants": rows}, indent=2) + "\n")
    if picture:
        draw(curves, config, picture)


def train(config: str, sets: list[str], seed: str, collectors: int, max_env_steps: int) -> Curve:
    """Train once in a directory of its own and return what it recorded."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        limits = [f"--max-env-steps={max_env_steps}", "--max-iterations=1000000", f"--seed={seed}"]
        where = ["--bind=tcp://127.0.0.1:0", f"--run-dir={run_dir}", f"--local-collectors={collectors}"]
        settings = [f"--set={item}" for item in sets]
        command = [sys.executable, "-m", "appo_learner", config, *limits, *where, *settings, "--plain"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        curve = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    print(f"  {' '.join(sets) or config} seed {seed}: {curve[-1]['return_mean']:.1f}", file=sys.stderr)
    return curve


def figures(runs: list[Curve], max_env_steps: int) -> dict[str, Any]:
    """Medians and ranges over the seeds of one variant."""
    at: dict[str, list[float]] = {}
    for point in POINTS:
        steps = point * max_env_steps
        returns = sorted(return_at(run, steps) for run in runs)
        at[f"{steps / 1e6:.2f}M"] = [statistics.median(returns), returns[0], returns[-1]]
    return {
        "return": at,
        "wall_s": statistics.median(run[-1]["time_s"] for run in runs),
        "env_steps_per_s": statistics.median(run[-1]["env_steps"] / run[-1]["time_s"] for run in runs),
        "lag_mean": statistics.median(statistics.mean(line["lag_mean"] for line in run) for run in runs),
    }


def return_at(run: Curve, env_steps: float) -> float:
    """Mean return when ``env_steps`` had been trained on."""
    known = [line for line in run if line["return_mean"] is not None]
    reached = [line for line in known if line["env_steps"] <= env_steps]
    return float((reached or known)[-1 if reached else 0]["return_mean"])


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    points = next(iter(rows.values()))["return"]
    print("variant".ljust(34) + "".join(f"return at {point}".rjust(26) for point in points), end="")
    print("wall s".rjust(9) + "steps/s".rjust(10) + "lag".rjust(6))
    for variant, row in rows.items():
        cells = (f"{median:.1f} ({low:.1f} to {high:.1f})".rjust(26) for median, low, high in row["return"].values())
        print(variant.ljust(34) + "".join(cells), end="")
        print(f"{row['wall_s']:9.0f}{row['env_steps_per_s']:10.0f}{row['lag_mean']:6.2f}")


def draw(curves: dict[str, list[Curve]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_steps, by_time) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for number, (variant, runs) in enumerate(curves.items()):
        for place, run in enumerate(runs):
            known = [line for line in run if line["return_mean"] is not None]
            returns = [line["return_mean"] for line in known]
            style = {"color": f"C{number}", "alpha": 0.8, "label": variant if place == 0 else None}
            by_steps.plot([line["env_steps"] / 1e6 for line in known], returns, **style)
            by_time.plot([line["time_s"] for line in known], returns, **style)
    by_steps.set(xlabel="environment steps (millions)", ylabel="mean return of the last 100 episodes", title=title)
    by_time.set(xlabel="wall time (s)", title="the same over time")
    for axes in (by_steps, by_time):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
