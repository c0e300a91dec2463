"""What is wrong with a configuration is refused, with the place, the key, the value and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers_config import sections, writer

from appo_common.config_file import load_config
from appo_common.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Any:
    return writer(tmp_path)


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
    ({"train__seed": -1}, "train.seed", "-1", "from 0 to"),
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
