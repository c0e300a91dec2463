"""The physics of the native tasks against a plain loop over one MjData per environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from helpers_mujoco import BACKENDS, Bead, bead_model, push

from appo_collector.envs.native.backend import best_physics
from appo_collector.envs.native.mujoco_task import load_asset
from appo_collector.envs.native.physics import Physics
from appo_collector.envs.native.physics_rollout import RolloutPhysics
from appo_common.errors import ConfigError, EnvironmentFault

# Contacts and joint limits, Newton's solver warm-started: what a cold start would compute differently.
WALKER = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="9 9 .1"/>
    <body name="torso" pos="0 0 .6">
      <freejoint/>
      <geom type="capsule" size=".06" fromto="-.2 0 0 .2 0 0" mass="{mass}"/>
      <site name="torso"/>
      <body name="leg" pos="-.2 0 0">
        <joint name="hip" axis="0 1 0" range="-.8 .8" damping=".2"/>
        <geom type="capsule" size=".04" fromto="0 0 0 0 0 -.4"/>
        <body name="foot" pos="0 0 -.4">
          <joint name="ankle" axis="0 1 0" range="-1 .2"/><geom type="capsule" size=".04" fromto="0 0 0 .3 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="hip" gear="30"/><general joint="ankle" dyntype="filter" dynprm=".05" gainprm="20"/></actuator>
  <sensor><accelerometer site="torso"/><jointpos joint="ankle"/></sensor>
</mujoco>
"""
ENVS, SKIP = 5, 4
needs_batch = pytest.mark.skipif(best_physics() is RolloutPhysics, reason="takes mujoco>=3.17")


def walker(mass: float = 3.0) -> mujoco.MjModel:
    model = mujoco.MjModel.from_xml_string(WALKER.format(mass=mass))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
    return model


class Loop:
    """The reference: one MjData per environment, each on a model of its own."""

    def __init__(self, models: list[mujoco.MjModel]) -> None:
        self.models = models
        self.datas = [mujoco.MjData(model) for model in models]

    def start(self, row: int, qvel: np.ndarray) -> None:
        model, data = self.models[row], self.datas[row]
        mujoco.mj_resetData(model, data)
        data.qvel[:] = qvel
        mujoco.mj_forward(model, data)

    def step(self, control: np.ndarray) -> None:
        for model, data, values in zip(self.models, self.datas, control, strict=True):
            data.ctrl[:] = values
            mujoco.mj_step(model, data, nstep=SKIP)

    def __getattr__(self, name: str) -> np.ndarray:
        return np.stack([getattr(data, name) for data in self.datas])


def start(physics: Physics, loop: Loop, rows: np.ndarray, rng: np.random.Generator) -> None:
    physics.reset(rows)
    physics.qvel[rows] = rng.normal(size=(len(rows), physics.qvel.shape[1]))
    physics.forward(rows)
    for row in rows:
        loop.start(row, physics.qvel[row])


def compare(physics: Physics, loop: Loop, steps: int, fields: dict[str, np.ndarray]) -> None:
    """Play both with resets here and there; every number must be the same in every bit."""
    rng = np.random.default_rng(0)
    start(physics, loop, np.arange(ENVS), rng)
    for step in range(steps):
        control = rng.uniform(-1, 1, (ENVS, loop.models[0].nu))
        assert physics.step(control, SKIP).all()
        loop.step(control)
        if step % 23 == 22:
            start(physics, loop, np.flatnonzero(rng.uniform(size=ENVS) < 0.5), rng)
        for name, values in {"qpos": physics.qpos, "qvel": physics.qvel, "act": physics.act, **fields}.items():
            np.testing.assert_array_equal(values, getattr(loop, name), err_msg=f"{name} at step {step}")


@needs_batch
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_batch_equals_a_loop_of_mj_step_bit_for_bit(threads: int) -> None:
    physics = best_physics()([walker()], ENVS, threads)
    names = ("sensordata", "qacc_warmstart", "xpos", "site_xpos", "qfrc_constraint", "time")
    fields = {name: physics.data_field(name) for name in names}
    np.testing.assert_array_equal(physics.sensors, fields["sensordata"])
    compare(physics, Loop([walker()] * ENVS), 290, fields)
    assert np.abs(fields["qfrc_constraint"]).max() > 1.0, "something touches something"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("asset", ["cartpole.xml", "quadruped.xml"])
