"""What can happen to a file, a folder or a checkpoint, each drawn from one seed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.values import LONG, LONG_BY_RIGHT, NUMBERS, TITLE, WORDS

DEEP = "[" * 20_000
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = (
    "", "\n", " ", "\0", "null", "[]", "{}", "3", '""', "nan", "true", "\ufeff{}", "{", "[", '{"a": 1, "a": 2}', DEEP,
    BOMB, '{"a":' * 5000, "- " * 3000 + "x", "1" * 5000, '{"schema": ' + "9" * 5000 + "}", '"\\ud800"', "\x1b[31m",
    TITLE, "model: !!python/object/apply:os.getcwd []", "model: !!binary x", "? [a]\n: b", "---\na: 1\n---\nb: 2",
    "%YAML 9.9\n---\n", "\t- a", "base: nothing.yaml", "base: recipe.yaml", "base: config.yaml", "base: [1]",
    "base: {}", "base: '[/red]'", "<<: *x", "a: &a [*a]", "model: &m {d_model: *m}", "model: {1: 2}",
    "model: 2024-13-45", "model: [1]", "1: 2", "null: 2", "model: {name: [1]}", "stream: {tasks: {}}",
    "stream: {tasks: [[1]]}", "model: {}\nmodel: {}", "model: {<<: {}}",
    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "<html><body>404</body></html>",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e308, float("nan"), float("inf"), 2**31, 2**63, -(2**63), 2**64,
    10**30, "", "x", "nan", "[/red]", TITLE, "\ud800", LONG, [], [1], [[]], {}, {"x": 1}, {"": None}, [None] * 3,
    "../x", "/dev/null",
)  # fmt: skip
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
STRAYS = (
    "step-3.bak", "step-", "step-x", "step-00000099", "step--0000001", "step-٣", "step-3", "step-000000000003",
    "step-1e3", ".step-00000006.partial", "step-00000002 (copy)", "step-99999999999999999999", "step-00000004.old",
    "🦊", ".DS_Store",
)  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- bytes


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, insert, repeat or overwrite a few bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[place : place + rng.randint(1, 64)]
            case 2:
                data[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 16)))
            case 3:
                data[place:place] = data[place : place + rng.randint(1, 64)]
            case _:
                data[place : place + 8] = b"\xff" * 8
    return bytes(data)


def cut(content: bytes, rng: random.Random) -> bytes:
    """What a full disk or a broken copy leaves."""
    return content[: rng.randrange(len(content))] if content else b""


def reshape(content: bytes, rng: random.Random) -> bytes:
    """The same file as somebody else's tools would leave it, or not at all the same."""
    half = len(content) // 2
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: b"\0" * len(content),
        lambda: content + content,
        lambda: content + b"\0\xff garbage",
        lambda: content[half:] + content[:half],
        lambda: content[::-1],
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.decode("utf-8", "replace").encode("utf-16"),
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content.replace(b"\n", b"\r"),
        lambda: content.replace(b" ", b"\t"),
        lambda: content.rstrip(b"\n"),
        lambda: content + b"\n\n",
        lambda: content.upper(),
        lambda: rng.choice(TEXTS).encode("utf-8", "surrogatepass"),
    )
    return rng.choice(ways)()


# -------------------------------------------------------------------------------------------------- what a file means


