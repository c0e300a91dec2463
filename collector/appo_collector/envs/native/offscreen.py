"""Pictures without a window: an OpenGL context of its own, independent of the order of imports.

MuJoCo picks its OpenGL backend from ``MUJOCO_GL`` when it is first imported, and without that variable picks
one that needs a display. A collector has usually imported MuJoCo long before somebody asks for a picture, so
the backend is chosen here instead, at the first picture.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from typing import Any

import mujoco
import numpy as np

from appo_common.errors import EnvironmentFault

_LIBRARIES = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")}
_HELP = (
    "no picture can be drawn: {reason}. Install an OpenGL library for headless use "
    "(Debian and Ubuntu: apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri, or libosmesa6), "
    "or choose another backend with MUJOCO_GL=egl, osmesa or glfw"
)


def backend_name() -> str:
    """Return the backend to use: what ``MUJOCO_GL`` says, else the first that this machine has a library for.

    Raises EnvironmentFault when there is none.
    """
    asked = os.environ.get("MUJOCO_GL", "").strip().lower()
    if asked in ("egl", "osmesa", "glfw", "cgl"):
        return asked
    if sys.platform != "linux":
        return "cgl" if sys.platform == "darwin" else "glfw"
    for name, libraries in _LIBRARIES.items():
        if any(_loads(library) for library in libraries):
            return name
    raise EnvironmentFault(_HELP.format(reason="neither libEGL.so.1 nor libOSMesa was found"))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class Offscreen:
    """Draws one model into a picture of a fixed size; owns an OpenGL context until :meth:`close`."""

    def __init__(self, model: mujoco.MjModel, width: int, height: int) -> None:
        """Open a context for pictures of ``width`` × ``height`` pixels.

        Raises EnvironmentFault with the packages to install when the backend does not work.
        """
        backend = backend_name()
        # The size of the frame buffer is read from the model when the context is made.
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        try:
            self._gl: Any = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        except Exception as error:  # each backend raises errors of its own when a driver is missing
            raise EnvironmentFault(_HELP.format(reason=f"backend {backend!r} failed ({error})")) from error
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self.made_for = (model, width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        self._view = mujoco.MjvOption()

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, camera: str) -> np.ndarray:
        """Return a fresh ``[height, width, 3]`` uint8 RGB picture of ``data`` seen by the named camera.

        ``model`` is the one the context was made for or a copy with other values, but the same meshes and textures.
        A model without such a camera is seen by its free one.
        """
        _, width, height = self.made_for
        picture = np.empty((height, width, 3), dtype=np.uint8)
        seen_by = mujoco.MjvCamera()
        camera_id = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA.value, camera)
        if camera_id < 0:
            mujoco.mjv_defaultFreeCamera(model, seen_by)
        else:
            seen_by.type, seen_by.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, camera_id
        self._gl.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(model, data, self._view, None, seen_by, everything, self._scene)
        area = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(area, self._scene, self._context)
        mujoco.mjr_readPixels(picture, None, area, self._context)
        return picture[::-1].copy()  # OpenGL's first row is the lowest one

    def close(self) -> None:
        """Free the context; the object cannot draw afterwards."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()
