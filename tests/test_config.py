from __future__ import annotations

import copy
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from appo_common.config import EnvConfig, LearnerConfig, NetworkConfig, RunConfig, VTraceConfig
from appo_common.config_file import list_presets, load_config
from appo_common.errors import ConfigError
from appo_common.spec import EnvSpec, ObservationGroup
from appo_common.train_classes import class_problems
from appo_common.train_config import (
    check_observation_groups,
    keys_without_effect,
    resolved_obs_groups,
    structure_problems,
)

# As rsl_rl.runners.OnPolicyRunner takes it, with the further keys of Isaac Lab's runner configuration.
TRAIN: dict[str, Any] = {
    "class_name": "OnPolicyRunner",
    "seed": 42,
    "device": "cuda:0",
    "num_steps_per_env": 24,
    "max_iterations": 1500,
    "save_interval": 100,
    "experiment_name": "anymal",
    "run_name": "first",
    "logger": "tensorboard",
    "wandb_project": "isaaclab",
    "neptune_project": "isaaclab",
    "resume": False,
    "load_run": ".*",
    "load_checkpoint": "model_.*.pt",
    "clip_actions": None,
    "check_for_nan": True,
    "torch_compile_mode": None,
    "obs_groups": {"actor": ["policy"], "critic": ["policy", "privileged"]},
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [128, 64],
        "activation": "elu",
        "obs_normalization": True,
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [128, -1], "activation": "elu"},
    "algorithm": {
        "class_name": "PPO",
        "num_learning_epochs": 5,
        "num_mini_batches": 4,
        "clip_param": 0.2,
        "gamma": 0.98,
        "lam": 0.9,
        "value_loss_coef": 1.0,
        "entropy_coef": 0.005,
        "learning_rate": 1.0e-3,
        "max_grad_norm": 1.0,
        "optimizer": "adam",
        "use_clipped_value_loss": True,
        "schedule": "adaptive",
        "desired_kl": 0.01,
        "normalize_advantage_per_mini_batch": False,
        "share_cnn_encoders": False,
        "rnd_cfg": None,
        "symmetry_cfg": None,
    },
}


def sections(**changes: Any) -> dict[str, Any]:
    """A valid file's content; keyword ``a__b=1`` sets ``a.b``, and the value ``...`` removes the key."""
    tree: dict[str, Any] = {
        "env": {"num_envs": 16},
        "train": copy.deepcopy(TRAIN),
        "learner": {},
        "network": {},
    }
    for name, value in changes.items():
        *path, last = name.split("__")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return tree


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def _write(content: dict[str, Any] | str, name: str = "robot.yaml") -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return str(path)

    return _write


def refusal(*arguments: Any, **keywords: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments, **keywords)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


