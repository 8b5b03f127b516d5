"""Names of measured buffers: ``[library:]method[@threads or @device]``, ``SB3`` and ``SB3:optimized``."""

from __future__ import annotations

PEERS = ("extra", "torchrl", "cpprb")
SB3_OPTIMIZED = "SB3:optimized"
DEVICE = "device"
SHOWN = {"optimized": "optimize_memory_usage"}
TITLES = {
    "sb3": "SB3",
    "ours": "sb3-compressed",
    "extra": "sb3-extra-buffers",
    "torchrl": "TorchRL",
    "cpprb": "cpprb",
}


def split_name(name: str) -> tuple[str, str, int | None]:
    """Return library, method and number of threads.

    >>> split_name("extra:zstd-3"), split_name("auto@1"), split_name("SB3"), split_name("cpprb")
    (('extra', 'zstd-3', None), ('ours', 'auto', 1), ('sb3', '', None), ('cpprb', '', None))
    >>> split_name("SB3:optimized")
    ('sb3', 'optimized', None)
    """
    head, _, option = name.partition("@")
    n_threads = int(option) if option and option != DEVICE else None
    library, colon, method = head.partition(":")
    if head == SB3_OPTIMIZED:
        return "sb3", method, n_threads
    if colon or library in PEERS:
        if library not in PEERS:
            raise ValueError(f"unknown library {library!r} in {name!r}; available: {', '.join(PEERS)}")
        return library, method, n_threads
    return ("sb3", "", n_threads) if head == "SB3" else ("ours", head, n_threads)


def title(name: str) -> str:
    """Return a name as shown in tables.

    >>> title("SB3:optimized")
    'SB3 `optimize_memory_usage`'
    >>> title("auto@1"), title("torchrl:zlib-3"), title("cpprb")
    ('sb3-compressed `auto`, 1 thread', 'TorchRL `zlib-3`', 'cpprb')
    """
    library, method, threads = split_name(name)
    text = f"{TITLES[library]} `{SHOWN.get(method, method)}`" if method else TITLES[library]
    if threads is not None:
        text += f", {threads} thread{'s' if threads > 1 else ''}"
    if is_on_device(name):
        text += ", on the device"
    return text


def is_on_device(name: str) -> bool:
    """Return whether a buffer is in the memory of the device.

    >>> is_on_device("auto@device"), is_on_device("auto@1")
    (True, False)
    """
    return name.partition("@")[2] == DEVICE


def is_peer(name: str) -> bool:
    """Return whether a buffer is measured in the environment of the peers."""
    return split_name(name)[0] in PEERS
