from __future__ import annotations

import numpy as np
import pytest
from helpers_mujoco import BACKENDS, Bead, bead_model

from appo_collector.envs.native import offscreen
from appo_collector.envs.native.physics import Physics
from appo_common.errors import EnvironmentFault


def test_render_draws_the_asked_environment() -> None:
    env = Bead(num_envs=2)
    env.reset(seed=0)
    ball = env.render(env=0, width=96, height=64)
    assert (ball.shape, ball.dtype) == ((64, 96, 3), np.dtype(np.uint8))
    nothing = env.render(env=1, width=96, height=64)  # ten metres away, out of the picture
    assert ball[32, 48].max() > 60, "the ball is in the middle"
    assert ball[32, 48, 0] > ball[32, 48, 2], "and it is orange"
    assert nothing.max() == 0
    assert env.render(env=0, width=48, height=32).shape == (32, 48, 3)
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("several", [False, True])
def test_render_draws_the_environments_own_model(
    backend: type[Physics], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bead, "physics", backend)
    env = Bead(num_envs=2, model=[bead_model(1.0), bead_model(2.0)] if several else None)
    env.reset(seed=0)
    env.qpos[:] = 0.0
    env.set_model_field("geom_rgba", np.array([1]), [[[0.1, 0.2, 1.0, 1.0]]])
    env.set_model_field("geom_size", np.array([1]), [0.4, 0.0, 0.0])
    orange, blue = (env.render(env=index, width=96, height=64) for index in (0, 1))
    assert orange[32, 48, 0] > orange[32, 48, 2]
    assert blue[32, 48, 2] > blue[32, 48, 0]
    assert (blue.max(axis=2) > 0).sum() > 3 * (orange.max(axis=2) > 0).sum() > 0, "twice the radius"
    env.close()


def test_a_model_without_the_camera_is_seen_by_its_free_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bead, "camera", "nowhere")
    env = Bead(num_envs=1)
    env.reset(seed=0)
    assert env.render(width=96, height=64).max() > 60
    env.close()


def test_the_backend_is_the_one_asked_for_or_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert offscreen.backend_name() == "osmesa"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(offscreen.sys, "platform", "linux")
    monkeypatch.setattr(offscreen, "_loads", lambda library: library.startswith("libOSMesa"))
    assert offscreen.backend_name() == "osmesa"
    monkeypatch.setattr(offscreen, "_loads", lambda library: True)
    assert offscreen.backend_name() == "egl"


def test_without_a_backend_the_packages_to_install_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(offscreen.sys, "platform", "linux")
    monkeypatch.setattr(offscreen, "_LIBRARIES", {"egl": ("libNoSuchThing.so.1",)})
    env = Bead(num_envs=1)
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="apt-get install libegl1"):
        env.render()
