"""Pack values for other processes into a few bytes of structure and the memory of large arrays, which is not copied."""

import io
import pickle
import warnings
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

# A packed value. If it is small, its bytes. If it is large, a list: the bytes of its structure, and then each large
# array as a uint8 array, which Ray need not copy.
Packed = bytes | list[Any]

# Arrays of fewer than `SMALL` bytes are packed with the structure, and values of up to `WHOLE` bytes as one piece. At
# these sizes, a copy costs less than an additional piece.
SMALL, WHOLE = 512, 2**16


def pack(value: Any) -> Packed:
    """Pack ``value`` for another process: a tree of tensors, arrays, plain values and objects that pickle can send.

    Raises:
        Exception: The error that pickle raises for a value that it cannot send.
    """
    buffers: list[pickle.PickleBuffer] = []
    structure = io.BytesIO()
    _Pickler(structure, protocol=5, buffer_callback=lambda buffer: _keep_apart(buffer, buffers)).dump(value)
    parts = [structure.getvalue(), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]
    return parts if num_bytes(parts) > WHOLE else pickle.dumps([parts[0], *buffers], protocol=5)


def unpack(packed: Packed) -> Any:
    """Return the value that was packed. The memory of its large arrays and tensors may be read-only, so copy them
    before writing to them."""
    structure, *arrays = pickle.loads(packed) if isinstance(packed, bytes) else packed
    with warnings.catch_warnings():  # torch has no read-only tensors; this library never writes to these
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return pickle.loads(structure, buffers=arrays)


def num_bytes(packed: Packed) -> int:
    """Return the size of a packed value in bytes."""
    return len(packed) if isinstance(packed, bytes) else sum(memoryview(part).nbytes for part in packed)


def check_portable(where: str, value: Any) -> None:
    """Raise unless ``value`` can be sent to another process.

    Args:
        where: The setting or object that has the value; the error text begins with it.
        value: The value.

    Raises:
        TypeError: If ``value`` cannot be pickled; gives the reason.
    """
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{where}: expected a value that can be sent to another process, got {value!r:.80}, which "
            f"cannot be pickled ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}). "
            "Open files, locks, sockets and the like inside the function that runs there."
        ) from error


class _Pickler(cloudpickle.Pickler):
    """A pickler that writes tensors as arrays, which costs less than the zip file that torch writes for each tensor."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor and type(obj) is not torch.nn.Parameter:
            return super().reducer_override(obj)
        host = obj.detach().cpu()
        # NumPy has no bfloat16
        known = host.view(torch.int16) if host.dtype is torch.bfloat16 else host
        return _tensor, (known.numpy(), host.dtype)


def _keep_apart(buffer: pickle.PickleBuffer, buffers: list[pickle.PickleBuffer]) -> bool:
    """Return True if ``buffer`` has fewer than ``SMALL`` bytes, so that pickle writes it into the structure. Otherwise
    append it to ``buffers``, and return False."""
    if buffer.raw().nbytes < SMALL:
        return True
    buffers.append(buffer)
    return False


def _tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Return the tensor of type ``dtype`` that was pickled as ``array``."""
    return torch.from_numpy(array).view(dtype)
