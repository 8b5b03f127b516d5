"""``BatchDecoder``: the arrays of a batch whose transitions are in several blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import BatchPool
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.distributed.encoded_rows import layout_of, stored_dtype
from sb3_compressed.distributed.sample_pipeline import Part
from sb3_compressed.persistence.buffer_state import is_observation, named_arrays

__all__ = ["BatchDecoder"]


class BatchDecoder:
    """Joins and decodes the parts of a batch.

    :param template: a buffer with the arrays of the rings
    :param num_threads: number of threads that decode
    """

    def __init__(self, template: CompressedReplay, num_threads: int) -> None:
        arrays = {name: array for name, array in named_arrays(template).items() if is_observation(name)}
        #: Of each array of observations, the shape of an item, the dtype that it is stored in, and that of the space.
        self._formats = {name: (array.shape[2:], stored_dtype(array), array.dtype) for name, array in arrays.items()}
        self._num_threads = num_threads
        self._pool = BatchPool()

    def arrays(self, parts: list[Part]) -> dict[str, NDArray[Any]]:
        """Return all arrays of a batch, ``(batch_size, ...)`` by their names, with decoded observations.

        :raises CorruptPayload: if a payload is damaged
        """
        arrays = {
            name: parts[0].array(name) if len(parts) == 1 else np.concatenate([part.array(name) for part in parts])
            for name in parts[0].block.arrays
        }
        self._pool.begin_batch()
        for name in parts[0].block.batches:
            arrays |= self.decoded(parts, name)
        return arrays

    def decoded(self, parts: list[Part], name: str) -> dict[str, NDArray[Any]]:
        """Return the observations and next observations of a batch, of which ``name`` is the name of the former."""
        item_shape, stored, dtype = self._formats[name]
        layouts = [layout_of(item_shape, part.block.values["layouts"][name]) for part in parts]
        batches = [part.block.batches[name].part(2 * part.first, 2 * part.last) for part in parts]
        begins = np.cumsum([0, *(part.last - part.first for part in parts)])
        n = int(begins[-1])
        out = self._pool.empty((2 * n, *item_shape), stored)
        known = [layout for layout in layouts if layout is not None]
        if all(layout == known[0] for layout in known):
            if len(batches) > 1:  # first all observations, then all next observations
                is_next = np.concatenate([np.arange(batch.n_items) >= batch.n_items // 2 for batch in batches])
                batches = [PayloadBatch.joined(batches, np.argsort(is_next, kind="stable"))]
            decode(batches[0], known[0] if known else None, out, self._num_threads)
        else:  # shards found different layouts
            for batch, layout, begin, end in zip(batches, layouts, begins, begins[1:], strict=False):
                part = np.empty((batch.n_items, *item_shape), stored)
                decode(batch, layout, part, self._num_threads)
                out[begin:end], out[n + begin : n + end] = np.split(part, 2)
        if stored != dtype:
            out = out.astype(dtype)
        return {name: out[:n], f"next_{name}": out[n:]}
