from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers_unit import GROUPS, TRAIN, env_spec, random_rollout, small_tmpfs, train_dict
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from appo_common.config import LearnerConfig
from appo_common.errors import AppoError, ConfigError
from appo_common.models import example_observations
from appo_learner import checkpoint
from appo_learner.appo import APPO, build_appo
from appo_learner.batch import Stager
from appo_learner.checkpoint import Progress

SPEC = env_spec(4, step_dt=0.02)
CONFIG = {"train": train_dict(), "learner": {"max_in_flight": 2}}
PROGRESS = Progress(12, 3400, 3500, 24, 1, best_return=1.5)


def algorithm(seed: int = 0, train: dict[str, Any] | None = None) -> APPO:
    torch.manual_seed(seed)
    return build_appo(train or TRAIN, LearnerConfig(), SPEC, GROUPS, "cpu")


def learn(appo: APPO, updates: int, first: int = 0) -> None:
    """Update on noise that depends on the number of the update alone."""
    stager = Stager(SPEC, GROUPS, 5, "cpu")
    for number in range(first, first + updates):
        views, count, _ = random_rollout(np.random.default_rng(number), SPEC)
        appo.prepare(stager.stage([(views, count)]))
        appo.update()


def write(appo: APPO, path: Path, progress: Progress = PROGRESS) -> Path:
    checkpoint.save(checkpoint.snapshot(appo, SPEC, progress, copy.deepcopy(CONFIG), "cpu"), path)
    return path


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors(item)]


class StandingStill(VecEnv):
    """The smallest environment that a runner accepts."""

    def __init__(self) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = 4, 2, 100
        self.episode_length_buf = torch.zeros(4, dtype=torch.long)
        self.device, self.cfg = "cpu", {}

    def get_observations(self) -> TensorDict:
        return example_observations(SPEC, 4)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        return self.get_observations(), torch.zeros(4), torch.zeros(4), {}


# ---------------------------------------------------------------------------------------------- reading it


def test_rsl_rls_runner_reads_the_file_and_acts_alike(tmp_path: Path) -> None:
    appo = algorithm(1)
    learn(appo, 3)
    path = write(appo, tmp_path / "model_12.pt")
    torch.manual_seed(2)
    runner = OnPolicyRunner(StandingStill(), train_dict(), log_dir=None, device="cpu")
    infos = runner.load(str(path))
    assert runner.current_learning_iteration == 12
    assert infos == {"env_steps": 3400}
    obs = example_observations(SPEC, 50)
    for name in SPEC.observations:
        obs[name].normal_()
    policy = runner.get_inference_policy("cpu")
    with torch.inference_mode():
        assert torch.equal(policy(obs), appo.get_policy()(obs))
        assert torch.equal(runner.alg.critic(obs), appo.critic(obs))
    assert int(policy.obs_normalizer.count) == 60
    assert runner.alg.learning_rate == appo.learning_rate


def test_the_file_is_data_and_holds_rsl_rls_keys_and_one_of_our_own(tmp_path: Path) -> None:
    path = write(algorithm(), tmp_path / "model_12.pt")
    state = torch.load(path, weights_only=True)
    assert set(state) == {
        *("actor_state_dict", "critic_state_dict", "optimizer_state_dict", "iter", "infos"),
        checkpoint.KEY,
    }
    assert set(state[checkpoint.KEY]) == {"spec", "progress", "learning_rate", "rng", "config"}
    assert state[checkpoint.KEY]["config"] == CONFIG


def test_a_file_tells_the_spec_and_the_counters(tmp_path: Path) -> None:
    loaded = checkpoint.load(write(algorithm(), tmp_path / "model_12.pt"))
    assert loaded.spec == SPEC
    assert loaded.progress == PROGRESS
    assert checkpoint.load(write(algorithm(), tmp_path / "first.pt", Progress())).progress.best_return is None


