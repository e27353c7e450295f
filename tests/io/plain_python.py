# SPDX-License-Identifier: Apache-2.0
#
# The library's files against readers and writers made here, of the formats' descriptions and
# Python's standard library alone (struct, json, array). What C++ writes must be, byte for byte, what
# Python writes.
#
#   plain_python.py PROGRAM       where PROGRAM is tests/io/interop.cpp
import array
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

# From the format's own list; the last ones are the most aligned.
DTYPES = ["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "U32",
          "F32", "F64", "I64", "U64"]
BYTES = dict(zip(DTYPES, [1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8]))
program = sys.argv[1]


def run(*words, fails=False):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        sys.exit(f"{words}: exit {done.returncode}: {done.stderr}")
    return done.stderr if fails else done.stdout


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected!r}, found {found!r}")


def pack(tensors, metadata, ordered=True):
    """A file of {name: (dtype, shape, bytes)}."""
    names = sorted(tensors, key=lambda n: (-DTYPES.index(tensors[n][0]), n.encode()))
    if not ordered:
        names.reverse()
    header, end = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name in names:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensors[n][2] for n in names)


def random_tensors(rng):
    tensors = {}
    for i in range(rng.randrange(9)):
        dtype = rng.choice(DTYPES)
        shape = [rng.randrange(5) for _ in range(rng.randrange(4))]
        count = 1
        for dimension in shape:
            count *= dimension
        name = rng.choice(["layers.{}.w", "\u00e9{}", 'a"b\\{}\n', "experts.{}", "\U0001f600{}"])
        tensors[name.format(i)] = (dtype, shape, rng.randbytes(count * BYTES[dtype]))
    return tensors


def check_safetensors(folder):
    rng = random.Random(1)
    source, copy = folder / "source", folder / "copy"
    for round_number in range(40):
        tensors = random_tensors(rng)
        metadata = {"format": "pt", "k\u00e9y": 'a "text"\t'} if round_number % 2 else {}
        expected = pack(tensors, metadata)
        source.write_bytes(pack(tensors, metadata, ordered=round_number % 3 != 0))
        run("copy_safetensors", source, copy)
        expect("bytes of a copy", expected, copy.read_bytes())
        lines = run("list_safetensors", copy).splitlines()
        expect("number of tensors", len(tensors), len(lines))
        for line in lines:
            dtype, shape, checksum, *name = line.split(" ")
            name = bytes.fromhex(name[0] if name else "").decode()
            expect(f"tensor {name!r}", tensors[name][:2], (dtype, json.loads(shape)))
            source.write_bytes(tensors[name][2])
            expect(f"checksum of {name!r}", run("checksum", source).strip(), checksum)
    expected = expected[:-1] if len(expected) > 16 else expected + b"x"
    source.write_bytes(expected)
    message = run("copy_safetensors", source, folder / "never", fails=True)
    expect("message", True, message.startswith(f"{source}: ") and message.count("\n") == 1)
    expect("a file made of a broken one", False, (folder / "never").exists())


def shard(magic, version, code, ids):
    tokens = array.array(code, ids)
    header = struct.pack("<256i", magic, version, len(ids), *[0] * 253) if magic else b""
    return header + tokens.tobytes()


def check_tokens(folder):
    rng = random.Random(2)
    kinds = {"uint16": (20240520, 1, "H", 1 << 16), "uint32": (20240801, 7, "I", 1 << 32),
             "headerless": (0, 0, "H", 1 << 16)}
    for kind, (magic, version, code, limit) in kinds.items():
        shards = [[rng.randrange(limit) for _ in range(rng.randrange(1, 999))] for _ in range(12)]
        paths = []
        for i, ids in enumerate(shards):
            paths.append(folder / f"{kind}_{i}.bin")
            paths[-1].write_bytes(shard(magic, version, code, ids))
            run("copy_tokens", paths[-1], folder / "copy", kind)
            expect("bytes of a shard", paths[-1].read_bytes(), (folder / "copy").read_bytes())
        if magic:
            found = [int(line) for line in run("list_tokens", *reversed(paths)).split()]
            expect("the ids of a set", [i for ids in shards for i in ids], found)


if array.array("H").itemsize != 2 or array.array("I").itemsize != 4 or sys.byteorder != "little":
    print("skipped: another machine's integers")
    sys.exit(77)
with tempfile.TemporaryDirectory() as name:
    check_safetensors(pathlib.Path(name))
    check_tokens(pathlib.Path(name))
print("40 safetensors files and 36 token shards agree")
