"""Recordings of sources by name, made once and cached."""

from __future__ import annotations

from sources import CACHE, Source

from sb3_compressed.benchmarking.frame_recording import Recording, write_recording


def record(name: str, n_envs: int, n_steps: int) -> Recording:
    """Return a recording of a source with at least that many steps, made if there is none yet."""
    beginning, source = f"{name.replace(':', '-')}-{n_envs}envs-", Source(name)
    for path in sorted(CACHE.glob(f"{beginning}*rows.zst")):
        if int(path.stem.removeprefix(beginning).removesuffix("rows")) >= n_steps:
            return Recording.open(path)
    act = None
    if source.training_steps:
        from policies import player

        act = player(source)
    path = CACHE / f"{beginning}{n_steps}rows.zst"
    return write_recording(path, source.make(n_envs), n_steps, n_stack=source.n_stack, act=act)
