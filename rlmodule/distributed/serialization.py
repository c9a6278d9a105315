"""Values packed for other processes: a few bytes of structure, and their large arrays as they are in memory."""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

Packed = bytes | list[Any]
"""Bytes if it is small; else the structure in bytes, then one array of uint8 for each large one, which Ray need not
copy."""

SMALL, WHOLE = 512, 2**16
"""Arrays of fewer bytes than ``SMALL`` are sent with the structure, and values of no more than ``WHOLE`` bytes as one
piece: there, a copy is cheaper than a further piece."""


def pack(value: Any) -> Packed:
    """Pack ``value``, made of tensors, arrays, plain values and objects of importable classes, for another process.

    Raises:
        Exception: What pickling raises for what cannot be sent.
    """
    buffers: list[pickle.PickleBuffer] = []
    structure = io.BytesIO()
    _Pickler(structure, protocol=5, buffer_callback=lambda buffer: _keep_apart(buffer, buffers)).dump(value)
    parts = [structure.getvalue(), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]
    return parts if num_bytes(parts) > WHOLE else pickle.dumps([parts[0], *buffers], protocol=5)


def unpack(packed: Packed) -> Any:
    """Unpack a value. Its large tensors and arrays are views of what arrived, maybe read-only: copy before writing."""
    structure, *arrays = pickle.loads(packed) if isinstance(packed, bytes) else packed
    with warnings.catch_warnings():  # torch has no read-only tensors; our own code never writes into these
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return pickle.loads(structure, buffers=arrays)


def num_bytes(packed: Packed) -> int:
    """The bytes to send."""
    return len(packed) if isinstance(packed, bytes) else sum(memoryview(part).nbytes for part in packed)


def check_portable(where: str, value: Any) -> None:
    """Check that ``value`` can be sent to another process.

    Raises:
        TypeError: If not; names the reason.
    """
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{where}: expected what can be sent to another process, got {value!r:.80}, which "
            f"cannot be pickled ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}). "
            "Open files, locks, sockets and the like inside the function that runs there."
        ) from error


class _Pickler(cloudpickle.Pickler):
    """Pickles tensors as arrays; torch itself writes each into a zip file."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor and type(obj) is not torch.nn.Parameter:
            return super().reducer_override(obj)
        host = obj.detach().cpu()
        # NumPy has no bfloat16
        known = host.view(torch.int16) if host.dtype is torch.bfloat16 else host
        return _tensor, (known.numpy(), host.dtype)


def _keep_apart(buffer: pickle.PickleBuffer, buffers: list[pickle.PickleBuffer]) -> bool:
    """Whether to write ``buffer`` into the structure (true) or to keep it apart (false), as pickle asks."""
    if buffer.raw().nbytes < SMALL:
        return True
    buffers.append(buffer)
    return False


def _tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(array).view(dtype)
