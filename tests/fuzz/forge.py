"""Lies that agree with themselves: checkpoints with right checksums and wrong contents, bombs, other runs' states."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
import struct
from pathlib import Path

from tests.fuzz.damage import change_json, change_safetensors

ZEROS = b"\0" * 2**20
NAN = struct.pack("<f", float("nan"))


def forge_checkpoint(folder: Path, rng: random.Random) -> None:
    """Another version's checkpoint, say: something in it is different, and every checksum fits."""
    name = rng.choice(("tensors.safetensors", "state.json", "state.json", "manifest.json"))
    path = folder / name
    change = change_safetensors if name.endswith(".safetensors") else change_json
    _rewrite(folder, name, change(path.read_bytes(), rng))


def spoil_weights(folder: Path) -> None:
    """A checkpoint of a model whose weights are no numbers any more."""
    content = (folder / "tensors.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    for name, entry in header.items():
        if name.startswith("model.") and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            body[begin:end] = NAN * ((end - begin) // 4)
    _rewrite(folder, "tensors.safetensors", content[: 8 + size] + bytes(body))


def _rewrite(folder: Path, name: str, content: bytes) -> None:
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    manifest = folder / "manifest.json"
    if name != manifest.name:
        told = json.loads(manifest.read_bytes())
        told["sha256"][name] = hashlib.sha256(content).hexdigest()
        manifest.unlink()
        manifest.write_bytes(json.dumps(told).encode())


def take_foreign(folder: Path, other: Path) -> None:
    """Another run's checkpoint of the same step, copied over this one's."""
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def bomb(path: Path, megabytes: int) -> None:
    """A small file that becomes a large one when it is read."""
    path.unlink()
    if path.suffix == ".zst":
        import zstandard

        with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as out:
            for _ in range(megabytes):
                out.write(ZEROS)
    else:
        with gzip.open(path, "wb", compresslevel=1) as out:
            for _ in range(megabytes):
                out.write(ZEROS)
