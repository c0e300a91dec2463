"""Wrong configuration, as a user meets it: exit code 2 and words that name file, key, value and remedy."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from helpers_e2e import BIN, Launcher, make_config

from appo_collector.cli import main as collector_main
from appo_learner.cli import main as learner_main

Runner = tuple[CliRunner, Path]

WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("unknown section", {"learnr": {}}, ["learnr", "learner"]),
    ("unknown key", {"learner": {"max_inflight": 3}}, ["learner.max_inflight = 3", "max_in_flight"]),
    ("key of another section", {"env": {"max_in_flight": 3}}, ["env.max_in_flight", "learner.max_in_flight"]),
    ("unknown training key", {"train": {"num_steps": 3}}, ["train.num_steps = 3", "num_steps_per_env"]),
    ("unknown argument of PPO", {"train": {"algorithm": {"gama": 0.9}}}, ["train.algorithm.gama = 0.9", "gamma"]),
    (
        "unknown argument of a model",
        {"train": {"actor": {"hiden_dims": [8]}}},
        ["train.actor.hiden_dims", "hidden_dims"],
    ),
    ("text for a number", {"env": {"num_envs": "many"}}, ["env.num_envs", '"many"', "whole number"]),
    ("a fraction of an environment", {"env": {"num_envs": 2.5}}, ["env.num_envs = 2.5", "whole number"]),
    ("negative steps", {"train": {"num_steps_per_env": -24}}, ["train.num_steps_per_env = -24", "whole number"]),
    ("no iterations", {"train": {"max_iterations": 0}}, ["train.max_iterations = 0"]),
    ("negative lag", {"learner": {"max_policy_lag": -1}}, ["learner.max_policy_lag = -1", "0 or more"]),
    ("discount above 1", {"train": {"algorithm": {"gamma": 1.5}}}, ["train.algorithm.gamma = 1.5"]),
    ("unknown mode", {"learner": {"mode": "asink"}}, ["learner.mode", '"asink"', "async or sync"]),
    ("unknown model class", {"train": {"actor": {"class_name": "MLPMoodel"}}}, ["train.actor.class_name", "MLPMoodel"]),
    ("other algorithm", {"train": {"algorithm": {"class_name": "SAC"}}}, ["train.algorithm.class_name", "SAC", "PPO"]),
    (
        "more mini-batches than samples",
        {"train": {"algorithm": {"num_mini_batches": 1000}}},
        ["train.algorithm.num_mini_batches = 1000", "at most 32"],
    ),
    (
        "batch larger than the fleet can deliver",
        {"learner": {"batch_envs": 1000, "local_collectors": 2}},
        ["learner.batch_envs = 1000", "at most 16", "use auto or more collectors"],
    ),
    (
        "fleet larger than admitted",
        {"network": {"max_collectors": 1}, "learner": {"min_collectors": 2}},
        ["max_collectors"],
    ),
    (
        "timeout below the beat",
        {"network": {"heartbeat_timeout_s": 1.5}},
        ["network.heartbeat_timeout_s = 1.5", "twice"],
    ),
    ("address without a port", {"network": {"bind": "tcp://127.0.0.1"}}, ["network.bind", "tcp://HOST:PORT"]),
    ("empty observation set", {"train": {"obs_groups": {"actor": []}}}, ["train.obs_groups.actor = []"]),
    (
        "clipping ρ below c",
        {"learner": {"vtrace": {"c_bar": 2.0}}},
        ["learner.vtrace.c_bar = 2.0", "at most rho_bar = 1"],
    ),
]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """Runs a command line in this process, and puts back what the programs set up in theirs."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("APPO_")]:
        monkeypatch.delenv(name)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    root, environment = logging.getLogger(), dict(os.environ)
    log_handlers, level = root.handlers[:], root.level
    yield CliRunner(), tmp_path
    root.handlers[:] = log_handlers
    root.setLevel(level)
    for package in ("appo_common", "appo_collector", "appo_learner"):
        logging.getLogger(package).setLevel(logging.NOTSET)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.parametrize(("changes", "words"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_file_is_refused_before_anything_is_started(
    runner: Runner, changes: dict[str, Any], words: list[str]
) -> None:
    cli, folder = runner
    known = {name: section for name, section in changes.items() if name in ("env", "train", "learner", "network")}
    config = make_config(**known) | {name: section for name, section in changes.items() if name not in known}
    (folder / "wrong.yaml").write_text(yaml.safe_dump(config))
    result = cli.invoke(
        learner_main, ["wrong.yaml", "--run-dir", "run", "--bind", "tcp://127.0.0.1:0"][: _args(changes)]
    )
    assert result.exit_code == 2, result.output
    problems = [line for line in result.output.splitlines() if line]
    assert len(problems) == 1, f"one problem, one line: {result.output}"
    for word in ("wrong.yaml", *words):
        assert word in result.output
    assert not (folder / "run").exists()


def _args(changes: dict[str, Any]) -> int:
    """--bind would win over the file's own address."""
    return 3 if "bind" in changes.get("network", {}) else 5


def test_all_that_is_wrong_is_said_at_once(runner: Runner) -> None:
    cli, folder = runner
    config = make_config(env={"num_envs": 0}, learner={"mode": "fast"}, network={"shmdir": "/tmp"})
    (folder / "wrong.yaml").write_text(yaml.safe_dump(config))
    result = cli.invoke(learner_main, ["wrong.yaml", "--set", "train.seed=-1"])
    assert result.exit_code == 2
    for word in ("env.num_envs = 0", "learner.mode", "network.shmdir", "shm_dir", "--set: train.seed = -1"):
        assert word in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-iteration", "3"], ["--max-iteration", "--max-iterations"]),
        (["--mode", "fast"], ["'fast'", "async", "sync"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["cartpole-swingpu"], ["cartpole-swingpu", "cartpole-swingup"]),
        (["--set", "learner.mode"], ["learner.mode", "KEY=VALUE"]),
        (["--set", "train.algorithm.gama=0.9"], ["--set: train.algorithm.gama = 0.9", "gamma"]),
        (["--bind", "tcp://0.0.0.0:0"], ["--bind", "tcp://0.0.0.0:0", "--insecure"]),
        (["--bind", "localhost:5555"], ["--bind", "localhost:5555", "tcp://HOST:PORT"]),
        (["--device", "gpu"], ["--device", "gpu", "cuda:N"]),
        (["--resume", "nowhere"], ["--resume nowhere", "model_<iteration>.pt"]),
        (["--resume", "auto"], ["--resume auto", "--run-dir"]),
    ],
)
def test_a_wrong_option_of_the_learner_is_refused(runner: Runner, arguments: list[str], words: list[str]) -> None:
    cli, folder = runner
    result = cli.invoke(learner_main, arguments)
    assert result.exit_code == 2, result.output
    for word in words:
        assert word in result.output
    assert "Traceback" not in result.output
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--connect"]),
        (["--conect", "tcp://127.0.0.1:5555"], ["--conect", "--connect"]),
        (["--connect", "127.0.0.1:5555"], ["--connect", "'127.0.0.1:5555'", "tcp://HOST:PORT"]),
        (["--connect", "tcp://127.0.0.1:5555", "--num-envs", "0"], ["--num-envs", "0"]),
        (["--connect", "tcp://127.0.0.1:5555", "--transport", "udp"], ["'udp'", "shm", "tcp"]),
    ],
)
def test_a_wrong_option_of_the_collector_is_refused(runner: Runner, arguments: list[str], words: list[str]) -> None:
    result = runner[0].invoke(collector_main, arguments)
    assert result.exit_code == 2, result.output
    for word in words:
        assert word in result.output
    assert "Traceback" not in result.output