WRONG_FILES = [
    # changes to a valid file; then key, value as shown, and remedy as they must stand in the message
    ({"learner__max_in_flight": -3}, "learner.max_in_flight", "-3", "from 1 to 16"),
    ({"learner__max_in_flight": 17}, "learner.max_in_flight", "17", "leave it out for the default, 2"),
    ({"learner__max_in_flight": "two"}, "learner.max_in_flight", '"two"', "a whole number"),
    ({"learner__max_in_flight": True}, "learner.max_in_flight", "true", "a whole number"),
    ({"learner__mode": "asinc"}, "learner.mode", '"asinc"', "async or sync"),
    ({"learner__max_polici_lag": 3}, "learner.max_polici_lag", "3", "did you mean 'max_policy_lag'"),
    ({"learner__gamma": 0.9}, "learner.gamma", "0.9", "did you mean train.algorithm.gamma"),
    ({"lerner": {"mode": "sync"}}, "lerner", '{"mode": "sync"}', "did you mean 'learner'"),
    ({"num_steps_per_env": 24}, "num_steps_per_env", "24", "did you mean train.num_steps_per_env"),
    ({"learner__batch_envs": 0}, "learner.batch_envs", "0", "a whole number above 0 or auto"),
    ({"learner__batch_envs": 65, "learner__local_collectors": 2}, "learner.batch_envs", "65", "at most 64"),
    ({"learner__batch_envs": 33, "learner__min_collectors": 1}, "learner.batch_envs", "33", "use auto"),
    ({"learner__batch_envs": 8, "learner__mode": "sync"}, "learner.batch_envs", "8", "use mode: async"),
    ({"learner__max_policy_lag": 0}, "learner.max_policy_lag", "0", "max_in_flight: 1"),
    ({"learner__vtrace": {"c_bar": 2.0}}, "learner.vtrace.c_bar", "2.0", "raise rho_bar"),
    ({"learner__vtrace": {"lam": 1.5}}, "learner.vtrace.lam", "1.5", "from 0 to 1"),
    ({"learner__checkpoint": {"keep_last": 0}}, "learner.checkpoint.keep_last", "0", "above 0"),
    ({"learner__checkpoint": 3}, "learner.checkpoint", "3", "a section of keys"),
    ({"learner__max_env_steps": -1}, "learner.max_env_steps", "-1", "above 0 or null"),
    ({"learner__device": "gpu"}, "learner.device", '"gpu"', "cuda:0"),
    ({"learner__log_interval_s": float("inf")}, "learner.log_interval_s", "Infinity", "above 0"),
    ({"env__num_envs": 0}, "env.num_envs", "0", "a whole number above 0"),
    ({"env__num_envs": 2.5}, "env.num_envs", "2.5", "a whole number above 0"),
    ({"env__overrides": [1]}, "env.overrides", "[1]", "a section of keys"),
    ({"env__name": ""}, "env.name", '""', "not empty"),
    ({"network__bind": "127.0.0.1:5555"}, "network.bind", '"127.0.0.1:5555"', "tcp://HOST:PORT"),
    ({"network__bind": "tcp://127.0.0.1:65534"}, "network.bind", '"tcp://127.0.0.1:65534"', "to 65533"),
    ({"network__bind": "tcp://0.0.0.0:5555"}, "network.bind", '"tcp://0.0.0.0:5555"', "--insecure"),
    (
        {"network__bind": "tcp://0.0.0.0:5555"},
        "network.bind",
        "0.0.0.0",
        "neither encrypted nor authenticated",
    ),
    ({"network__heartbeat_timeout_s": 2.0}, "network.heartbeat_timeout_s", "2.0", "lower the interval"),
    (
        {"network__max_collectors": 1, "learner__min_collectors": 2},
        "network.max_collectors",
        "1",
        "at least 2",
    ),
    ({"train__seed": -1}, "train.seed", "-1", "0 or more"),
    ({"train__num_steps_per_env": 0}, "train.num_steps_per_env", "0", "above 0"),
    ({"train__num_steps_per_env": 24.0}, "train.num_steps_per_env", "24.0", "a whole number"),
    ({"train__max_iteration": 5}, "train.max_iteration", "5", "did you mean 'max_iterations'"),
    ({"train__policy": {}}, "train.policy", "{}", "under actor"),
    ({"train__run_name": 7}, "train.run_name", "7", "text"),
    ({"train__obs_groups": {"critic": []}}, "train.obs_groups.critic", "[]", "e.g. [policy]"),
    ({"train__obs_groups": {"critic": "policy"}}, "train.obs_groups.critic", '"policy"', "must be a list"),
    (
        {"train__obs_groups": {"acter": ["policy"]}},
        "train.obs_groups.acter",
        '["policy"]',
        "did you mean 'actor'",
    ),
    ({"train__actor": "MLPModel"}, "train.actor", '"MLPModel"', "a section with class_name"),
    (
        {"train__actor__class_name": "MLPModl"},
        "train.actor.class_name",
        '"MLPModl"',
        "did you mean 'MLPModel'",
    ),
    ({"train__actor__class_name": "RNNModel"}, "train.actor.class_name", '"RNNModel"', "use MLPModel"),
    ({"train__actor__class_name": "PPO"}, "train.actor.class_name", '"PPO"', "must be a model"),
    ({"train__actor__hiden_dims": [3]}, "train.actor.hiden_dims", "[3]", "did you mean 'hidden_dims'"),
    ({"train__actor__hidden_dims": [64, 0]}, "train.actor.hidden_dims", "[64, 0]", "layer widths above 0"),
    ({"train__actor__activation": "rely"}, "train.actor.activation", '"rely"', "Valid activations"),
    ({"train__actor__obs_set": "x"}, "train.actor.obs_set", '"x"', "remove it"),
    (
        {"train__critic__class_name": "os:nothing"},
        "train.critic.class_name",
        '"os:nothing"',
        "package.module:Class",
    ),
    (
        {"train__actor__distribution_cfg__init_sdt": 1.0},
        "train.actor.distribution_cfg.init_sdt",
        "1.0",
        "did you mean 'init_std'",
    ),
    (
        {"train__actor__distribution_cfg__class_name": "MLPModel"},
        "train.actor.distribution_cfg.class_name",
        '"MLPModel"',
        "GaussianDistribution",
    ),
    ({"train__algorithm__gama": 0.9}, "train.algorithm.gama", "0.9", "did you mean 'gamma'"),
    ({"train__algorithm__gamma": 1.1}, "train.algorithm.gamma", "1.1", "from 0 to 1"),
    ({"train__algorithm__learning_rate": 0}, "train.algorithm.learning_rate", "0", "above 0"),
    ({"train__algorithm__schedule": "cosine"}, "train.algorithm.schedule", '"cosine"', "adaptive or fixed"),
    ({"train__algorithm__optimizer": "lion"}, "train.algorithm.optimizer", '"lion"', "Valid optimizers"),
    ({"train__algorithm__num_mini_batches": 385}, "train.algorithm.num_mini_batches", "385", "at most 384"),
    ({"train__algorithm__class_name": "SAC"}, "train.algorithm.class_name", '"SAC"', "must be APPO, or PPO"),
    (
        {"train__algorithm__rnd_cfg": {"weight": 1}},
        "train.algorithm.rnd_cfg",
        '{"weight": 1}',
        "does not support",
    ),
    ({"train__algorithm__symmetry_cfg": {}}, "train.algorithm.symmetry_cfg", "{}", "does not support"),
    ({"train__algorithm__device": "cpu"}, "train.algorithm.device", '"cpu"', "remove it"),
]