def test_a_resumed_run_learns_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Models, normaliser, optimiser, learning rate and random streams: one missing, and the parameters part."""
    straight = algorithm(3)
    learn(straight, 6)
    stopped = algorithm(3)
    learn(stopped, 3)
    assert stopped.learning_rate != TRAIN["algorithm"]["learning_rate"], "the schedule has not moved it"
    path = write(stopped, tmp_path / "model_3.pt")
    after_saving = torch.get_rng_state()

    resumed = algorithm(99)
    torch.manual_seed(98)
    checkpoint.load(path).restore(resumed, "cpu")
    assert torch.equal(torch.get_rng_state(), after_saving)
    assert resumed.learning_rate == stopped.learning_rate == resumed.optimizer.param_groups[0]["lr"]
    learn(resumed, 3, first=3)
    for mine, wanted in zip(tensors(resumed.save()), tensors(straight.save()), strict=True):
        assert torch.equal(mine, wanted)
    assert resumed.learning_rate == straight.learning_rate


def test_a_checkpoint_of_other_models_is_refused_with_the_keys_to_change(tmp_path: Path) -> None:
    path = write(algorithm(), tmp_path / "model_1.pt")
    wider = train_dict()
    wider["actor"] = {**wider["actor"], "hidden_dims": [32, 32]}
    with pytest.raises(ConfigError, match=r"model_1\.pt: the models do not fit train\.actor / train\.critic"):
        checkpoint.load(path).restore(algorithm(0, wider), "cpu")


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_a_configuration_error(tmp_path: Path, keep: float) -> None:
    path = write(algorithm(), tmp_path / "model_12.pt")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(ConfigError, match=r"--resume .*model_12\.pt: not a readable checkpoint") as caught:
        checkpoint.load(path)
    assert caught.value.exit_code == 2


def test_foreign_files_are_configuration_errors(tmp_path: Path) -> None:
    for name, state in {"foreign": {"model": 1}, "list": [1, 2], "half": {checkpoint.KEY: {"spec": {}}}}.items():
        torch.save(state, tmp_path / name)
    (tmp_path / "text").write_text("not a checkpoint")
    (tmp_path / "folder").mkdir()
    for name in ("foreign", "list", "half", "text", "folder", "missing"):
        with pytest.raises(ConfigError, match="not a readable checkpoint"):
            checkpoint.load(tmp_path / name)


# ---------------------------------------------------------------------------------------------- writing it


def test_equal_runs_have_equal_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("one", "other", "longer"):
        appo = algorithm(4)
        learn(appo, 3 if name == "longer" else 2)
        (tmp_path / name).mkdir()
        files.append(write(appo, tmp_path / name / f"model_of_{name}.pt").read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_a_full_disk_is_an_error_and_the_checkpoint_before_stays_loadable(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as disk:
        path = write(algorithm(5), disk / "model_1.pt")
        before = path.read_bytes()
        (disk / "ballast").write_bytes(bytes(1_048_576 - len(before) - 3 * 4096))
        for target in (path, disk / "model_2.pt"):
            with pytest.raises(AppoError, match=r"cannot write the checkpoint .*: No space left on device"):
                write(algorithm(6), target)
        assert sorted(file.name for file in disk.iterdir()) == ["ballast", "model_1.pt"]
        assert path.read_bytes() == before
        checkpoint.load(path).restore(algorithm(7), "cpu")


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AppoError, match=r"cannot write the checkpoint .*: No such file or directory"):
        write(algorithm(), tmp_path / "gone" / "model_1.pt")


def test_writing_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = write(algorithm(), tmp_path / "model_1.pt")
    write(algorithm(), path, Progress(iteration=77))
    assert checkpoint.load(path).progress.iteration == 77
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------------------------- which is which


def touch(directory: Path, *names: str) -> None:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).touch()


def test_checkpoints_are_listed_by_number_and_not_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "model_100.pt", "model_20.pt", "model_3.pt", "best.pt", "model_x.pt", "model_4.tmp", "model_-1.pt")
    assert [path.name for path in checkpoint.saved(tmp_path)] == ["model_3.pt", "model_20.pt", "model_100.pt"]
    assert checkpoint.model_path(tmp_path, 20) == tmp_path / "model_20.pt"


def test_only_the_newest_are_kept_and_the_best(tmp_path: Path) -> None:
    touch(tmp_path, *(f"model_{number}.pt" for number in (5, 50, 500, 1000)), "best.pt")
    checkpoint.prune(tmp_path, keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "model_1000.pt", "model_500.pt"]
    checkpoint.prune(tmp_path, keep_last=5)
    assert len(list(tmp_path.iterdir())) == 3


def test_resume_finds_a_file_or_the_newest_of_a_run_or_of_its_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    touch(run / "checkpoints", "model_9.pt", "model_10.pt", "best.pt")
    newest = run / "checkpoints" / "model_10.pt"
    assert checkpoint.find(run) == newest
    assert checkpoint.find(run / "checkpoints") == newest
    assert checkpoint.find(run / "checkpoints" / "best.pt") == run / "checkpoints" / "best.pt"


@pytest.mark.parametrize("place", [".", "missing", "empty"])
def test_resume_without_a_checkpoint_is_a_configuration_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"--resume .*: no checkpoint"):
        checkpoint.find(tmp_path / place)
