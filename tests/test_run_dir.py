from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from helpers_unit import run_config, small_tmpfs, train_dict

from appo_common.config_file import load_config
from appo_common.errors import AppoError, ConfigError
from appo_common.sockets import Endpoints
from appo_learner.run_dir import RunDir


def test_a_run_directory_holds_the_resolved_configuration_and_its_places(tmp_path: Path) -> None:
    config = run_config("/dev/shm", learner={"run_dir": str(tmp_path / "a" / "run")})
    run_dir = RunDir.create(config, may_exist=False)
    assert run_dir.path == tmp_path / "a" / "run"
    assert run_dir.checkpoints.is_dir()
    assert run_dir.logs.is_dir()
    assert load_config(str(run_dir.path / "config.yaml"), []) == config


def test_the_addresses_that_were_bound_can_be_read(tmp_path: Path) -> None:
    run_dir = RunDir.create(run_config("/dev/shm", learner={"run_dir": str(tmp_path)}), may_exist=False)
    run_dir.write_endpoints(Endpoints("127.0.0.1", 4001, 4002, 4003))
    assert json.loads((tmp_path / "endpoint.json").read_text()) == {
        "control": "tcp://127.0.0.1:4001",
        "host": "127.0.0.1",
        "control_port": 4001,
        "rollout_port": 4002,
        "weights_port": 4003,
    }


def test_a_directory_with_a_run_is_only_taken_to_resume_it(tmp_path: Path) -> None:
    config = run_config("/dev/shm", learner={"run_dir": str(tmp_path)})
    RunDir.create(config, may_exist=False)
    RunDir.create(config, may_exist=False)  # nothing was trained: nothing to protect
    (tmp_path / "checkpoints" / "model_3.pt").write_bytes(b"x")
    with pytest.raises(ConfigError) as caught:
        RunDir.create(config, may_exist=False)
    assert f"learner.run_dir = {tmp_path}: already holds a run" in str(caught.value)
    assert f"--resume {tmp_path}" in str(caught.value)
    assert "--run-dir" in str(caught.value)
    assert RunDir.create(config, may_exist=True).path == tmp_path


def test_without_a_name_runs_get_fresh_ones_below_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = run_config("/dev/shm", train={**train_dict(), "experiment_name": "walk", "run_name": "trial"})
    monkeypatch.setattr("appo_learner.run_dir.time.strftime", lambda _: "2026-01-31_12-00-00")
    paths = [RunDir.create(config, may_exist=False).path for _ in range(3)]
    base = "runs/walk/2026-01-31_12-00-00_trial"
    assert [str(path) for path in paths] == [base, f"{base}_2", f"{base}_3"]


def test_the_name_of_a_run_tells_environment_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = RunDir.create(run_config("/dev/shm"), may_exist=False).path
    assert re.fullmatch(r"runs/cartpole-swingup/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", str(path))
    assert len(os.listdir("runs/cartpole-swingup")) == 1


def test_a_directory_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = run_config("/dev/shm", learner={"run_dir": str(tmp_path / "file" / "run")})
    with pytest.raises(AppoError, match=r"cannot write the run directory .*/file/run: Not a directory"):
        RunDir.create(config, may_exist=False)
    with small_tmpfs(tmp_path / "disk", "64k") as disk:
        (disk / "ballast").write_bytes(bytes(64 * 1024))
        config = run_config("/dev/shm", learner={"run_dir": str(disk / "run")})
        with pytest.raises(AppoError, match=r"cannot write the run directory .*: No space left on device"):
            RunDir.create(config, may_exist=False)