def test_the_real_program_refuses_a_wrong_file_on_standard_error(launch: Launcher) -> None:
    config = make_config(learner={"max_in_flight": 99, "batch_size": 3})
    learner = launch.learner(config)
    assert learner.exit_code(20.0) == 2
    assert learner.out_path.read_text() == ""
    said = learner.err_path.read_text()
    for words in ("config-0.yaml: learner.max_in_flight = 99", "from 1 to 16", "learner.batch_size = 3", "batch_envs"):
        assert words in said
    assert "Traceback" not in said
    assert not learner.run_dir.exists()


def test_a_run_directory_that_is_in_use_is_not_overwritten(launch: Launcher) -> None:
    taken = launch.folder / "taken"
    taken.mkdir()
    (taken / "config.yaml").write_text("# an earlier run\n")
    (taken / "metrics.jsonl").write_text('{"iteration": 1}\n')
    learner = launch.learner(make_config(), run_dir=taken)
    assert learner.exit_code(20.0) == 2
    assert f"--resume {taken}" in learner.text
    assert (taken / "config.yaml").read_text() == "# an earlier run\n"
    assert sorted(path.name for path in taken.iterdir()) == ["config.yaml", "metrics.jsonl"]


def test_an_observation_group_that_the_environment_lacks_is_named_once_it_has_joined(launch: Launcher) -> None:
    config = make_config(train={"obs_groups": {"critic": ["policy", "privilegd"]}})
    learner = launch.learner(config, "--local-collectors", "1")
    assert learner.exit_code(25.0) == 2, learner.text
    for words in ("train.obs_groups.critic", "privilegd", "policy"):
        assert words in learner.text
    assert "Traceback" not in learner.text
    assert launch.alive() == []


def test_a_missing_group_is_named_by_the_learner_of_a_remote_collector(launch: Launcher) -> None:
    learner = launch.learner(make_config(train={"obs_groups": {"critic": ["policy", "privilegd"]}}))
    collector = launch.collector(learner.address)
    assert learner.exit_code(25.0) == 2, learner.text
    for words in ("train.obs_groups.critic", "privilegd"):
        assert words in learner.text
    assert collector.exit_code(5.0) in (0, 2)
    assert "Traceback" not in collector.text


@pytest.mark.parametrize("options", [("--help",), ("--list",)], ids=lambda options: options[0])
def test_help_and_the_list_of_presets_answer_without_torch(launch: Launcher, options: tuple[str, ...]) -> None:
    """The module that would import torch is replaced by one that fails."""
    (launch.folder / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    program = launch.start("learner", [str(BIN / "appo-learner"), *options], PYTHONPATH=str(launch.folder))
    assert program.exit_code(10.0) == 0, program.text
    assert "cartpole-swingup" in program.text
    if options == ("--help",):
        for option in ("--set", "--bind", "--local-collectors", "--resume", "--max-env-steps", "--insecure"):
            assert option in program.text


def test_the_version_is_that_of_the_distribution(launch: Launcher) -> None:
    from importlib.metadata import version

    for name in ("appo-learner", "appo-collector"):
        program = launch.start(name, [sys.executable, str(BIN / name), "--version"])
        assert program.exit_code(10.0) == 0
        assert version("appo") in program.text
