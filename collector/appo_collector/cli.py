"""Command line of ``appo-collector``. Imports nothing heavy before threads are limited."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys

import click
from click.core import ParameterSource

from appo_collector.check.command import check
from appo_common import __version__, log
from appo_common.errors import AppoError, ConfigError
from appo_common.process import StopRequest, die_with_parent, leave_quickly, one_thread_unless_told

logger = logging.getLogger("appo_collector")

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "auto_envvar_prefix": "APPO"}


@click.group(
    context_settings=CONTEXT,
    invoke_without_command=True,
    options_metavar="--connect ADDRESS [OPTIONS]",
    subcommand_metavar="| COMMAND ...",
)
@click.option("--connect", metavar="ADDRESS", help="The learner's control address, tcp://HOST:PORT.")
@click.option(
    "--num-envs",
    type=click.IntRange(min=1),
    help="Environments stepped together.  [default: the run's env.num_envs]",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, help="Threads that step the environments.")
@click.option("--device", default="cpu", help="Device of the actor: cpu or cuda:N.")
@click.option(
    "--transport",
    type=click.Choice(["auto", "shm", "tcp"]),
    default="auto",
    help="Path of rollouts and weights; auto takes shared memory where the learner's can be mapped.",
)
@click.option("--name", help="Name in the learner's view.  [default: HOST-PID]")
@click.option("--log-level", type=click.Choice(log.LEVELS), default="info", help="Least severe records shown.")
@click.option("--parent-pid", type=int, hidden=True, help="End with this process.")
@click.version_option(__version__, prog_name="appo-collector")
@click.pass_context
def main(
    context: click.Context,
    connect: str | None,
    num_envs: int | None,
    threads: int,
    device: str,
    transport: str,
    name: str | None,
    log_level: str,
    parent_pid: int | None,
) -> None:
    """Step environments for the learner at ADDRESS and send it rollouts, or do what COMMAND says.

    \b
        appo-collector --connect tcp://learner-host:5555
        appo-collector check mujoco:cartpole-swingup

    The learner says which environment. Waits for the learner if it is not there yet; joins again if it was
    restarted. Every option can be given as APPO_<OPTION> in the environment. The options below are those of
    collecting; `appo-collector COMMAND --help` shows those of a command.

    Exit codes: 0 the run is over or this process was asked to stop, 1 failure, 2 wrong usage or configuration,
    3 refused by the learner.
    """  # noqa: D301 - click's mark for lines that stay as they are
    if context.invoked_subcommand is not None:
        _refuse_misplaced(context)
        return
    if connect is None:
        missing = next(parameter for parameter in context.command.params if parameter.name == "connect")
        raise click.MissingParameter(ctx=context, param=missing)
    if parent_pid is not None:
        die_with_parent(parent_pid)
    one_thread_unless_told()
    log.set_up(log_level)
    stop = StopRequest().install()
    faulthandler.enable(2)  # an environment's native code may crash: its log then says where
    try:
        reason = _collect(connect, num_envs, threads, device, transport, name, stop)
    except AppoError as error:
        logger.error("%s", error, exc_info=error.__cause__)  # an environment's own traceback, if it raised
        sys.exit(error.exit_code)
    finally:
        leave_quickly()
    logger.info("finished: %s", reason)


main.add_command(check)


def _refuse_misplaced(context: click.Context) -> None:
    """Refuse options of collecting in front of a command, which would go unheard."""
    for parameter in context.command.params:
        if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            option, command = parameter.opts[0], context.invoked_subcommand
            raise click.UsageError(f"{option} is an option of collecting; options of '{command}' stand behind it")


def _collect(
    connect: str,
    num_envs: int | None,
    threads: int,
    device: str,
    transport: str,
    name: str | None,
    stop: StopRequest,
) -> str:
    from appo_collector.program import Collector, CollectorOptions
    from appo_collector.session import Identity
    from appo_common.sockets import split_address

    if split_address(connect, "--connect")[1] == 0:
        raise ConfigError(f"--connect {connect}: port 0 is nowhere; use the port that the learner says it listens on")
    identity = Identity(name or f"{os.uname().nodename}-{os.getpid()}", num_envs, transport)
    return Collector(CollectorOptions(connect, identity, threads, device), stop).run()


if __name__ == "__main__":
    main()
