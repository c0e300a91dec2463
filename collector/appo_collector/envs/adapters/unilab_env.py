"""UniLab's environments in the contract."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from appo_collector.envs.adapters.rsl_rl_env import seed_globally
from appo_collector.envs.adapters.torch_arrays import as_array, as_groups, describe
from appo_collector.envs.adapters.unilab_tasks import declaration
from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_collector.envs.extras import missing, require
from appo_common.errors import ConfigError, EnvironmentFault
from appo_common.spec import EnvSpec

_OURS = {"seed": "train.seed", "auto_reset": "the adapter"}
"""Options that are set elsewhere, and where."""


def from_task(task: str, num_envs: int, threads: int, overrides: dict[str, Any]) -> UniLabEnv:
    """Make ``num_envs`` environments of a task through UniLab's registry; ``threads`` threads step the physics.

    ``task`` is one that UniLab's configuration files declare (``go2_joystick_flat``), or a name in its registry whose
    configuration is complete without a file. ``overrides`` are merged into the declaration, except for
    ``sim_backend`` (mujoco) and ``algo`` (ppo: whose files declare the task).
    Raises ConfigError where UniLab is not installed, for an unknown task, and for overrides that UniLab refuses;
    EnvironmentFault where the environment cannot be built.
    """
    name = f"unilab:{task}"
    registry = require("unilab.base.registry", "unilab", name)
    for key in overrides.keys() & _OURS:
        raise ConfigError(f"env.overrides.{key}: it belongs to {_OURS[key]}, not to overrides")
    registry.ensure_registries()
    declared = declaration(registry, task, overrides)
    make = partial(registry.make, declared.registered, sim_backend=declared.backend, num_envs=num_envs)
    return UniLabEnv(make, name, threads, declared.options)


class UniLabEnv(VectorEnv):
    """N environments of one ``unilab.base.torch_env.TorchEnv``.

    UniLab resets in the step that ends an episode and keeps the observations from before: all ends are exact. The
    groups are UniLab's, ``obs`` and, where the task declares it, ``critic``.
    """

    def __init__(self, make: Callable[..., Any], name: str, threads: int, options: dict[str, Any]) -> None:
        """Build it once to read its spec; :meth:`reset` builds it anew, since what starts up is random, too.

        ``make`` takes UniLab's ``env_cfg_override``. Raises ConfigError and EnvironmentFault as :func:`from_task`.
        """
        self._make = make
        self._name = name
        self._threads = threads
        self._options = options
        self._env = self._build({})
        self._seeded = hasattr(self._env.cfg, "seed")
        cfg, space = self._env.cfg, self._env.action_space
        bounded = bool(np.isfinite([space.low, space.high]).any())
        terms = tuple(_metadata(self._env, "reward_component_names"))
        # The components are rates where the reward is scaled by the time step.
        self._term_scale = float(cfg.ctrl_dt) if getattr(cfg, "scale_rewards_by_dt", False) else 1.0
        self.spec = EnvSpec(
            name=name,
            observations=describe({key: np.zeros((1, size), "f4") for key, size in self._env.obs_groups_spec.items()}),
            num_actions=int(space.shape[0]),
            action_low=space.low.astype(float).tolist() if bounded else [],
            action_high=space.high.astype(float).tolist() if bounded else [],
            num_envs=int(self._env.num_envs),
            episode_limit=None,  # a task may have ends by time of other kinds than its limit
            step_dt=float(cfg.ctrl_dt),
            reward_terms=list(terms),
            action_names=_action_names(self._env),
        )

    def reset(self, seed: int) -> Observations:
        """Build the environments anew from ``seed`` and start their first episodes, at random ages as UniLab does."""
        self.close()
        if not self._seeded:
            seed_globally(seed)
        self._env = self._build({"seed": seed} if self._seeded else {})
        with torch.no_grad():
            state = self._env.init_state()
        self._ages = as_array(state.info["steps"], "int64")
        return as_groups(state.obs, self._name)

    def ages(self) -> np.ndarray:
        """Return ``[N]`` int: how many steps UniLab counts as gone by before the first episodes."""
        return self._ages

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``[N, A]`` float32 actions; see :class:`VectorEnv`."""
        with torch.no_grad():
            state = self._env.step(torch.tensor(actions, dtype=torch.float32, device=self._env.device))
        terminated, truncated = as_array(state.terminated, "bool"), as_array(state.truncated, "bool")
        obs = as_groups(state.obs, self._name)
        ended = np.flatnonzero(terminated | truncated)
        final = {key: array[ended] for key, array in obs.items()}
        if ended.size:
            if state.final_observation is None:
                raise EnvironmentFault(f"{self._name}: it ended an episode without a final_observation")
            kept = as_groups(state.final_observation, self._name)
            final = {key: array[ended] for key, array in kept.items()}
        return Step(obs, as_array(state.reward, "float32"), terminated, truncated, final, self._info(state.info))

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        if not self.spec.reward_terms:
            return {}
        components = as_array(info["reward_components"], "float32") * np.float32(self._term_scale)
        return {"terms": dict(zip(self.spec.reward_terms, components.T, strict=True))}

    def _build(self, further: dict[str, Any]) -> Any:
        """Call UniLab's registry; its complaints about the configuration become ConfigError."""
        pinned = "cpu_ids" in self._options  # UniLab's own way to say how many threads, and on which CPUs
        try:
            with nullcontext() if pinned else _fewer_cpus(self._threads), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                return self._make(env_cfg_override=self._options | further)
        except ModuleNotFoundError as error:
            raise missing(error.name or "mjbatch", "unilab", self._name) from error
        except ImportError as error:  # mjbatch is linked against one version of MuJoCo
            raise ConfigError(
                f"env.name: {self._name!r}: UniLab's simulation cannot be imported: {error}. It needs a version of "
                "MuJoCo of its own; install appo[unilab] in a virtual environment of its own"
            ) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"env.overrides: {self._name}: UniLab says {_words(error)}") from error
        except OSError as error:
            raise EnvironmentFault(
                f"{self._name} could not be built: {_words(error)}. Where files of a robot are missing: UniLab fetches "
                "them from Hugging Face at first use, or by its command unilab-pull-assets"
            ) from error


@contextmanager
def _fewer_cpus(threads: int) -> Iterator[None]:
    """Show UniLab no more than ``threads`` CPUs: it starts a thread for each that it may use, and takes no number.

    Afterwards they may run on all of them, like this thread. Does nothing where the system has no affinities.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed, before = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for thread in set(os.listdir("/proc/self/task")) - before:
            with suppress(OSError):  # it has ended in the meantime
                os.sched_setaffinity(int(thread), allowed)


def _metadata(env: Any, key: str) -> tuple[str, ...]:
    """Return what UniLab's optional ``algo_capabilities`` say, or nothing."""
    return tuple(getattr(getattr(env, "algo_capabilities", None), key, None) or ())


def _action_names(env: Any) -> list[str]:
    """Return the names of the joints in the order of the actions, where the task tells them for each."""
    manager = getattr(env, "action_manager", None)
    terms = [manager.get_term(term) for term in manager.active_terms] if manager else []
    names = [str(name) for term in terms for name in getattr(term, "target_names", ())]
    return names if len(names) == env.action_space.shape[0] else []


def _words(error: BaseException) -> str:
    """Return one line: the error, and the one during whose handling it came up, which UniLab's may hide."""
    cause = error.__cause__ or error.__context__
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{words} (after {_words(cause)})" if cause else words
