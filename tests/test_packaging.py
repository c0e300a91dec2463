"""The built wheel and sdist: what they hold, and that they work beside a user's package called ``common``."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "appo_common": ROOT / "common/appo_common",
    "appo_collector": ROOT / "collector/appo_collector",
    "appo_learner": ROOT / "learner/appo_learner",
}
DATA_SUFFIXES = {".py", ".yaml", ".xml"}


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Standard output of a command that must succeed, run without this shell's Python and pip settings."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Paths of the distributions, ``{"wheel": ..., "sdist": ...}``, built without the network."""
    folder = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--wheel",
        "--outdir",
        folder,
        ROOT,
        cwd=folder,
    )
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything this interpreter has installed, apart from the project itself."""
    folder = tmp_path_factory.mktemp("dependencies")
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(site).iterdir():
            if not entry.name.lstrip("_").startswith("appo") and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(
    request: pytest.FixtureRequest,
    built: dict[str, Path],
    dependencies: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The ``bin`` folder of a new environment into which one distribution was installed."""
    folder = tmp_path_factory.mktemp(f"environment-{request.param}")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    offline = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, built[request.param], cwd=folder)
    return folder / "bin"


@pytest.fixture
def decoy(tmp_path: Path) -> Path:
    """A user's project folder with a package of their own called ``common``."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common/__init__.py").write_text("OWNER = 'user'\n")
    return tmp_path


def source_files() -> set[str]:
    """The files a distribution must hold, as ``appo_common/errors.py``."""
    return {
        str(path.relative_to(folder.parent))
        for folder in PACKAGES.values()
        for path in folder.rglob("*")
        if path.suffix in DATA_SUFFIXES
    }


def test_the_wheel_holds_the_three_packages_and_nothing_else(built: dict[str, Path]) -> None:
    names = zipfile.ZipFile(built["wheel"]).namelist()
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert source_files() - set(names) == set()
    assert {name.split("/")[0] for name in set(names) - metadata} == set(PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in metadata)


def test_presets_and_assets_are_packaged(built: dict[str, Path]) -> None:
    names = zipfile.ZipFile(built["wheel"]).namelist()
    assert [name for name in names if name.endswith(".yaml")], "no bundled preset"
    assert [name for name in names if name.endswith(".xml")], "no MuJoCo model"


def test_the_sdist_builds_what_the_wheel_holds(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {
        str(path.relative_to(ROOT)) for path in (PACKAGES[name.split("/")[0]].parent / name for name in source_files())
    }
    assert wanted - names == set()
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"} - names == set()


@pytest.mark.parametrize("statement", ["sys.path.insert(0, {!r})", "sys.path.append({!r})"])
def test_a_users_common_package_keeps_working(installed: Path, decoy: Path, statement: str) -> None:
    """Wherever it stands on the path: first, as a project's own folder does, or last."""
    modules = "appo_common, appo_collector, appo_learner"
    code = f"""
import sys
{statement.format(str(decoy))}
import common, {modules}
print(common.OWNER, *(module.__file__ for module in ({modules})), sep="\\n")
"""
    owner, *files = run(installed / "python", "-c", code, cwd=decoy.parent).splitlines()
    assert owner == "user"
    assert [Path(file).is_relative_to(installed.parent) for file in files] == [True] * 3


def test_the_distribution_brings_no_common_of_its_own(installed: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('common', 'collector', 'learner') if u.find_spec(n)])"
    assert run(installed / "python", "-c", code, cwd=tmp_path).strip() == "[]"


def test_a_checkout_as_working_directory_does_not_shadow_it(decoy: Path) -> None:
    """There ``common/`` is a folder without ``__init__.py``: a real package later on the path wins."""
    code = "import common, appo_common; print(common.OWNER)"
    assert run(sys.executable, "-c", code, cwd=ROOT, path=decoy).strip() == "user"


@pytest.mark.parametrize("command", ["appo-learner --help", "appo-learner --list", "appo-collector --help"])
def test_the_installed_commands_run(installed: Path, decoy: Path, command: str) -> None:
    program, option = command.split()
    output = run(installed / program, option, cwd=decoy, path=decoy)
    assert ("cartpole-swingup" if option == "--list" else "--log-level") in output
