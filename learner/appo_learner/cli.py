"""Command line of ``appo-learner``. Imports nothing heavy before ``--help`` has been answered."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import click

from appo_common import __version__, log
from appo_common.errors import AppoError
from appo_common.process import StopRequest, leave_quickly, limit_threads

logger = logging.getLogger("appo_learner")

CONTEXT = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "APPO"}


@click.command(context_settings=CONTEXT)
@click.argument("config", required=False, envvar="APPO_CONFIG")
@click.option(
    "--set",
    "sets",
    envvar="APPO_SET",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one key, e.g. train.algorithm.gamma=0.98. Repeatable.",
)
@click.option(
    "--bind",
    metavar="ADDRESS",
    help="Listen here and on the next two ports; port 0 takes three free ones.  [default: tcp://127.0.0.1:5555]",
)
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Allow an ADDRESS that other hosts can reach: neither encrypted nor authenticated.",
)
@click.option(
    "--local-collectors",
    type=click.IntRange(min=0),
    metavar="N",
    help="Start N collectors on this host.  [default: 0]",
)
@click.option("--device", metavar="DEVICE", help="auto, cpu or cuda:N.  [default: auto]")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPU threads for training.  [default: 1]",
)
@click.option(
    "--mode",
    type=click.Choice(["async", "sync"]),
    help="sync repeats bit for bit and is slower.  [default: async]",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the whole run.  [default: 1]")
@click.option(
    "--max-iterations",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after N updates, resumed ones included.  [default: 1000]",
)
@click.option(
    "--max-env-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after N environment steps trained on.  [default: no limit]",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where the run is kept.  [default: runs/EXPERIMENT/TIME]",
)
@click.option(
    "--resume",
    metavar="PATH",
    help="Continue a run directory or checkpoint; 'auto': continue --run-dir if it has one.",
)
@click.option("--plain", is_flag=True, help="One line per interval instead of the live view.")
@click.option(
    "--log-level",
    type=click.Choice(log.LEVELS),
    default="info",
    show_default=True,
    help="Least severe records shown.",
)
@click.option("--list", "list_", is_flag=True, help="List the bundled configurations and exit.")
@click.version_option(__version__, prog_name="appo-learner")
def main(
    config: str | None,
    sets: tuple[str, ...],
    resume: str | None,
    plain: bool,
    log_level: str,
    list_: bool,
    **options: Any,
) -> None:
    """Train a policy on the rollouts that appo-collector processes send.

    CONFIG is a YAML file or the name of a bundled configuration (see --list); without it, cartpole-swingup.
    Options win over --set, which wins over CONFIG. Every option can be given as APPO_<OPTION> in the
    environment.

    Exit codes: 0 finished or stopped on request, 1 failure, 2 wrong usage or configuration.
    """
    if list_:
        _list_presets()
        return
    limit_threads(options["threads"] or 1)
    log.set_up(log_level)
    stop = StopRequest().install()
    try:
        _train(config, sets, resume, options, plain, log_level, stop)
    except AppoError as error:
        log.set_up(log_level)  # the report's handler is gone with the report
        logger.error("%s", error, exc_info=error.__cause__)
        sys.exit(error.exit_code)
    finally:
        leave_quickly()


def _train(
    source: str | None,
    sets: tuple[str, ...],
    resume: str | None,
    options: dict[str, Any],
    plain: bool,
    log_level: str,
    stop: StopRequest,
) -> None:
    from appo_common.config_file import DEFAULT_PRESET, load_config
    from appo_learner.checkpoint import find
    from appo_learner.program import Start, run_learner
    from appo_learner.run_dir import CONFIG_NAME

    run_dir = options["run_dir"]
    checkpoint = _auto_resume(run_dir) if resume == "auto" else find(Path(resume)) if resume else None
    if checkpoint is not None:
        home = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent
        options["run_dir"] = run_dir or str(home)
        if source is None and (home / CONFIG_NAME).is_file():
            source = str(home / CONFIG_NAME)
    labelled = {_KEYS[name]: (f"--{name.replace('_', '-')}", value) for name, value in options.items()}
    start = Start(checkpoint, may_exist=resume is not None, source=source or DEFAULT_PRESET)
    run_learner(load_config(source, sets, labelled), start, plain=plain, log_level=log_level, stop=stop)


_KEYS = {
    "bind": "network.bind",
    "insecure": "network.insecure",
    "local_collectors": "learner.local_collectors",
    "device": "learner.device",
    "threads": "learner.threads",
    "mode": "learner.mode",
    "seed": "train.seed",
    "max_iterations": "train.max_iterations",
    "max_env_steps": "learner.max_env_steps",
    "run_dir": "learner.run_dir",
}
"""Where each option goes in the configuration."""


def _auto_resume(run_dir: str | None) -> Path | None:
    """Return the newest checkpoint of ``run_dir``, or None where no run has begun yet."""
    from appo_common.errors import ConfigError
    from appo_learner.checkpoint import find, saved

    if run_dir is None:
        raise ConfigError("--resume auto: needs --run-dir, the directory to continue or to begin in")
    return find(Path(run_dir)) if saved(Path(run_dir) / "checkpoints") else None


def _list_presets() -> None:
    from appo_common.config_file import list_presets

    for preset in list_presets():
        click.echo(f"{preset.name:24} {preset.description}")


if __name__ == "__main__":
    main()
