# SPDX-License-Identifier: Apache-2.0
#
# The library's safetensors files against the safetensors package, both ways and byte for byte.
# Neither NumPy nor PyTorch is needed. Without the package: exit code 77, skipped.
#
#   safetensors_python.py PROGRAM       where PROGRAM is tests/io/interop.cpp
import ctypes
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import safetensors
except ImportError:
    print("skipped: Python has no safetensors package")
    sys.exit(77)

program = sys.argv[1]
# The package names dtypes in Python's way when it writes and in the format's when it reads.
DTYPES = {"bool": ("BOOL", 1), "uint8": ("U8", 1), "int8": ("I8", 1), "int16": ("I16", 2),
          "uint16": ("U16", 2), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
          "int32": ("I32", 4), "uint32": ("U32", 4), "float32": ("F32", 4),
          "float64": ("F64", 8), "int64": ("I64", 8), "uint64": ("U64", 8)}


def run(*words):
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True)


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected!r}, found {found!r}")


def serialize(tensors, metadata):
    # From 0.8 on the package takes addresses instead of bytes; the buffers must outlive the call.
    spec = getattr(safetensors, "TensorSpec", None)
    if spec is None:
        return bytes(safetensors.serialize(tensors, metadata))
    buffers = {name: ctypes.create_string_buffer(t["data"], max(len(t["data"]), 1))
               for name, t in tensors.items()}
    specs = {name: spec(dtype=t["dtype"], shape=t["shape"],
                        data_ptr=ctypes.addressof(buffers[name]), data_len=len(t["data"]))
             for name, t in tensors.items()}
    return bytes(safetensors.serialize(specs, metadata))


def check_round(rng, folder, metadata):
    tensors = {}
    for i in range(rng.randrange(1, 12)):
        dtype = rng.choice(sorted(DTYPES))
        shape = [rng.randrange(1, 5) for _ in range(rng.randrange(4))]
        count = 1
        for dimension in shape:
            count *= dimension
        data = rng.randbytes(count * DTYPES[dtype][1])
        name = rng.choice(["layers.{}.w", "\u00e9{}", 'a"b\\{}\n', "experts.{}"]).format(i)
        tensors[name] = {"dtype": dtype, "shape": shape, "data": data}
    source, copy = folder / "source", folder / "copy"
    source.write_bytes(serialize(tensors, metadata))
    done = run("copy_safetensors", source, copy)
    expect("exit code " + done.stderr, 0, done.returncode)
    expect("bytes of a copy", source.read_bytes(), copy.read_bytes())
    found = {}
    for name, tensor in safetensors.deserialize(copy.read_bytes()):
        found[name] = (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
    expect("tensors read by the package", {
        name: (DTYPES[t["dtype"]][0], t["shape"], t["data"]) for name, t in tensors.items()}, found)


def check_refusals(folder):
    # What the package refuses, the library must refuse as well.
    good = serialize(
        {"w": {"dtype": "float32", "shape": [2], "data": b"12345678"}}, None)
    refused = 0
    for i in range(len(good)):
        for change in (good[:i], good[:i] + bytes([good[i] ^ 1]) + good[i + 1:]):
            try:
                safetensors.deserialize(change)
            except Exception:  # the package's own class moved between versions
                (folder / "bad").write_bytes(change)
                expect(f"refusal of {change!r}", 1, run("list_safetensors", folder / "bad").returncode)
                refused += 1
    expect("most of them refused", True, refused > len(good))


with tempfile.TemporaryDirectory() as name:
    generator = random.Random(3)
    for round_number in range(40):
        # One key at most: the package writes several in an order of chance.
        check_round(generator, pathlib.Path(name), {"format": "pt"} if round_number % 2 else None)
    check_refusals(pathlib.Path(name))
print("40 files agree with the safetensors package", getattr(safetensors, "__version__", ""))