def test_bundled_models_equal_the_loop_on_every_backend(asset: str, backend: type[Physics]) -> None:
    """They switch warm starting off, so that old and new MuJoCo give the same trajectories."""
    model = load_asset(asset)
    physics = backend([model], ENVS, 2)
    compare(physics, Loop([model] * ENVS), 100, {"sensordata": physics.sensors})
    physics.close()


@needs_batch
def test_contact_forces_are_those_of_rne_post_constraint() -> None:
    """An accelerometer makes mj_step compute ``cfrc_ext``, which takes an extra call otherwise."""
    physics, loop = best_physics()([walker()], ENVS, 1), Loop([walker()] * ENVS)
    forces = physics.data_field("cfrc_ext")
    rng = np.random.default_rng(1)
    start(physics, loop, np.arange(ENVS), rng)
    for _ in range(100):
        control = rng.uniform(-1, 1, (ENVS, 2))
        physics.step(control, SKIP)
        loop.step(control)
        for data in loop.datas:
            mujoco.mj_rnePostConstraint(loop.models[0], data)
        np.testing.assert_array_equal(forces, loop.cfrc_ext)
    assert np.abs(forces).max() > 1.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("several", [False, True])
def test_a_heavier_body_moves_as_in_a_model_compiled_with_that_mass(backend: type[Physics], several: bool) -> None:
    """Mass and inertia are written; weights in the default pose, which the solver needs, follow by mj_setConst."""
    masses = [3.0, 3.0, 7.5, 3.0, 1.25]
    physics = backend([walker(), walker()] if several else [walker()], ENVS, 1)
    compiled = backend([walker(mass) for mass in masses], ENVS, 1)
    changed = np.array([2, 4])
    for name in ("body_mass", "body_inertia"):
        wanted = np.stack([getattr(walker(masses[row]), name) for row in changed])
        physics.set_model_field(name, changed, wanted)
    rng = np.random.default_rng(0)
    for each in (physics, compiled):
        each.reset(np.arange(ENVS))
        each.forward(np.arange(ENVS))
    for name in ("body_mass", "body_inertia", "dof_invweight0", "body_subtreemass"):
        np.testing.assert_array_equal(physics.model_field(name), compiled.model_field(name))
    for _ in range(100):
        control = rng.uniform(-1, 1, (ENVS, 2))
        physics.step(control, SKIP)
        compiled.step(control, SKIP)
    np.testing.assert_array_equal(physics.qpos, compiled.qpos)
    assert len(np.unique(physics.qpos[:, 2])) == ENVS
    np.testing.assert_array_equal(physics.model_of(4).body_mass, walker(1.25).body_mass)


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_models_are_dealt_in_turns(backend: type[Physics], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bead, "physics", backend)
    env = Bead(num_envs=5, model=[bead_model(1.0), bead_model(2.0)])
    env.reset(seed=0)
    push(env, 1.0, 1.0, 1.0, 1.0, 1.0)
    np.testing.assert_allclose(env.qvel[:, 0], [0.2, 0.1, 0.2, 0.1, 0.2])
    assert env.model_field("body_mass")[:, 1].tolist() == [1, 2, 1, 2, 1]


def test_models_that_do_not_fit_together_are_named() -> None:
    fast = bead_model()
    fast.opt.timestep = 0.05
    with pytest.raises(ConfigError, match=r"same time step: 0\.1 s in model 0 and 0\.05 s in model 1"):
        Bead(model=[bead_model(), fast])
    with pytest.raises(ConfigError, match=r"same sizes: nq is 1 in model 0 and 9 in model 1"):
        Bead(model=[bead_model(), walker()])
    if best_physics() is not RolloutPhysics:  # MuJoCo checks once more, in case it has sizes that we do not know
        with pytest.raises(ConfigError, match=r"cannot run in one batch: mjb_setModels: model 1"):
            best_physics()([bead_model(), walker()], 2, 1)
    for count in (0, 4):
        with pytest.raises(ConfigError, match=rf"{count} models for env\.num_envs = 3"):
            Bead(model=[bead_model()] * count)


