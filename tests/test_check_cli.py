"""``appo-collector check`` as a program: exit codes, and environments that end its process or never return."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import yaml
from helpers_e2e import BIN, Launcher, Program, make_config, poll


def start(launch: Launcher, *arguments: str) -> Program:
    return launch.start(f"check-{len(launch.programs)}", [str(BIN / "appo-collector"), "check", *arguments])


def test_a_good_environment_gives_exit_code_0_and_a_bad_one_1(launch: Launcher) -> None:
    good = start(launch, "broken_envs:Good", "--steps", "40", "--num-envs", "3")
    bad = start(launch, "broken_envs:DoubleReward", "--steps", "40")
    assert (good.exit_code(20.0), bad.exit_code(20.0)) == (0, 1)
    assert "✓ builds                 3 × broken_envs:Good" in good.text
    assert good.text.splitlines()[-1] == "no violation"
    assert "\x1b" not in good.text, "no colours where nobody sees them"
    assert "✗ shapes and dtypes      step 1: 'reward' is (4,) float64" in bad.text


CRASHES = {
    "Segfaults": r"step\(\) 20 \(random actions\): the process died of SIGSEGV",
    "Vanishes": r"step\(\) 20 \(random actions\): the process left with exit code 0 → raise an exception",
}


@pytest.mark.parametrize("name", CRASHES)
def test_an_environment_that_ends_the_process_is_named_with_the_step(launch: Launcher, name: str) -> None:
    program = start(launch, f"broken_envs:{name}", "--steps", "40")
    assert program.exit_code(20.0) == 1, program.text
    assert re.search(f"✗ calls +{CRASHES[name]}", program.text), program.text
    if name == "Segfaults":
        assert re.search(r'File ".*broken_envs\.py", line \d+ in told', program.text), program.text
    assert "Traceback" not in program.text


HANGS = {"HangsInStep": r"step\(\) 20", "HangsInReset": r"reset\(\)", "HangsInC": r"step\(\) 20"}


@pytest.mark.parametrize("name", HANGS)
def test_a_call_that_does_not_return_is_named_with_the_place(launch: Launcher, name: str) -> None:
    program = start(launch, f"broken_envs:{name}", "--steps", "40", "--timeout", "1")
    assert program.exit_code(20.0) == 1, program.text
    said = rf"✗ calls +{HANGS[name]} \(random actions\) has not returned for \d s → .*--timeout"
    assert re.search(said, program.text), program.text
    function = "reset" if name == "HangsInReset" else "told"
    assert re.search(rf'File ".*broken_envs\.py", line \d+ in {function}', program.text), program.text
    assert "check/probe.py" not in program.text
    poll(lambda: not launch.alive(), 5.0, "the end of the checked process")


def test_a_thread_left_behind_does_not_keep_the_check_waiting(launch: Launcher) -> None:
    program = start(launch, "broken_envs:KeepsAThread", "--steps", "20")
    assert program.exit_code(20.0) == 0, program.text
    assert "its threads keep the process alive" in program.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_check_that_hangs(launch: Launcher, number: signal.Signals) -> None:
    program = start(launch, "broken_envs:HangsInC", "--steps", "40")
    program.says("✓ spec")
    program.signal(number)
    assert program.exit_code(5.0) in (130, -signal.SIGTERM)
    assert "Traceback" not in program.text
    poll(lambda: not launch.alive(), 5.0, "the end of the checked process")


def test_wrong_usage_gives_exit_code_2(launch: Launcher) -> None:
    (launch.folder / "typo_env.py").write_text("import numpy\n\ndef make(num_envs:\n    return 1\n")
    cases = {
        "broken_envs:NanObz": r"has no 'NanObz'; did you mean broken_envs:NanObs\?",
        "no_such_module:make": "no module 'no_such_module' is in ",
        "typo_env:make": r"SyntaxError: .*typo_env\.py, line 3",
    }
    programs = {name: start(launch, name) for name in cases}
    for name, program in programs.items():
        assert program.exit_code(20.0) == 2, program.text
        assert re.search(cases[name], program.text), program.text
        assert "Traceback" not in program.text


def test_a_configuration_can_name_the_environment(launch: Launcher) -> None:
    env = {"name": "e2e_envs:Drift", "num_envs": 3, "overrides": {"limit": 4, "reach": 100.0}}
    (launch.folder / "run.yaml").write_text(yaml.safe_dump(make_config(env=env)))
    program = start(launch, "--config", "run.yaml", "--steps", "40", "--override", "limit=5")
    assert program.exit_code(20.0) == 0, program.text
    assert "3 × e2e_envs:Drift" in program.text
    assert "24 episodes; mean length 5.0" in program.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "Missing argument 'ENV'"),
        (["check", "a:b", "--config", "x.yaml"], "both name an environment"),
        (["check", "a:b", "--override", "x"], "--override x: must be KEY=VALUE"),
        (["check", "a:b", "--override", "x=["], "is not YAML"),
        (["check", "a:b", "--steps", "0"], "--steps"),
        (["chekc", "a:b"], "chekc"),
        (["--connect", "tcp://127.0.0.1:5555", "check", "a:b"], "--connect is an option of collecting"),
    ],
)
def test_a_wrong_option_of_the_check_is_refused(arguments: list[str], words: str) -> None:
    from click.testing import CliRunner

    from appo_collector.cli import main

    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output


def test_help_shows_both_uses_and_answers_without_torch(launch: Launcher) -> None:
    for module in ("torch", "mujoco"):
        (launch.folder / f"{module}.py").write_text("raise SystemExit('it was imported')\n")
    path = str(launch.folder)
    both = launch.start("help", [str(BIN / "appo-collector"), "--help"], PYTHONPATH=path)
    check = launch.start("check-help", [str(BIN / "appo-collector"), "check", "--help"], PYTHONPATH=path)
    assert (both.exit_code(10.0), check.exit_code(10.0)) == (0, 0), both.text + check.text
    for words in ("appo-collector --connect tcp://learner-host:5555", "appo-collector check mujoco:", "--transport"):
        assert words in both.text
    for words in ("--num-envs", "--steps", "--override KEY=VALUE", "--action-scaling", "--timeout", "package.module:"):
        assert words in check.text


def test_the_module_is_looked_for_in_the_working_directory(launch: Launcher) -> None:
    (launch.folder / "mine.py").write_text("from broken_envs import Good\n")
    program = start(launch, "mine:Good", "--steps", "30")
    assert program.exit_code(20.0) == 0, program.text
    assert Path(launch.folder, "mine.py").exists()
    assert os.path.basename(program.command[0]) == "appo-collector"


def test_threads_are_those_of_the_environment_alone_unless_told_otherwise(launch: Launcher) -> None:
    untold, told = (
        launch.start(
            name,
            [str(BIN / "appo-collector"), "check", "threads_env:Threads", "--threads", "3", "--steps", "5"],
            **variables,
        )
        for name, variables in (("untold", {"OMP_NUM_THREADS": ""}), ("told", {"OMP_NUM_THREADS": "2"}))
    )
    untold.says("pool 3, torch 1, OpenMP 1", 20.0)
    told.says("pool 3, torch 2, OpenMP 2", 20.0)
