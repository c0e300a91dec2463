"""The configuration: what a file, assignments and options make of the defaults, and what the values mean."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers_config import TRAIN, sections, writer
from pydantic import ValidationError

from appo_common.config import EnvConfig, LearnerConfig, NetworkConfig, RunConfig, VTraceConfig
from appo_common.config_file import list_presets, load_config
from appo_common.errors import ConfigError
from appo_common.train_classes import class_problems
from appo_common.train_config import (
    keys_without_effect,
    resolved_obs_groups,
    structure_problems,
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    return writer(tmp_path)


def test_options_win_over_set_over_file_over_defaults(write: Any) -> None:
    path = write(sections(learner__threads=1, learner__max_in_flight=3, train__seed=5))
    options = {
        "learner.threads": ("--threads", 4),
        "train.seed": ("--seed", None),
        "learner.mode": ("--mode", "sync"),
    }
    config = load_config(path, ["learner.threads=2", "learner.max_in_flight=4"], options)
    assert config.learner.threads == 4
    assert config.learner.max_in_flight == 4
    assert config.seed == 5
    assert config.learner.mode == "sync"
    assert config.network == NetworkConfig()


def test_of_two_assignments_the_later_wins(write: Any) -> None:
    assert load_config(write(sections()), ["train.seed=1", "train.seed=2"]).seed == 2


def test_overrides_stay_with_the_environment_they_were_written_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert load_config("cartpole-swingup", ["env.name=gymnasium:CartPole-v1"]).env.overrides == {}
    assert "env.overrides {'stagger': True} of preset cartpole-swingup are left out" in caplog.text
    kept = load_config("cartpole-swingup", ["env.name=mine:Env", "env.overrides.speed=3"]).env.overrides
    assert kept == {"speed": 3}
    whole = load_config("cartpole-swingup", ["env.overrides={speed: 3}", "env.name=mine:Env"]).env.overrides
    assert whole == {"speed": 3}
    assert load_config("cartpole-swingup", ["env.num_envs=3"]).env.overrides == {"stagger": True}


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("5E-4", 5e-4), ("2.e-3", 2e-3), ("+1e-2", 1e-2)])
def test_exponents_are_numbers_in_files_and_assignments(write: Any, text: str, value: float) -> None:
    assert load_config(write(sections()), [f"train.algorithm.learning_rate={text}"]).train["algorithm"][
        "learning_rate"
    ] == pytest.approx(value)
    content = yaml.safe_dump(sections()).replace("learning_rate: 0.001", f"learning_rate: {text}")
    assert load_config(write(content)).train["algorithm"]["learning_rate"] == pytest.approx(value)


def test_counts_may_be_written_with_exponents(write: Any) -> None:
    config = load_config(write(sections()), ["learner.max_env_steps=5e6", "learner.batch_envs=1e2"])
    assert config.learner.max_env_steps == 5_000_000
    assert isinstance(config.learner.max_env_steps, int)
    assert config.learner.batch_envs == 100


def test_dates_stay_text(write: Any) -> None:
    assert load_config(write(sections()), ["train.run_name=2026-01-31"]).run_name == "2026-01-31"


def test_merge_keys_are_no_duplicates(write: Any) -> None:
    text = yaml.safe_dump({"train": TRAIN}, sort_keys=False).replace("critic:\n    class", "critic: &model\n    class")
    path = write(text + "env:\n  overrides:\n    a: &a {x: 1}\n    b: {<<: *a, x: 2}\n")
    assert load_config(path).env.overrides["b"] == {"x": 2}


def test_setting_a_key_leaves_the_alias_of_its_section_alone(write: Any) -> None:
    text = yaml.safe_dump(sections()).replace("num_envs: 16", "overrides: {a: &a {x: 1}, b: *a}")
    config = load_config(write(text), ["env.overrides.a.x=2"])
    assert config.env.overrides == {"a": {"x": 2}, "b": {"x": 1}}


def test_the_resolved_file_loads_to_an_equal_configuration(write: Any) -> None:
    sets = [
        "train.run_name='1e-3'",
        "train.algorithm.desired_kl=1e-7",
        "env.overrides={day: '2026-01-31', wind: true, nothing: null, name: \"straße\", big: 1.0e+20}",
        "learner.vtrace.rho_bar=2",
        "learner.max_env_steps=1e6",
    ]
    first = load_config(write(sections()), sets, {"learner.device": ("--device", "cpu")})
    second = load_config(write(first.to_yaml(), "resolved.yaml"))
    assert second == first
    assert second.to_yaml() == first.to_yaml()
    assert second.run_name == "1e-3"


def test_the_resolved_file_holds_every_default(write: Any) -> None:
    resolved = yaml.safe_load(load_config(write({"train": {**TRAIN, "obs_groups": {"actor": ["policy"]}}})).to_yaml())
    assert set(resolved) == {"env", "train", "learner", "network"}
    assert set(resolved["learner"]) == set(LearnerConfig.model_fields)
    assert resolved["learner"]["vtrace"] == {"rho_bar": 1.0, "c_bar": 1.0, "lam": None}
    assert set(resolved["network"]) == set(NetworkConfig.model_fields)


def test_defaults_of_the_training_dictionary_are_filled_in(write: Any) -> None:
    bare = {key: value for key, value in TRAIN.items() if key not in ("seed", "max_iterations", "save_interval")}
    config = load_config(write({"train": bare}))
    assert config.train == {**bare, "seed": 1, "max_iterations": 1000, "save_interval": 50}
    assert (config.seed, config.max_iterations, config.save_interval) == (1, 1000, 50)


def test_a_plain_rsl_rl_dictionary_is_taken_unchanged(write: Any) -> None:
    assert load_config(write({"train": TRAIN})).train == TRAIN


def test_a_short_name_of_our_own_is_saved_as_rsl_rl_can_import_it(write: Any) -> None:
    long = "appo_common.distributions:CategoricalDistribution"
    for name in ("CategoricalDistribution", long):
        train = copy.deepcopy(TRAIN)
        train["actor"]["distribution_cfg"] = {"class_name": name}
        config = load_config(write({"train": train}))
        assert config.train["actor"]["distribution_cfg"] == {"class_name": long}
        assert train["actor"]["distribution_cfg"] == {"class_name": name}
        assert yaml.safe_load(config.to_yaml())["train"]["actor"]["distribution_cfg"]["class_name"] == long


def test_the_callers_dictionary_is_not_touched() -> None:
    before = copy.deepcopy(TRAIN)
    config = RunConfig(train=TRAIN)
    assert structure_problems(TRAIN) == []
    assert class_problems(TRAIN) == []
    resolved_obs_groups(TRAIN, ["policy", "privileged"])
    config.training_dictionary()["algorithm"].pop("class_name")
    assert before == TRAIN
    assert config.train == before
    assert config.train["actor"] is not TRAIN["actor"]


def test_typed_access() -> None:
    config = RunConfig(train=TRAIN, env=EnvConfig(name="mujoco:quadruped-velocity"))
    assert (config.seed, config.max_iterations, config.num_steps, config.save_interval) == (42, 1500, 24, 100)
    assert (config.gamma, config.lam, config.vtrace_lam) == (0.98, 0.9, 0.9)
    assert (config.experiment_name, config.run_name) == ("anymal", "first")
    bare = RunConfig(train={**TRAIN, "experiment_name": "", "run_name": None}, env=config.env)
    assert (bare.experiment_name, bare.run_name) == ("quadruped-velocity", "")
    own = RunConfig(train=TRAIN, learner=LearnerConfig(vtrace=VTraceConfig(lam=0.5)))
    assert own.vtrace_lam == 0.5


def test_a_section_is_read_only() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        LearnerConfig().threads = 3


def test_sections_left_empty_take_their_defaults(write: Any) -> None:
    config = load_config(write(sections(env=None, learner=None, network=None)))
    assert (config.env, config.learner, config.network) == (EnvConfig(), LearnerConfig(), NetworkConfig())


def test_the_number_of_collectors_to_wait_for() -> None:
    assert LearnerConfig().required_collectors == 1
    assert LearnerConfig(local_collectors=3).required_collectors == 3
    assert LearnerConfig(local_collectors=3, min_collectors=2).required_collectors == 2


@pytest.mark.parametrize(
    "bind", ["tcp://127.0.0.1:0", "tcp://localhost:5555", "tcp://[::1]:65533", "tcp://127.1.2.3:1"]
)
def test_loopback_needs_no_permission(bind: str) -> None:
    assert NetworkConfig(bind=bind).bind == bind


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:5555", "tcp://[::]:5555", "tcp://localhost.example:1"])
def test_any_other_address_does(bind: str) -> None:
    with pytest.raises(ValidationError, match="--insecure"):
        NetworkConfig(bind=bind)
    assert NetworkConfig(bind=bind, insecure=True).bind == bind


@pytest.mark.parametrize("limits", [{"mode": "sync"}, {"max_in_flight": 1}])
def test_no_lag_at_all_is_possible_with_one_rollout_at_a_time(limits: dict[str, Any]) -> None:
    assert LearnerConfig(max_policy_lag=0, **limits).max_policy_lag == 0


@pytest.mark.parametrize(
    "name", ["PPO", "rsl_rl.algorithms:PPO", "rsl_rl.algorithms.ppo:PPO", "APPO", "appo_learner.appo:APPO"]
)
def test_ppo_and_appo_by_any_of_their_names(name: str) -> None:
    assert structure_problems({**TRAIN, "algorithm": {"class_name": name}}) == []


def test_the_users_own_classes_are_checked_by_their_own_signature(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my_robot_models.py").write_text(
        "from rsl_rl.models import MLPModel\n"
        "class Gated(MLPModel):\n"
        "    def __init__(self, obs, obs_groups, obs_set, output_dim, gates, distribution_cfg=None): ...\n"
        "class Open(MLPModel):\n"
        "    def __init__(self, *args, **kwargs): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    distribution = TRAIN["actor"]["distribution_cfg"]
    gated = {"class_name": "my_robot_models:Gated", "distribution_cfg": distribution}
    assert class_problems({**TRAIN, "actor": {**gated, "gates": 3}}) == []
    (problem,) = class_problems({**TRAIN, "actor": gated})
    assert (problem.key, problem.text.split(";")[0]) == ("actor.gates", "is missing")
    opened = {"class_name": "my_robot_models.Open", "anything": 1, "distribution_cfg": distribution}
    assert class_problems({**TRAIN, "actor": opened}) == []


def test_a_users_module_that_fails_to_import_is_an_error_not_a_traceback(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my_broken_models.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = class_problems({**TRAIN, "actor": {**TRAIN["actor"], "class_name": "my_broken_models:Net"}})
    assert "no licence" in problem.text


def test_keys_without_effect_are_told_with_the_reason() -> None:
    told = keys_without_effect({**TRAIN, "resume": True})
    assert "--resume" in told["resume"]
    assert "learner.device" in told["device"]
    assert "clip_actions" not in told


def test_missing_sets_fall_back_as_in_rsl_rl_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    train = {key: value for key, value in TRAIN.items() if key != "obs_groups"}
    with caplog.at_level(logging.INFO, logger="appo_common.train_config"):
        assert resolved_obs_groups(train, ["policy", "critic"]) == {"actor": ["policy"], "critic": ["critic"]}
    assert "'policy'" in caplog.text
    assert "'critic'" in caplog.text
    with pytest.raises(ConfigError, match=r"train.obs_groups.actor is missing.*camera, state"):
        resolved_obs_groups(train, ["state", "camera"])


def test_the_fallback_is_rsl_rls_own(recwarn: pytest.WarningsRecorder, capsys: Any) -> None:
    from rsl_rl.utils import resolve_obs_groups
    from tensordict import TensorDict

    given = {"critic": ["privileged"]}
    names = ["policy", "privileged"]
    theirs = resolve_obs_groups(TensorDict(dict.fromkeys(names, 0)), copy.deepcopy(given), ["actor", "critic"])
    assert resolved_obs_groups({"obs_groups": given}, names) == theirs


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_a_preset_loads_and_has_a_description(preset: Any) -> None:
    config = load_config(preset.name)
    assert preset.description
    assert config == load_config(str(preset.path))


def test_the_default_is_the_cartpole_preset() -> None:
    assert load_config() == load_config("cartpole-swingup")
    assert load_config().env.name == "mujoco:cartpole-swingup"


@pytest.mark.parametrize("module", ["config", "config_file", "train_config", "train_classes", "train_env"])
def test_importing_the_configuration_does_not_import_torch(module: str) -> None:
    code = f"import sys, appo_common.{module}; sys.exit(any(m in sys.modules for m in ('torch', 'rsl_rl')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