@pytest.mark.parametrize(("changes", "key", "value", "remedy"), WRONG_FILES, ids=lambda item: str(item)[:60])
def test_a_wrong_file_is_refused_with_file_key_value_and_remedy(
    write: Any, changes: dict[str, Any], key: str, value: str, remedy: str
) -> None:
    path = write(sections(**changes))
    (line,) = refusal(path)
    assert line.startswith(f"{path}: {key} = ")
    assert value in line
    assert remedy in line


@pytest.mark.parametrize(
    ("changes", "key", "remedy"),
    [
        ({"train": ...}, "train", "training dictionary"),
        ({"train__num_steps_per_env": ...}, "train.num_steps_per_env", "e.g. 24"),
        ({"train__critic": ...}, "train.critic", "add a section"),
        ({"train__algorithm__class_name": ...}, "train.algorithm.class_name", "name the class"),
        ({"train__actor__distribution_cfg": ...}, "train.actor.distribution_cfg", "add a section"),
    ],
)
def test_a_missing_key_is_named(write: Any, changes: dict[str, Any], key: str, remedy: str) -> None:
    path = write(sections(**changes))
    (line,) = refusal(path)
    assert line.startswith(f"{path}: {key} is missing; ")
    assert remedy in line


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("env:\n  name: [a\n", ["line 3, column 1", "check indentation"]),
        ("env:\n  name: a\n   num_envs: 3\n", ["line 3, column 12", "mapping values are not allowed"]),
        ("- env\n- train\n", ['["env", "train"]', "must hold sections: env, train, learner, network"]),
        ("train: &t\n  actor: *t\n", ["line 1, column 8", "cannot contain itself"]),
        ("env: {}\n---\nenv: {}\n", ["line 2, column 1", "another document"]),
        ("env: !!python/object:os.system {}\n", ["line 1, column 6", "could not determine a constructor"]),
        ("", ["train is missing"]),
    ],
)
def test_a_file_that_is_not_a_yaml_mapping_is_refused(write: Any, text: str, parts: list[str]) -> None:
    path = write(text)
    (line,) = refusal(path)
    assert line.startswith(path)
    assert all(part in line for part in parts), line


