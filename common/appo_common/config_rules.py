"""Rules between the keys of a configuration: combinations that would be refused, insecure, or never train.

Each function takes a section whose keys are right one by one and returns every rule that it breaks. Keys are
relative to that section.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgpack

from appo_common.train_config import Problem

if TYPE_CHECKING:
    from appo_common.config import LearnerConfig, NetworkConfig, RunConfig, VTraceConfig

LAST_BASE_PORT = 65533
"""The learner binds the base port and the next two, of 65535."""


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``tcp://HOST:PORT``. Raises ValueError, saying what is wanted, for anything else."""
    match = re.fullmatch(r"tcp://(\[[^\]]+\]|[^\s:/]+):(\d{1,5})", address)
    if match is None or int(match[2]) > LAST_BASE_PORT:
        raise ValueError(
            f"must be tcp://HOST:PORT with a port from 0 (three free ports) to {LAST_BASE_PORT} "
            "(the next two are bound as well), e.g. tcp://127.0.0.1:5555"
        )
    return match[1], int(match[2])


def vtrace_problems(vtrace: VTraceConfig) -> list[Problem]:
    """Check c̄ ≤ ρ̄, which the analysis of V-trace assumes (Espeholt et al. 2018, section 4.1)."""
    if vtrace.c_bar <= vtrace.rho_bar:
        return []
    text = f"must be at most rho_bar = {vtrace.rho_bar:g}, as V-trace assumes; lower it or raise rho_bar"
    return [Problem("c_bar", vtrace.c_bar, text, ("rho_bar",))]


def learner_problems(learner: LearnerConfig) -> list[Problem]:
    """Check that mode, batch, rollouts in flight and permitted lag go together."""
    problems = []
    if learner.mode == "sync" and learner.batch_envs != "auto":
        text = "must be auto in sync mode, where an update takes a rollout of each collector; or use mode: async"
        problems.append(Problem("batch_envs", learner.batch_envs, text, ("mode",)))
    if learner.mode == "async" and learner.max_policy_lag == 0 and learner.max_in_flight > 1:
        text = (
            f"must be at least 1 with max_in_flight = {learner.max_in_flight}, as all rollouts but the first "
            "would be discarded; raise it, or use max_in_flight: 1, or mode: sync"
        )
        problems.append(Problem("max_policy_lag", 0, text, ("mode", "max_in_flight")))
    return problems


def network_problems(network: NetworkConfig) -> list[Problem]:
    """Check that an open port was asked for aloud, and that one late heartbeat is not taken for a loss."""
    problems = []
    host, _ = host_and_port(network.bind)
    if not network.insecure and not re.fullmatch(r"localhost|127(\.\d{1,3}){3}|\[::1\]", host):
        text = (
            "can be reached from other hosts, and traffic is neither encrypted nor authenticated; "
            "bind 127.0.0.1, or accept that with --insecure (network.insecure: true)"
        )
        problems.append(Problem("bind", network.bind, text, ("insecure",)))
    interval, timeout = network.heartbeat_interval_s, network.heartbeat_timeout_s
    if timeout <= 2 * interval:
        text = (
            f"must be above twice heartbeat_interval_s = {interval:g}, or one late heartbeat "
            "counts as a loss; raise it or lower the interval"
        )
        problems.append(Problem("heartbeat_timeout_s", timeout, text, ("heartbeat_interval_s",)))
    return problems


def run_problems(config: RunConfig) -> list[Problem]:
    """Check what only all sections together say: a batch can be filled and split, the fleet admitted."""
    return (
        _unsendable_settings(config)
        + _unfillable_batch(config)
        + _unsplittable_batch(config)
        + _unadmitted_fleet(config)
    )


def _unsendable_settings(config: RunConfig) -> list[Problem]:
    """Collectors are sent these sections as msgpack, whose whole numbers have 64 bits."""
    problems = []
    for key, value in (("env.overrides", config.env.overrides), ("train.actor", config.train.get("actor"))):
        try:
            msgpack.packb(value)
        except (OverflowError, TypeError, ValueError) as error:
            problems.append(Problem(key, value, f"cannot be sent to collectors ({error}); use plain, smaller values"))
    return problems


def _unfillable_batch(config: RunConfig) -> list[Problem]:
    """Without this check the learner would wait for ever, and nothing would say why."""
    batch, fleet = config.learner.batch_envs, config.learner.expected_collectors
    if batch == "auto" or fleet is None:
        return []
    num_envs, in_flight = config.env.num_envs, config.learner.max_in_flight
    most = fleet * num_envs * in_flight
    if batch <= most:
        return []
    text = (
        f"must be at most {most}, what the fleet can deliver (collectors {fleet} x env.num_envs {num_envs} "
        f"x max_in_flight {in_flight}), or no update would ever start; use auto or more collectors"
    )
    involves = ("env.num_envs", "learner.max_in_flight", "learner.min_collectors", "learner.local_collectors")
    return [Problem("learner.batch_envs", batch, text, involves)]


def _unsplittable_batch(config: RunConfig) -> list[Problem]:
    """The smallest batch is one collector's rollout, or ``batch_envs`` columns where that is more."""
    batch = config.learner.batch_envs
    columns = config.env.num_envs if batch == "auto" else max(batch, config.env.num_envs)
    samples = config.num_steps * columns
    mini_batches = config.train["algorithm"].get("num_mini_batches", 4)
    if mini_batches <= samples:
        return []
    text = (
        f"must be at most {samples}, the samples of the smallest batch (num_steps_per_env "
        f"{config.num_steps} x environments {columns}); lower it or raise env.num_envs"
    )
    involves = ("train.num_steps_per_env", "env.num_envs", "learner.batch_envs")
    return [Problem("train.algorithm.num_mini_batches", mini_batches, text, involves)]


def _unadmitted_fleet(config: RunConfig) -> list[Problem]:
    fleet, limit = config.learner.required_collectors, config.network.max_collectors
    if fleet <= limit:
        return []
    text = f"must be at least {fleet}, the collectors that training waits for; raise it or lower that"
    involves = ("learner.min_collectors", "learner.local_collectors")
    return [Problem("network.max_collectors", limit, text, involves)]
