"""``HDF5Target``: a file that HDF5 writes, on a disk that may be full."""

from __future__ import annotations

import os
from io import RawIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.storage.files import write_at

__all__ = ["HDF5Target"]


class HDF5Target(RawIOBase):
    """A new file whose errors are kept: HDF5 crashes if it cannot write what it has cached when a file is closed.

    After an error, what is written is kept in memory, so that HDF5 can read it again and close the file. So check
    :meth:`raise_error` often.

    :param path: the file
    :raises OSError: if it cannot be created
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115
        self._position = 0
        self._error: BaseException | None = None
        #: What was written since the error: offsets and bytes.
        self._kept: list[tuple[int, bytes]] = []
        self._nbytes_kept = 0

    def raise_error(self) -> None:
        """Raise the first error of writing, if there was one, or the Ctrl-C that arrived meanwhile.

        :raises OSError: as the system has reported it
        """
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, self._error.strerror, str(self._path))
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset, from the start or from the end."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._nbytes}[whence]
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        """Return the offset."""
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read at the offset; what was never written is zeros."""
        out = np.frombuffer(buffer, np.uint8)
        out[:] = 0
        self._file.seek(self._position)
        n_read = 0
        while n_read < len(out) and (n := self._file.readinto(out[n_read:].data)):
            n_read += n
        for offset, content in self._kept:
            self._copy(offset, content, out)
        self._position += len(out)
        return len(out)

    def _copy(self, offset: int, content: bytes, out: NDArray[np.uint8]) -> None:
        """Copy the part of some written bytes that is read."""
        first = max(offset, self._position)
        last = min(offset + len(content), self._position + len(out))
        if first < last:
            part = np.frombuffer(content, np.uint8)[first - offset : last - offset]
            out[first - self._position : last - self._position] = part

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        """Write at the offset."""
        content = memoryview(data).cast("B")
        try:
            self.raise_error()
            write_at(self._file, content, self._position)
        except BaseException as error:
            self._error = self._error or error
            self._kept.append((self._position, bytes(content)))
            self._nbytes_kept = max(self._nbytes_kept, self._position + len(content))
        self._position += len(content)
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        size = self._position if size is None else size
        try:
            self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
        return size

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            super().close()
            try:
                self._file.close()
            except OSError as error:
                self._error = self._error or error

    @property
    def _nbytes(self) -> int:
        return max(os.fstat(self._file.fileno()).st_size, self._nbytes_kept)
