# SPDX-License-Identifier: Apache-2.0
"""Tensors across the border, without a copy: torch's as DLPack's descriptions and back."""
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from ._native import ffi

KINDS = {
    torch.float32: (2, 32), torch.float64: (2, 64), torch.float16: (2, 16), torch.bfloat16: (4, 16),
    torch.int64: (0, 64), torch.int32: (0, 32), torch.int16: (0, 16), torch.int8: (0, 8),
    torch.uint8: (1, 8), torch.bool: (6, 8), torch.complex64: (5, 64), torch.complex128: (5, 128)
}
DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
CPU, CUDA = 1, 2  # DLDeviceType


def kind_of(dtype: torch.dtype) -> Dict[str, int]:
    """A DLDataType."""
    if dtype not in KINDS:
        raise TypeError(f"a tensor of {dtype}: expected one of {', '.join(map(str, KINDS))}")
    code, bits = KINDS[dtype]
    return {"code": code, "bits": bits, "lanes": 1}


def has_gradient(dtype: torch.dtype) -> bool:
    """Whether tensors of that type may have one."""
    return dtype.is_floating_point or dtype.is_complex


def address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def dl_of(device: torch.device) -> Tuple[int, int]:
    """A DLDevice."""
    return (CUDA, device.index or 0) if device.type == "cuda" else (CPU, 0)


def describe(tensor: torch.Tensor, kept: List[Any]) -> Any:
    """A DLTensor * of a tensor's memory. It and what it points to last as long as `kept`."""
    shape, strides = ffi.new("int64_t[]",
                             list(tensor.shape)), ffi.new("int64_t[]", list(tensor.stride()))
    described = ffi.new(
        "DLTensor *", {
            "data": ffi.cast("void *", tensor.data_ptr()), "device": dl_of(tensor.device),
            "ndim": tensor.dim(),
            "dtype": kind_of(tensor.dtype), "shape": shape, "strides": strides
        })
    kept += [shape, strides, described, tensor]
    return described


def describe_all(tensors: Sequence[torch.Tensor], kept: List[Any]) -> Any:
    """DLTensor *[]."""
    array = ffi.new("DLTensor *[]", [describe(tensor, kept) for tensor in tensors] or [ffi.NULL])
    kept.append(array)
    return array


def spec(shape: Sequence[int],
         dtype: torch.dtype,
         no_grad: bool = False,
         follows: Sequence[bool] = ()) -> Dict[str, Any]:
    """A struct dp_tensor_spec. follows: the dimensions that follow the rows of a micro-batch."""
    return {
        "dtype": kind_of(dtype), "ndim": len(shape), "shape": list(shape), "no_grad": no_grad,
        "extent": [int(does) for does in follows]
    }


def border(specs: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """A struct dp_border."""
    return {"count": len(specs), "tensors": list(specs)}


def shape_of(described: Any) -> Tuple[int, ...]:
    return tuple(described.shape[i] for i in range(described.ndim))


class _OnDevice:
    """Memory of CUDA as torch takes it in; the words of two bytes are seen as int16 and renamed
    later. The tensor keeps it, and so the owner of the memory."""
    def __init__(self, pointer: int, shape: Tuple[int, ...], size: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "data": (pointer, False), "shape": shape, "typestr": f"<i{size}", "version": 2
        }


def _keep(_owner: Any, _pointer: Any) -> None:
    """The destructor of an address that lasts as long as what it belongs to."""


def memory_of(pointer: int, elements: int, dtype: torch.dtype, device: torch.device,
              owner: Any = None) -> torch.Tensor:
    """A tensor [elements] over memory that is not torch's, which keeps the owner."""
    size = dtype.itemsize
    if device.type == "cuda":
        words = _OnDevice(pointer, (elements, ), size, owner)
        return torch.as_tensor(words, device=device).view(dtype)
    memory = ffi.cast("void *", pointer)
    if owner is not None:
        memory = ffi.gc(memory, partial(_keep, owner))
    return torch.frombuffer(ffi.buffer(memory, elements * size), dtype=dtype)


class Views:
    """Tensors over the library's own memory, made once for each place. They are valid as long as
    what owns that memory; a tensor that shares the memory of one of them must not outlive it
    either. With an owner they keep that, which may be an object of cffi's gc."""
    def __init__(self, owner: Any = None) -> None:
        self.owner = owner
        self._made: Dict[Any, torch.Tensor] = {}
        self._places: Dict[int, torch.Tensor] = {}

    def of(self, described: Any) -> Any:
        """A new tensor object, without history; None where the library has none (data NULL)."""
        pointer = address(described.data)
        if not pointer:
            return None
        kind, shape = (described.dtype.code, described.dtype.bits), shape_of(described)
        key = (pointer, kind, shape)
        view = self._made.get(key)
        if view is None:
            view = self._made[key] = self._new(described, pointer, kind, shape)
            self._places[pointer] = view
        return view.detach()

    def _new(self, described: Any, pointer: int, kind: Tuple[int, int],
             shape: Tuple[int, ...]) -> torch.Tensor:
        dtype, elements = DTYPES[kind], 1
        for extent in shape:
            elements *= extent
        if elements == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        there = described.device
        device = torch.device("cuda", there.device_id) if there.device_type == CUDA else \
            torch.device("cpu")
        flat = memory_of(pointer + described.byte_offset, elements, dtype, device, self.owner)
        strides = None if described.strides == ffi.NULL else [
            described.strides[i] for i in range(len(shape))
        ]
        return flat.view(shape) if strides is None else flat.as_strided(shape, strides)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in memory of the library."""
        return tensor.untyped_storage().data_ptr() in self._places