def change_json(content: bytes, rng: random.Random) -> bytes:
    """Valid JSON still, with one thing in it changed, lost, renamed or added."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return mutate(content, rng)
    return json.dumps(_changed(value, rng), indent=rng.choice((None, 1))).encode("utf-8", "surrogatepass")


def _changed(value: Any, rng: random.Random) -> Any:
    """One place of a nested value, chosen by walking down, is another value."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        roll = rng.random()
        if roll < 0.1:
            return {name: entry for name, entry in value.items() if name != key}
        if roll < 0.17:
            return {(f"{name}x" if name == key else name): entry for name, entry in value.items()}
        if roll < 0.2:
            return {**value, rng.choice(("x", "", "[/red]", TITLE)): rng.choice(ODD_VALUES)}
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        roll = rng.random()
        if roll < 0.1:
            return value[:place] + value[place + 1 :]
        if roll < 0.2:
            return [*value[:place], value[place], *value[place:]]
        return [*value[:place], _changed(value[place], rng), *value[place + 1 :]]
    if isinstance(value, int | float) and rng.random() < 0.3:
        return rng.choice((value + 1, -value, value * 10, value / 2, str(value), [value]))
    return rng.choice(ODD_VALUES)


def change_lines(content: bytes, rng: random.Random) -> bytes:
    """JSON lines with one line changed, lost, doubled, moved, torn or added."""
    lines = content.split(b"\n")
    place = rng.randrange(max(1, len(lines) - 1))
    match rng.randrange(8):
        case 7:  # a number that is not documented
            metric = rng.choice((b"perplexity", b"loss_lm", b"seconds", b"eval/", b"nll"))
            lines = [line.replace(metric, b"x" + metric) for line in lines]
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[rng.randrange(len(lines))])
        case 2:
            lines[place] = cut(lines[place], rng)
        case 3:  # torn by a kill, with or without a line end after it
            lines = [*lines[:place], cut(lines[place], rng), *([b""] if rng.random() < 0.5 else [])]
        case 4:
            lines.insert(place, rng.choice(TEXTS).encode("utf-8", "surrogatepass"))
        case 5:
            lines = lines[:place] + [b""] * (rng.random() < 0.8)
        case _:
            lines[place] = change_json(lines[place], rng)
    return b"\n".join(lines)


def change_yaml(content: bytes, rng: random.Random) -> bytes:
    """A recipe in which one line says something else. Text, because parsing would cost more than the case."""
    lines = content.decode("utf-8", "replace").split("\n")
    place = rng.randrange(max(1, len(lines) - 1))
    key, colon, value = lines[place].partition(":")
    if not colon or key.strip("- ") in LONG_BY_RIGHT:
        return mutate(content, rng)
    match rng.randrange(8):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case 6 | 7 if NUMBER.fullmatch(value.strip()):  # as somebody would who wants another run
            lines[place] = f"{key}: {rng.choice((float(value) * 2, float(value) / 2, int(float(value)) + 1))}"
        case 2:
            lines[place] = f"{key}x:{value}"
        case 3:
            lines[place] = f" {lines[place]}"
        case 4:
            lines[place] = f"{key}: {rng.choice(NUMBERS)}"
        case _:
            lines[place] = f"{key}: {json.dumps(rng.choice((*ODD_VALUES, *WORDS)))}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def change_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Tensors whose table of contents is wrong, or whose numbers are not finite."""
    if len(content) < 8:
        return mutate(content, rng)
    (size,) = struct.unpack("<Q", content[:8])
    header, body = content[8 : 8 + size], content[8 + size :]
    match rng.randrange(4):
        case 0:
            header = change_json(header, rng)
        case 1:
            return struct.pack("<Q", rng.choice((0, 1, size - 1, size + 1, 2**32, 2**63, 2**64 - 1))) + content[8:]
        case 2:
            place = 4 * rng.randrange(max(1, len(body) // 4))
            number = struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e38, 0.0)))
            body = body[:place] + number + body[place + 4 :]
        case _:
            body = mutate(body, rng)
    return struct.pack("<Q", len(header)) + header + body


MEANINGS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": change_json,
    ".jsonl": change_lines,
    ".yaml": change_yaml,
    ".safetensors": change_safetensors,
}


def changed_content(name: str, content: bytes, rng: random.Random) -> bytes:
    """A file's content after something happened to it. Half of the time its form stays valid."""
    roll = rng.random()
    by_meaning = MEANINGS.get(Path(name).suffix)
    if by_meaning is not None and roll < 0.5:
        return by_meaning(content, rng)
    if roll < 0.7:
        return mutate(content, rng)
    return cut(content, rng) if roll < 0.85 else reshape(content, rng)