def test_keys_that_are_not_text_are_refused(write: Any) -> None:
    # YAML 1.1 reads the bare key ``on`` as true
    path = write(yaml.safe_dump(sections(), sort_keys=False).replace("num_envs: 16", "overrides: {on: 1}") + "7: x\n")
    top, inner = sorted(refusal(path))
    assert "put it in quotes" in top
    assert "put it in quotes" in inner
    assert "env.overrides" in inner + top


def test_keys_given_twice_are_refused_and_all_reported(write: Any) -> None:
    text = yaml.safe_dump(sections(), sort_keys=False)
    path = write(text.replace("learner: {}", "learner:\n  mode: sync\n  mode: async\n  threads: 1\n  threads: 2"))
    lines = refusal(path)
    assert len(lines) == 2
    assert "key 'mode' appears twice, first on line" in lines[0]
    assert "key 'threads' appears twice" in lines[1]
    assert lines[0].startswith(f"{path}: line ")


def test_merge_keys_are_no_duplicates(write: Any) -> None:
    text = yaml.safe_dump({"train": TRAIN}, sort_keys=False).replace("critic:\n    class", "critic: &model\n    class")
    path = write(text + "env:\n  overrides:\n    a: &a {x: 1}\n    b: {<<: *a, x: 2}\n")
    assert load_config(path).env.overrides["b"] == {"x": 2}


def test_setting_a_key_leaves_the_alias_of_its_section_alone(write: Any) -> None:
    text = yaml.safe_dump(sections()).replace("num_envs: 16", "overrides: {a: &a {x: 1}, b: *a}")
    config = load_config(write(text), ["env.overrides.a.x=2"])
    assert config.env.overrides == {"a": {"x": 2}, "b": {"x": 1}}


def test_a_missing_file_names_the_nearest_preset(tmp_path: Path) -> None:
    assert "did you mean 'cartpole-swingup'" in refusal("cartpole-swing")[0]
    assert "no such file or preset" in refusal(str(tmp_path / "none.yaml"))[0]
    assert "cannot be read" in refusal(str(tmp_path))[0]


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("env: {name: möve}".encode("latin-1"))
    assert "UTF-8" in refusal(str(path))[0]


def test_all_errors_are_reported_together(write: Any) -> None:
    path = write(
        sections(
            learner__max_in_flight=-3,
            learner__mode="sync",
            learner__batch_envs=8,
            network__bind="tcp://0.0.0.0:1",
            network__heartbeat_timeout_s=1.0,
            network__max_collectors=1,
            learner__min_collectors=2,
            train__algorithm__gamma=2,
            train__algorithm__lam="x",
            train__algorithm__gama=1,
            train__actor__class_name="Nothing",
            env__nam="x",
        )
    )
    lines = refusal(path, ["learner.threads=0", "oops"], {"train.seed": ("--seed", -1)})
    keys = sorted(line.split(": ")[1].split(" = ")[0] for line in lines)
    assert keys == sorted(
        [
            "env.nam",
            "learner.batch_envs",
            "learner.max_in_flight",
            "learner.threads",
            "must be KEY=VALUE with a dotted key, e.g. --set train.algorithm.learning_rate=1e-3",
            "network.bind",
            "network.heartbeat_timeout_s",
            "network.max_collectors",
            "train.actor.class_name",
            "train.algorithm.gama",
            "train.algorithm.gamma",
            "train.algorithm.lam",
            "train.seed",
        ]
    )


