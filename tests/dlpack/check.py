#!/usr/bin/python3
"""check.py MODULE: passes PyTorch's tensors to tapir and takes tapir's, through DLPack. Ends with 77 where there is no PyTorch."""
import ctypes
import sys

try:
    import torch
    from torch.utils.dlpack import from_dlpack, to_dlpack
except ImportError:
    print("no PyTorch: not tested")
    sys.exit(77)

module = ctypes.CDLL(sys.argv[1])
call = module.add_one_and_double
call.restype, call.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype, python.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
FRESH, USED = (ctypes.create_string_buffer(name) for name in (b"dltensor", b"used_dltensor"))  # capsules keep the address

for dtype in torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8:
    whole = torch.arange(12).reshape(3, 4).to(dtype)
    part = whole[:, 1:3].t()  # neither contiguous nor at the beginning
    before = part.clone()
    capsule = to_dlpack(part)
    managed = python.PyCapsule_GetPointer(capsule, b"dltensor")
    python.PyCapsule_SetName(capsule, ctypes.cast(USED, ctypes.c_char_p))
    result = from_dlpack(python.PyCapsule_New(call(managed), ctypes.cast(FRESH, ctypes.c_char_p), None))
    assert result.dtype == dtype and result.equal(((before + 1) * 2).t()), (dtype, result)
    assert part.equal(before + 1), dtype  # the same elements
    assert whole[:, 0].equal(torch.tensor([0, 4, 8]).to(dtype))
    result.add_(1)
    del capsule, result
print("7 dtypes there and back")