# ------------------------------------------------------------------------------------------------------------ folders


def damage_file(path: Path, how: str, rng: random.Random) -> None:
    """Do one thing to one file or folder."""
    if how == "content":
        if os.path.isfile(path) and not path.is_symlink():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(changed_content(path.name, content, rng))
        return
    if how == "stray":
        _add_stray(path if os.path.isdir(path) else path.parent, rng)
        return
    others = sorted(other for other in path.parent.iterdir() if other != path) if os.path.isdir(path.parent) else []
    _remove(path)
    match how:
        case "missing":
            pass
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
            if rng.random() < 0.3:
                (path / "x").write_bytes(b"x")
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to(rng.choice(("nowhere", LONG, "/dev/null/x", "../..", "/dev/null", "/dev/zero")))
        case "other" if others:
            other = rng.choice(others)
            if rng.random() < 0.5:
                path.symlink_to(other.name)
            elif other.is_dir() and not other.is_symlink():
                shutil.copytree(other, path, symlinks=True)
            elif os.path.isfile(other):
                shutil.copyfile(other, path)


HOWS = ("content",) * 16 + ("missing",) * 4 + ("folder", "loop", "dangling", "other", "stray") * 2 + ("pipe",)


def _add_stray(folder: Path, rng: random.Random) -> None:
    if not os.path.isdir(folder):
        return
    target = folder / (rng.choice(STRAYS) if folder.name == "checkpoints" else rng.choice((*STRAYS, TITLE, "[bold]x")))
    inside = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
    roll = rng.randrange(4)
    if os.path.lexists(target):
        return
    if roll == 0:
        target.mkdir()
    elif roll == 1 and inside:
        shutil.copytree(rng.choice(inside), target, symlinks=True)
    elif roll == 2:
        target.symlink_to(rng.choice(("nowhere", target.name, ".")))
    else:
        target.write_bytes(rng.choice(TEXTS).encode("utf-8", "surrogatepass"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


# -------------------------------------------------------------------------------- damage that agrees with its checksums


def forge_checkpoint(folder: Path, rng: random.Random) -> None:
    """Another version's checkpoint, say: something in it is different, and every checksum fits."""
    name = rng.choice(("tensors.safetensors", "state.json", "state.json", "manifest.json"))
    change = change_safetensors if name.endswith(".safetensors") else change_json
    _rewrite(folder, name, change((folder / name).read_bytes(), rng))


def spoil_weights(folder: Path) -> None:
    """A checkpoint of a model whose weights are NaN."""
    content = (folder / "tensors.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    for name, entry in header.items():
        if name.startswith("model.") and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            body[begin:end] = struct.pack("<f", float("nan")) * ((end - begin) // 4)
    _rewrite(folder, "tensors.safetensors", content[: 8 + size] + bytes(body))


def _rewrite(folder: Path, name: str, content: bytes) -> None:
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    manifest = folder / "manifest.json"
    if name != manifest.name:
        checksums = json.loads(manifest.read_bytes())
        checksums["sha256"][name] = hashlib.sha256(content).hexdigest()
        manifest.unlink()
        manifest.write_bytes(json.dumps(checksums).encode())


def take_foreign(folder: Path, other: Path) -> None:
    """Another run's checkpoint of the same step, copied over this one's."""
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def bomb(path: Path, megabytes: int) -> None:
    """A small file that becomes a large one when it is read."""
    import zstandard

    path.unlink()
    zeros = b"\0" * 2**20 * megabytes
    is_zst = path.suffix == ".zst"
    path.write_bytes(
        zstandard.ZstdCompressor(level=1, write_content_size=False).compress(zeros)
        if is_zst
        else gzip.compress(zeros, 1)
    )
