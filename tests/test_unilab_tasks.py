"""Declarations of UniLab's tasks, as far as they need no UniLab."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from appo_collector.envs.adapters.unilab_tasks import located, merged
from appo_collector.envs.registry import make_env
from appo_common.errors import ConfigError


def test_overrides_reach_into_the_declaration_and_leave_it_as_it_was() -> None:
    declared = {"rewards": {"fall": {"weight": -1.0}, "calm": None}, "sim_dt": 0.01}
    assert merged(declared, {"rewards": {"fall": {"weight": -2.0}, "lift": {"weight": 1.0}}, "ctrl_dt": 0.02}) == {
        "rewards": {"fall": {"weight": -2.0}, "calm": None, "lift": {"weight": 1.0}},
        "sim_dt": 0.01,
        "ctrl_dt": 0.02,
    }
    assert declared == {"rewards": {"fall": {"weight": -1.0}, "calm": None}, "sim_dt": 0.01}


def test_paths_into_a_clone_lead_to_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    declared = {"scene": {"model_file": "src/unilab/assets/go2.xml", "parts": ["src/unilab/a.xml", "b.xml", 3]}}
    assert located(declared, Path("/lib/unilab")) == {
        "scene": {"model_file": "/lib/unilab/assets/go2.xml", "parts": ["/lib/unilab/a.xml", "b.xml", 3]}
    }
    (tmp_path / "src" / "unilab").mkdir(parents=True)  # in a clone of UniLab, its own file is meant
    (tmp_path / "src" / "unilab" / "a.xml").write_text("<mujoco/>")
    assert located("src/unilab/a.xml", Path("/lib/unilab")) == "src/unilab/a.xml"


def test_without_unilab_the_command_that_installs_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unilab", None)  # not importable
    for module in [name for name in sys.modules if name.startswith("unilab.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=r"'unilab:go2_joystick_flat' needs the package unilab.*'appo\[unilab\]'"):
        make_env("unilab:go2_joystick_flat", 1, {}, 1)
