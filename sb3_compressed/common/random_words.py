"""NumPy's global random numbers, which SB3 draws from: how many were consumed, and what will be drawn next.

The global generator is a Mersenne Twister (Matsumoto and Nishimura 1998): 624 words of 32 bits and a position among
them. The words are replaced all at once when the position has reached the last one. So two copies of the state show how
many words were consumed in between. Nothing here changes the global generator.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.common.probes import holds

__all__ = ["STATE_IS_READABLE", "MersenneTwister", "State", "global_state"]

State = NDArray[np.uint32]
"""The state of a Mersenne Twister: its words and the position, ``(625,)``."""

N_WORDS = 624
#: More words between two batches are not counted: it would take longer than decoding a batch.
MAX_REPLACEMENTS = 16


class MersenneTwister:
    """A generator of the same kind as NumPy's global one, which continues where that will be; for one thread."""

    def __init__(self) -> None:
        bit_generator = np.random.MT19937(0)
        self._skip = bit_generator.random_raw
        self._state = _memory_of(bit_generator)
        self.random = np.random.RandomState(bit_generator)

    def continue_after(self, state: State, n_words: int) -> None:
        """Continue after a state and some more words."""
        self._state[:] = state
        self._skip(n_words, False)

    def words_between(self, earlier: State, later: State) -> int | None:
        """Return how many words were consumed between two states, ``None`` if they are too many, or were set."""
        n_words = int(later[N_WORDS]) - int(earlier[N_WORDS])
        if n_words >= 0 and np.array_equal(earlier[:N_WORDS], later[:N_WORDS]):
            return n_words
        self._state[:] = earlier
        for _ in range(MAX_REPLACEMENTS):
            self._skip(N_WORDS - int(self._state[N_WORDS]) + 1, False)  # the last of them replaces the words
            n_words += N_WORDS
            if np.array_equal(self._state[:N_WORDS], later[:N_WORDS]):
                return n_words
        return None


def global_state() -> State | None:
    """Return a copy of the state of NumPy's global generator, ``None`` if a user has set one of another kind."""
    global _global
    bit_generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if bit_generator is not _global[0]:
        _global = bit_generator, _memory_of(bit_generator) if isinstance(bit_generator, np.random.MT19937) else None
    memory = _global[1]
    return None if memory is None else memory.copy()


#: The global bit generator at the last call of :func:`global_state`, and the memory of its state.
_global: tuple[Any, State | None] = (None, None)


def _memory_of(bit_generator: np.random.MT19937) -> State:
    """Return the memory of the state of a bit generator; copying it takes a fraction of ``get_state()``."""
    words: Any = (ctypes.c_uint32 * (N_WORDS + 1)).from_address(bit_generator.ctypes.state_address)
    memory: State = np.frombuffer(words, dtype=np.uint32)
    return memory


def _state_is_readable() -> bool:
    """Return whether the memory of a state is as described, and words are consumed as described."""
    bit_generator, twister = np.random.MT19937(7), MersenneTwister()
    memory = _memory_of(bit_generator)
    for n_words in (0, 1, 5, 1000):
        state, expected = memory.copy(), bit_generator.state["state"]
        if state[:N_WORDS].tolist() != expected["key"].tolist() or int(state[N_WORDS]) != expected["pos"]:
            return False
        bit_generator.random_raw(n_words, False)
        if twister.words_between(state, memory) != n_words:
            return False
        twister.continue_after(state, n_words)
        drawn = twister.random.randint(0, 1000, 9).tolist()
        if drawn != np.random.RandomState(bit_generator).randint(0, 1000, 9).tolist():
            return False
    return global_state() is not None


STATE_IS_READABLE = holds(_state_is_readable)
"""Whether the next random numbers can be predicted; otherwise no batch is decoded ahead."""
