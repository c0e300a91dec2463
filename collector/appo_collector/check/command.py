"""Command line of ``appo-collector check``."""

from __future__ import annotations

import sys
from typing import Any

import click


@click.command(short_help="Check an environment, and measure its speed.")
@click.argument("env", required=False)
@click.option("--num-envs", type=click.IntRange(min=1), help="Environments stepped together.  [default: 4]")
@click.option("--steps", type=click.IntRange(min=1), default=1000, help="Steps of each environment.")
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Seed of the run, as in a configuration.")
@click.option("--threads", type=click.IntRange(min=1), default=1, help="Threads that step the environments.")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Keyword argument of the environment, as in env.overrides; VALUE is YAML. Repeatable.",
)
@click.option(
    "--action-scaling",
    type=click.Choice(["none", "clip", "rescale"]),
    help="As env.action_scaling.  [default: rescale where all bounds are finite, else none]",
)
@click.option("--config", metavar="FILE", help="Take ENV, its number and its overrides from a run's configuration.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    metavar="SECONDS",
    help="A single call that takes longer is taken to hang.",
)
def check(
    env: str | None,
    num_envs: int | None,
    steps: int,
    seed: int,
    threads: int,
    overrides: tuple[str, ...],
    action_scaling: str | None,
    config: str | None,
    timeout_s: float,
) -> None:
    """Step the environment ENV with random actions, and say what of the contract it breaks.

    ENV is a name as in env.name: mujoco:<task>, gymnasium:<id>, envpool:<id>, unilab:<task>, or
    package.module:factory, which is looked for in the current directory, too.

    \b
        appo-collector check mujoco:cartpole-swingup
        appo-collector check point_mass:PointMass --num-envs 16 --override episode_steps=50

    Exit codes: 0 no violation, 1 violations, 2 wrong usage.
    """  # noqa: D301 - click's mark for lines that stay as they are
    from appo_collector.check.watch import run_watched
    from appo_common.errors import ConfigError

    try:
        section = _section(env, config)
        options = {
            "name": section["name"],
            "num_envs": num_envs or section.get("num_envs", 4),
            "steps": steps,
            "seed": seed,
            "threads": threads,
            "overrides": section.get("overrides", {}) | dict(_override(text) for text in overrides),
            "action_scaling": action_scaling or section.get("action_scaling"),
        }
        sys.exit(run_watched(options, timeout_s))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)


def _section(env: str | None, config: str | None) -> dict[str, Any]:
    """Return what ENV and FILE say, as a section ``env``."""
    from appo_common.config_file import load_config

    if config is None:
        if env is None:
            raise click.UsageError("Missing argument 'ENV' (or --config FILE)")
        return {"name": env}
    if env is not None:
        raise click.UsageError(f"ENV {env} and --config {config} both name an environment; leave one out")
    return load_config(config).env.model_dump()


def _override(text: str) -> tuple[str, Any]:
    import yaml

    from appo_common import yaml_text

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--override {text}: must be KEY=VALUE, e.g. --override episode_seconds=5")
    try:
        return key.strip(), yaml_text.parse(value)[0]
    except yaml.YAMLError as error:
        raise click.UsageError(
            f"--override {text}: the value is not YAML ({yaml_text.reason(error)}); quote it"
        ) from error