class Randomised(Bead):
    """Every episode has a mass of its own: 1 kg, 2 kg, 3 kg, ..."""

    def _randomize(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        self.set_model_field("body_mass", rows, np.outer(self.starts[rows] + 1.0, [0.0, 1.0]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_each_episode_runs_on_what_its_randomisation_wrote(
    backend: type[Physics], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Randomised, "physics", backend)
    env = Randomised(num_envs=3, threads=threads, reach=0.02)
    env.reset(seed=0)
    push(env, 1.0, 0.0, 0.0)  # the first one ends
    np.testing.assert_array_equal(env.model_field("body_mass")[:, 1], [2, 1, 1])
    step = push(env, 3.0, 0.0, 0.5)
    np.testing.assert_allclose(step.reward, [0.5 + 0.3, 0.5, 0.5 + 0.1], rtol=1e-6)
    np.testing.assert_array_equal(env.model.body_mass, [0, 1])  # the given model is never written
    env.set_model_field("opt.gravity", np.array([1]), [-0.5, 0.0, 0.0])
    np.testing.assert_allclose(push(env, 0.0, 0.0, 0.0).obs["policy"][1, 1], -0.1, rtol=1e-6)
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["body_mas", "opt.timestep", "nq", "no.such"])
def test_a_model_field_that_does_not_exist_is_named(
    name: str, backend: type[Physics], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bead, "physics", backend)
    env = Bead()
    hint = "; did you mean 'body_mass'" if name == "body_mas" else ""
    for use in (lambda: env.model_field(name), lambda: env.set_model_field(name, np.array([0]), 1.0)):
        with pytest.raises(EnvironmentFault, match=f"model field '{name}' is no array of mujoco.MjModel{hint}"):
            use()


@needs_batch
def test_data_fields_are_asked_for_before_the_first_reset() -> None:
    env = Bead()
    place = env.data_field("xpos")
    env.reset(seed=0)
    np.testing.assert_array_equal(place[:, 1, 0], [0, 10, 20])
    push(env, 1.0, 0.0, 0.0)
    assert place[0, 1, 0] == pytest.approx(0.01), "one physics step behind, as with mj_step"
    assert env.data_field("xpos") is place
    env.data_field("qfrc_applied")[:] = 1.0  # state may be written at any time
    assert push(env, 0.0, 0.0, 0.0).obs["policy"][2, 1] == pytest.approx(0.2)
    with pytest.raises(EnvironmentFault, match=r"'site_xpos': ask for it in the task's __init__"):
        env.data_field("site_xpos")
    with pytest.raises(EnvironmentFault, match=r"xposs is not an MjData array field .*'xpos'"):
        env.data_field("xposs")


@needs_batch
def test_an_error_of_mujoco_loses_its_own_simulation_alone() -> None:
    """Boxes in the floor need more memory than boxes in the air. With too little of it MuJoCo drops contacts and
    warns; in a narrow range it raises an error instead, which is searched for here."""
    boxes = "".join(f'<body pos="{x / 4} 0 2"><freejoint/><geom type="box" size=".1 .1 .1"/></body>' for x in range(8))
    scene = f'<worldbody><geom type="plane" size="5 5 1"/>{boxes}</worldbody>'
    everyone = np.arange(3)
    for kilobytes in range(90, 130):
        model = mujoco.MjModel.from_xml_string(f'<mujoco><size memory="{kilobytes}K"/>{scene}</mujoco>')
        physics = best_physics()([model], 3, 1)
        physics.reset(everyone)
        physics.forward(everyone)
        physics.qpos[1, 2::7] = 0.05
        healthy = physics.step(np.zeros((3, 0)), 4)
        np.testing.assert_allclose(physics.time, np.where(healthy, 4 * 0.002, 0.0))
        if any("MuJoCo raised in 1 of 3" in text for text in physics.warnings):
            assert healthy.tolist() == [True, False, True]
            np.testing.assert_array_equal(physics.qpos[1], model.qpos0)
            physics.qpos[1, 2::7] = 0.05
            with pytest.raises(EnvironmentFault, match="could not be started: MuJoCo raised"):
                physics.forward(everyone)
            return
    pytest.fail("no size of memory made MuJoCo raise an error")


def test_with_an_older_mujoco_data_fields_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bead, "physics", RolloutPhysics)
    with pytest.raises(ConfigError, match=r"'xpos', which takes mujoco>=3\.17; installed is .*pip install 'mujoco>=3"):
        Bead().data_field("xpos")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_warning_handler_of_the_user_stays_in_charge(
    backend: type[Physics], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Bead, "physics", backend)
    heard: list[str] = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        env = Bead()
        env.reset(seed=0)
        env.qvel[1] = np.nan
        assert push(env, 0.0, 0.0, 0.0).terminated.tolist() == [False, True, False]
    finally:
        mujoco.set_mju_user_warning(None)
    assert any("QVEL" in text for text in heard)
