"""Check rsl_rl's training dictionary against the environment, as soon as the environment's spec is known.

What an environment offers is unknown when the configuration is read: the first collector brings it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from appo_common.errors import ConfigError
from appo_common.spec import EnvSpec, ObservationGroup
from appo_common.train_classes import CNN_EXAMPLE, resolve, takes_nvec
from appo_common.train_config import Problem, nearest, resolved_obs_groups

if TYPE_CHECKING:
    from appo_common.config import RunConfig


def check_environment(config: RunConfig, spec: EnvSpec, source: str = "configuration") -> None:
    """Raise :class:`ConfigError` if the models of ``config`` cannot be trained on such an environment.

    Checked are the observation groups, what the models can read of them, and the distribution of the actions.
    ``source`` is the file to name in the message.
    """
    lines = [_line(problem.under("train"), source) for problem in _missing_groups(config.train, spec)]
    if not lines:
        try:
            sets = resolved_obs_groups(config.train, spec.observations)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
        for role, names in sets.items():
            problems = model_problems(role, config.train[role], names, spec)
            lines += [_line(problem.under("train"), source) for problem in problems]
    if lines:
        raise ConfigError("\n".join(lines))


def check_model(role: str, section: dict[str, Any], names: Sequence[str], spec: EnvSpec) -> None:
    """Raise :class:`ConfigError` for what :func:`model_problems` finds."""
    if problems := model_problems(role, section, names, spec):
        raise ConfigError("\n".join(_line(problem.under("train"), "configuration") for problem in problems))


def model_problems(role: str, section: dict[str, Any], names: Sequence[str], spec: EnvSpec) -> list[Problem]:
    """Return why a model cannot read the groups ``names`` or act in the environment.

    ``role`` is ``actor`` or ``critic`` and ``section`` what the training dictionary has there. A model class of the
    user's own may read what it likes.
    """
    from rsl_rl.models import CNNModel, MLPModel

    model, name = resolve(section["class_name"]), section["class_name"]
    problems = []
    if model in (MLPModel, CNNModel):
        key = f"obs_groups.{role}"
        problems += [Problem(key, list(names), text) for text in _unreadable(name, names, spec)]
        images = [group for group in names if is_image(spec.observations[group])]
        if model is MLPModel and images:
            shown = _words(spec.observations[images[0]])
            text = f"reads no images, and group {images[0]!r} of {spec.name} is one, {shown}; write "
            text += f"`class_name: CNNModel` and {CNN_EXAMPLE}, or leave the group out of train.obs_groups.{role}"
            problems.append(Problem(f"{role}.class_name", name, text))
        elif model is CNNModel and not images:
            text = f"needs an image [H, W, C], and train.obs_groups.{role} has none; list one, or write "
            text += "`class_name: MLPModel` and remove cnn_cfg"
            problems.append(Problem(f"{role}.class_name", name, text))
        elif model is CNNModel and images == list(names) and section.get("obs_normalization"):
            text = f"normalises vectors [n], and train.obs_groups.{role} = {images} has none, on which CNNModel fails; "
            text += "write false (images are scaled to 0 to 1 as it is)"
            problems.append(Problem(f"{role}.obs_normalization", True, text))
        elif model is CNNModel and not problems:
            problems += _encoder_problems(f"{role}.cnn_cfg", section.get("cnn_cfg"), images, spec)
    if role == "actor" and section.get("distribution_cfg"):
        problems += _distribution_problems(section["distribution_cfg"], spec)
    return problems


def is_image(group: ObservationGroup) -> bool:
    """Whether a group is an image: ``[H, W, C]``, channels last."""
    return len(group.shape) == 3


def _missing_groups(train: dict[str, Any], spec: EnvSpec) -> list[Problem]:
    """Name the groups that the environment does not offer."""
    offered = sorted(spec.observations)
    problems = []
    for set_name, names in (train.get("obs_groups") or {}).items():
        for name in (name for name in names if name not in spec.observations):
            text = f"{spec.name} offers no group {name!r}, only {', '.join(offered)}"
            remedy = f"{nearest(name, offered, '')}; list groups it offers, or choose another env.name"
            problems.append(Problem(f"obs_groups.{set_name}", names, text + remedy))
    return problems


def _unreadable(model: str, names: Sequence[str], spec: EnvSpec) -> list[str]:
    """Say which groups neither of rsl_rl's models can take in."""
    texts = []
    for name in names:
        group = spec.observations[name]
        if len(group.shape) not in (1, 3):
            texts.append(
                f"group {name!r} is {_words(group)}, and {model} reads vectors [n] and images [H, W, C]; reshape it in "
                "the environment, leave it out, or name a model class of your own"
            )
        elif group.dtype != "float32" and not (is_image(group) and group.dtype == "uint8"):
            texts.append(
                f"group {name!r} is {group.dtype}, and {model} reads float32 (images: uint8, too); convert it in the "
                "environment, leave it out, or name a model class of your own"
            )
    return texts


def _encoder_problems(key: str, cfg: Any, images: list[str], spec: EnvSpec) -> list[Problem]:
    """Try every image's encoder on a picture of its size. ``cfg`` is None where encoders are shared."""
    import torch
    from rsl_rl.modules import CNN

    if cfg is None:
        return []
    per_image = all(isinstance(part, dict) for part in cfg.values())
    if per_image and set(cfg) != set(images):
        return [Problem(key, cfg, f"must have one section for each image that is read: {', '.join(images)}")]
    problems = []
    for name in images:
        height, width, channels = spec.observations[name].shape
        place = f"{key}.{name}" if per_image else key
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                encoder = CNN((height, width), channels, **(cfg[name] if per_image else cfg)).eval()
                encoder(torch.zeros(1, channels, height, width))
        except Exception as error:  # any of torch's and rsl_rl's own
            problems.append(Problem(place, cfg, f"does not suit image {name!r} of {height} x {width}: {error}"))
        else:
            if encoder.output_channels is not None:
                problems.append(Problem(place, cfg, "must flatten its output; remove `flatten: false`"))
    return problems


def _distribution_problems(section: dict[str, Any], spec: EnvSpec) -> list[Problem]:
    """Check that discrete actions have a distribution for them, and continuous ones one of the others."""
    name = section["class_name"]
    key = "actor.distribution_cfg.class_name"
    if takes_nvec(name) and not spec.action_nvec:
        text = f"is for discrete actions, and those of {spec.name} are continuous; write "
        return [Problem(key, name, text + "`distribution_cfg: {class_name: GaussianDistribution, init_std: 1.0}`")]
    if spec.action_nvec and not takes_nvec(name):
        choices = f"those of {spec.name} are discrete ({', '.join(map(str, spec.action_nvec))} choices)"
        text = f"is for continuous actions, and {choices}; write "
        return [Problem(key, name, text + "`distribution_cfg: {class_name: CategoricalDistribution}`")]
    given = section.get("nvec")
    if given is not None and given != spec.action_nvec:
        text = f"{spec.name} has {spec.action_nvec}; remove it, since the environment fills it in"
        return [Problem("actor.distribution_cfg.nvec", given, text)]
    return []


def _words(group: ObservationGroup) -> str:
    return f"{group.shape} {group.dtype}"


def _line(problem: Problem, source: str) -> str:
    return f"{source}: {problem.key} = {problem.value}: {problem.text}"
