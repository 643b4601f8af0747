#!/usr/bin/env python3
"""corpus.py FOLDER: makes FOLDER/NAME/ with a few small good files for each fuzzer NAME to begin with."""
import gzip
import io
import json
import os
import struct
import sys
import zipfile


def write(name, *files):
    folder = os.path.join(sys.argv[1], name)
    os.makedirs(folder, exist_ok=True)
    for i, data in enumerate(files):
        with open(os.path.join(folder, f"seed{i}"), "wb") as f:
            f.write(data)


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, values in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def npy(descr, shape, data, order="False", version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    start = 10 if version == 1 else 12
    text += b" " * (-(start + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def npz(arrays, method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in arrays.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                member.write(data)
    return out.getvalue()


def idx(code, shape, data):
    return bytes([0, 0, code, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape) + data


arrays = [npy("<f4", "(2,)", bytes(8)), npy(">i2", "(3, 2)", bytes(range(12)), "True"), npy("|b1", "()", b"\1", version=2),
          npy("<i8", "(0, 5)", b"", version=3)]
images = [idx(8, [2, 3], bytes(6)), idx(9, [2], b"\1\xff"), idx(11, [2], bytes(4)), idx(14, [1, 1], bytes(8)), idx(13, [], bytes(4))]
tables = [b"a,b\n1,2\n-3.5,4e9\n", b'"x y";"z"\r\n"1";"2"\r\n', b'a\n"q""\n"\n', b"1,2\n\n3,\n", b"a,b\ntrue,0\n"]

write("safetensors", safetensors([]), safetensors([("a", "F32", [2], bytes(8)), ("b.c", "BOOL", [1, 3], b"\0\1\2")], {"k": "v"}),
      safetensors([("x", "BF16", [0, 2], b""), ("y", "I64", [], bytes(8))]))
write("npy", *arrays)
write("npz", npz({"a": arrays[0], "b": arrays[1]}, zipfile.ZIP_STORED), npz({"a": arrays[0]}, zipfile.ZIP_DEFLATED), npz({}, zipfile.ZIP_STORED))
write("idx", *images, *(gzip.compress(image, mtime=0) for image in images))
write("cifar10", bytes([3]) + bytes(3072), gzip.compress(2 * (bytes([9]) + bytes(3072)), mtime=0))
write("csv", *(bytes([options]) + table for options in (3, 2, 7, 0x33) for table in tables))
write("lines", b"a\nb\r\n\nc", b"\xef\xbb\xbfx")
write("ptb", b"(3 (2 It) (4 (2 's) (4 lovely)))\n\n(1 a)\n", b"(2 (2 comedy\\/drama) (2 -LRB-))\r\n", b"(4 (3 (2 (1 a) (0 b))))")