def test_rules_are_checked_beside_a_training_dictionary_with_a_key_missing(write: Any) -> None:
    path = write(sections(train__critic=..., train__num_steps_per_env=0, network__max_collectors=1))
    lines = refusal(path, ["learner.min_collectors=2"])
    keys = sorted(line.removeprefix("--set: ").removeprefix(f"{path}: ").split()[0] for line in lines)
    assert keys == ["network.max_collectors", "train.critic", "train.num_steps_per_env"]


def test_a_rule_does_not_judge_the_default_of_a_wrong_value(write: Any) -> None:
    lines = refusal(write(sections(env__num_envs="many", learner__batch_envs=500, learner__min_collectors=1)))
    assert [line.split(": ")[1] for line in lines] == ['env.num_envs = "many"']


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("learner.max_in_flight=-3", ["--set: learner.max_in_flight = -3", "from 1 to 16"]),
        ("learner.modus=sync", ["--set: learner.modus", '"sync"', "did you mean 'mode'"]),
        ("train.algorithm.clip=0.1", ["--set: train.algorithm.clip = 0.1", "unknown argument of PPO"]),
        ("learner.vtrace={rho_bar: -1}", ["--set: learner.vtrace.rho_bar = -1", "above 0"]),
        ("env.num_envs.x=1", ["--set: env.num_envs.x = 1", "env.num_envs is 16, not a section"]),
        ("learner.mode.x=1", ["--set: learner.mode", "async or sync"]),
        ("learner.mode", ["--set learner.mode: must be KEY=VALUE"]),
        ("=3", ["--set =3: must be KEY=VALUE"]),
        ("learner..mode=3", ["--set learner..mode=3: must be KEY=VALUE"]),
        ("env.overrides={a: 1, a: 2}", ["--set env.overrides={a: 1, a: 2}", "key 'a' appears twice"]),
        ("train.run_name=[x", ["--set train.run_name=[x", "not YAML"]),
    ],
)
def test_a_wrong_assignment_is_refused(write: Any, assignment: str, parts: list[str]) -> None:
    (line,) = refusal(write(sections()), [assignment])
    assert all(part in line for part in parts), line


def test_an_option_is_named_in_its_own_error(write: Any) -> None:
    (line,) = refusal(write(sections()), options={"network.bind": ("--bind", "tcp://*:1")})
    assert line.startswith('--bind: network.bind = "tcp://*:1": ')


def test_the_place_is_what_broke_the_rule_where_the_key_itself_is_a_default(write: Any) -> None:
    (line,) = refusal(write(sections()), ["learner.vtrace.rho_bar=0.5"])
    assert line.startswith("--set: learner.vtrace.c_bar = 1.0: must be at most rho_bar = 0.5")
    (line,) = refusal(write(sections()), options={"learner.local_collectors": ("--local-collectors", 999)})
    assert line.startswith("--local-collectors: network.max_collectors = 256: must be at least 999")


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


SPEC = EnvSpec(
    name="mujoco:quadruped-velocity",
    observations={"policy": ObservationGroup(shape=[45]), "privileged": ObservationGroup(shape=[12])},
    num_actions=12,
    num_envs=16,
)


def test_observation_groups_of_the_environment_are_accepted() -> None:
    check_observation_groups(RunConfig(train=TRAIN), SPEC)


def test_observation_groups_that_the_environment_lacks_are_refused() -> None:
    groups = {"actor": ["polcy"], "critic": ["policy", "camera"]}
    with pytest.raises(ConfigError) as caught:
        check_observation_groups(RunConfig(train={**TRAIN, "obs_groups": groups}), SPEC, "robot.yaml")
    actor, critic = str(caught.value).splitlines()
    assert actor.startswith("robot.yaml: train.obs_groups.actor = ['polcy']: mujoco:quadruped-velocity offers no")
    assert "did you mean 'policy'" in actor
    assert "train.obs_groups.critic" in critic
    assert "only policy, privileged" in critic


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


@pytest.mark.parametrize("module", ["config", "config_file", "train_config", "train_classes"])
def test_importing_the_configuration_does_not_import_torch(module: str) -> None:
    code = f"import sys, appo_common.{module}; sys.exit(any(m in sys.modules for m in ('torch', 'rsl_rl')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
