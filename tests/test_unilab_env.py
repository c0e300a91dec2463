"""UniLab's environments: its registry, managers and MuJoCo with a small scene, against the hand-written table.

Runs where UniLab is installed, which needs a MuJoCo of its own: ``make test-unilab``.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import helpers_counting
import numpy as np
import pytest
from helpers_counting_tables import EXACT
from helpers_e2e import Launcher
from helpers_unit import TRAIN

for package in ("mjbatch", "unilab"):
    pytest.importorskip(package, reason="make test-unilab installs it", exc_type=ImportError)
from helpers_unilab import STEP_DT, TASK, registry  # noqa: E402

from appo_collector.envs.adapters.unilab_env import UniLabEnv, from_task  # noqa: E402
from appo_collector.envs.adapters.unilab_tasks import declaration  # noqa: E402
from appo_collector.envs.guard import Guard  # noqa: E402
from appo_collector.envs.registry import make_env  # noqa: E402
from appo_common.errors import ConfigError, EnvironmentFault  # noqa: E402

ENVS = 3
GROUPS = {"actor": ["obs"], "critic": ["critic"]}


@pytest.fixture
def scene(tmp_path: Path) -> dict[str, Any]:
    """The overrides that give the task its scene."""
    from helpers_unilab import SCENE

    path = tmp_path / "cart.xml"
    path.write_text(SCENE)
    return {"scene": {"model_file": str(path)}}


def made(scene: dict[str, Any], threads: int = 1, **overrides: Any) -> UniLabEnv:
    return from_task(TASK, ENVS, threads, scene | overrides)


def counted(rows: Any) -> Any:
    """Leave only the first two columns of observations ``[..., columns]``."""
    return np.array(rows)[..., :2].tolist() if rows else rows


def test_all_ends_are_those_of_the_table(scene: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers_counting, "GROUPS", GROUPS)
    env = made(scene)
    collected = helpers_counting.rollouts(env)
    assert (env.ages() > 0).all()
    first, second = copy.deepcopy(EXACT)
    # UniLab starts at random ages; such an episode is trained on, but not counted among the whole ones.
    first["episodes"] = [first["episodes"][which] for which in (2, 3)]
    for fields, table in zip(collected, (first, second), strict=True):
        for name in ("rewards", "terminated", "truncated", "final_index", "episodes"):
            assert fields[name] == table[name], name
        assert fields["obs/obs"] == table["obs/policy"]
        for name in ("obs", "last_obs", "final_obs"):
            assert counted(fields[f"{name}/critic"]) == table[f"{name}/policy"], name


def test_spec_names_groups_terms_and_joints(scene: dict[str, Any]) -> None:
    spec = made(scene).spec
    assert {name: (group.shape, group.dtype) for name, group in spec.observations.items()} == {
        "obs": ([2], "float32"),
        "critic": ([4], "float32"),
    }
    assert (spec.name, spec.num_envs, spec.num_actions, spec.action_low) == (f"unilab:{TASK}", ENVS, 1, [])
    assert (spec.step_dt, spec.reward_terms, spec.action_names) == (STEP_DT, ["hundreds", "rest"], ["slide"])


def test_reward_terms_sum_to_the_reward_and_actions_move_the_cart(scene: dict[str, Any]) -> None:
    guard = Guard(made(scene))
    guard.reset(1)
    for _ in range(3):
        step = guard.step(np.array([[1.0], [0.0], [-1.0]], dtype=np.float32))
    assert np.array_equal(step.info["terms"]["hundreds"] + step.info["terms"]["rest"], step.reward)
    assert step.info["terms"]["hundreds"].tolist() == [100, 200, 300]
    places = step.obs["critic"][:, 2]
    assert places[0] > 0.1
    assert places[2] < -0.1


def test_the_same_seed_gives_the_same_from_the_first_step_on(scene: dict[str, Any]) -> None:
    env = made(scene)

    def run(seed: int) -> tuple[list[int], list[Any]]:
        observed = [env.reset(seed)["critic"].tolist()]
        observed += [env.step(np.ones((ENVS, 1), dtype=np.float32)).obs["critic"].tolist() for _ in range(8)]
        return env.ages().tolist(), observed

    first, again, other = run(2**62 + 1), run(2**62 + 1), run(3)
    assert first == again
    assert first[0] != other[0]
    assert first[1][0] != other[1][0]


def test_what_was_returned_is_not_written_again(scene: dict[str, Any]) -> None:
    env = made(scene)
    kept: list[np.ndarray] = [*env.reset(1).values()]
    copies = [array.copy() for array in kept]
    for _ in range(8):
        step = env.step(np.ones((ENVS, 1), dtype=np.float32))
        arrays = [*step.obs.values(), *step.final_obs.values(), *step.info["terms"].values(), step.reward]
        kept += [*arrays, step.terminated, step.truncated]
        copies += [array.copy() for array in kept[-len(arrays) - 2 :]]
    assert all(np.array_equal(array, copied) for array, copied in zip(kept, copies, strict=True))


def test_threads_are_as_many_as_asked_for_and_run_on_every_cpu(scene: dict[str, Any]) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("UniLab starts no more threads than there are CPUs")
    started = []
    for threads in (1, 2):
        before = set(os.listdir("/proc/self/task"))
        env = made(scene, threads)
        new = set(os.listdir("/proc/self/task")) - before
        started.append(len(new))
        assert [os.sched_getaffinity(int(thread)) for thread in new] == [allowed] * len(new)
        assert os.sched_getaffinity(0) == allowed
        env.close()
    assert started[1] == started[0] + 1


def test_a_close_can_be_repeated_and_a_reset_starts_again(scene: dict[str, Any]) -> None:
    env = made(scene)
    env.close()
    env.close()
    assert env.reset(1)["obs"].tolist() == [[0, 0]] * ENVS


@pytest.mark.parametrize(
    ("task", "overrides", "words"),
    [
        ("go2_joystik_flat", {}, r"env.name: 'unilab:go2_joystik_flat' is unknown to UniLab; nearest: go2_joystick_"),
        ("qqqqqqq", {}, r"nothing is near to it. Known: .*go2_joystick_flat.*Go2JoystickFlat"),
        (
            "go2_joystick_flat",
            {"sim_backend": "mjcuda"},
            r"unilab:go2_.* has no 'mjcuda'; known: .*mujoco",
        ),
        (TASK, {"sim_backend": "newton"}, rf"sim_backend: unilab:{TASK} has no 'newton'; known: mujoco"),
        (
            "go2_joystick_flat",
            {"algo": "dqn"},
            r"algo: 'dqn' has no configuration in UniLab; known: appo,",
        ),
        (TASK, {"seed": 3}, r"env.overrides.seed: it belongs to train.seed"),
        (TASK, {"auto_reset": False}, r"env.overrides.auto_reset: it belongs to the adapter"),
        (TASK, {"ctrl_dtt": 0.1}, r"env.overrides: unilab:AppoCounting: UniLab says .*ctrl_dtt"),
        (TASK, {"max_episode_seconds": -1.0}, r"UniLab says ValueError: .*max_episode_seconds must be finite"),
    ],
)
def test_wrong_configuration_is_named(task: str, overrides: dict[str, Any], words: str, scene: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=words):
        from_task(task, ENVS, 1, overrides | (scene if task == TASK else {}))


@pytest.mark.parametrize("task", ["go2_joystick_flat", "Go2JoystickFlat"])
def test_unilabs_own_files_declare_its_tasks(task: str) -> None:
    """Neither robot nor simulation are needed to read them."""
    registry.ensure_registries()
    declared = declaration(registry, task, {"rewards": {"base_height": {"weight": -5.0}}})
    assert (declared.registered, declared.backend) == ("Go2JoystickFlat", "mujoco")
    assert declared.options["rewards"]["base_height"]["weight"] == -5.0
    assert declared.options["rewards"]["action_rate"]["weight"] == -0.005
    assert Path(declared.options["scene"]["model_file"]).is_file()


def test_a_robot_whose_files_are_missing_says_how_to_get_them(scene: dict[str, Any], tmp_path: Path) -> None:
    missing = {"scene": {"model_file": str(tmp_path / "src" / "no.xml")}}
    with pytest.raises(EnvironmentFault, match=r"could not be built: .*no\.xml.*unilab-pull-assets"):
        made(missing)


def test_a_learner_and_a_collector_train_on_it(scene: dict[str, Any], launch: Launcher) -> None:
    env = {"name": f"unilab:{TASK}", "num_envs": ENVS, "overrides": scene}
    learner = launch.learner({"env": env, "train": TRAIN | {"obs_groups": GROUPS, "max_iterations": 3}})
    # UniLab's own way to find the tasks of others, other than installing a package of them.
    launch.collector(learner.address, variables={"UNILAB_EXTRA_REGISTRY_PACKAGES": "helpers_unilab"})
    assert learner.exit_code(55.0) == 0, learner.text
    assert learner.metrics()[-1]["iteration"] == 3


def test_the_name_in_the_configuration_leads_here(scene: dict[str, Any]) -> None:
    env = make_env(f"unilab:{TASK}", ENVS, scene, 1)
    assert isinstance(env, UniLabEnv)
    assert env.spec.action_scaling == "none"
