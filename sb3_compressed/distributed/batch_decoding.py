"""``BatchDecoder``: the arrays of a batch whose transitions are in several blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import BatchPool
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.distributed.encoded_rows import stored_dtype
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
        layouts = [part.block.values["layouts"][name] for part in parts]
        batches = [part.block.batches[name].part(2 * part.first, 2 * part.last) for part in parts]
        n = sum(part.last - part.first for part in parts)
        out = self._pool.empty((2 * n, *item_shape), stored)
        known = {layout for layout in layouts if layout is not None}
        if len(known) > 1:  # shards found different layouts
            decoded = [np.empty((batch.n_items, *item_shape), stored) for batch in batches]
            for batch, layout, items in zip(batches, layouts, decoded, strict=True):
                decode(batch, layout, items, self._num_threads)
            halves = zip(*(np.split(items, 2) for items in decoded), strict=True)
            np.concatenate([items for half in halves for items in half], out=out)
        else:
            if len(batches) > 1:  # first all observations, then all next observations
                is_next = np.concatenate([np.arange(batch.n_items) >= batch.n_items // 2 for batch in batches])
                batches = [PayloadBatch.joined(batches, np.argsort(is_next, kind="stable"))]
            decode(batches[0], next(iter(known), None), out, self._num_threads)
        if stored != dtype:
            out = out.astype(dtype)
        return {name: out[:n], f"next_{name}": out[n:]}
