"""What a folder holds: whether every file in it is whole, and the part of it that two runs must have in common."""

import hashlib
import json
import pathlib
import re
import struct
import zlib
from typing import Any

PART = re.compile(r"\.part[0-9a-f]+$|\.writing$")
# What a clock measured, or says when and where something was computed.
MEASURED = {"train_seconds", "step_milliseconds", "tokens_per_second", "seconds", "record", "started", "finished", "resumed", "machine", "versions",
            "time_ratio"}
DIGEST = b'"strata.sha256":"'


def relative_name(path: pathlib.Path, folder: pathlib.Path) -> str:
    """Event files have a time and the number of a process in their names."""
    return re.sub(r"tfevents\.\d+\.strata\.\d+", "tfevents", str(path.relative_to(folder)))


def files_in(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def stray_names(folder: pathlib.Path) -> list[str]:
    """Temporary files and folders."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if PART.search(path.name))


# ------------------------------------------------------------------------------------------------- whole or not


def check_safetensors(raw: bytes) -> None:
    size, = struct.unpack_from("<Q", raw)
    text, data = raw[8:8 + size], raw[8 + size:]
    header = json.loads(text)
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert max(ends, default=0) == len(data), f"{len(data)} bytes of tensors, expected {max(ends, default=0)}"
    at = text.find(DIGEST)
    if at < 0:
        return  # not written by the command
    at += len(DIGEST)
    stored = text[at:at + 64]
    cleared = raw[:8] + text[:at] + b"0" * 64 + text[at + 64:] + data
    assert hashlib.sha256(cleared).hexdigest().encode() == stored, "the digest is wrong"


def page_data(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="page">(.*?)</script>', text, re.DOTALL)
    assert found is not None and text.rstrip().endswith("</html>"), "the page is cut"
    return json.loads(found[1])


def check_lines(text: str, cut_end: bool) -> None:
    """JSON lines. A killed process may leave the last line without its end."""
    whole, _, rest = text.rpartition("\n")
    for line in whole.splitlines():
        json.loads(line)
    assert cut_end or not rest, f"the last line is cut: {rest[-80:]!r}"


def check_manifest(path: pathlib.Path) -> None:
    for name, facts in json.loads(path.read_text())["files"].items():
        raw = (path.parent / name).read_bytes()
        assert (len(raw), zlib.crc32(raw)) == (facts["bytes"], facts["crc32"]), f"{name} is not as the manifest says"


def check_events(raw: bytes, cut_end: bool) -> None:
    at = 0
    while at + 12 <= len(raw) and at + 16 + struct.unpack_from("<Q", raw, at)[0] <= len(raw):
        at += 16 + struct.unpack_from("<Q", raw, at)[0]
    assert cut_end or at == len(raw), "the last event is cut"


def check_npy(raw: bytes) -> None:
    assert raw[:6] == b"\x93NUMPY"
    size, = struct.unpack_from("<H", raw, 8)
    shape = re.search(rb"'shape': \((\d+), (\d+)\)", raw[10:10 + size])
    assert shape is not None and len(raw) == 10 + size + 4 * int(shape[1]) * int(shape[2]), "the matrix is cut"


def check_file(path: pathlib.Path, cut_end: bool) -> None:
    """Raises if a file is not whole. `cut_end`: the last line of a log may be."""
    if path.name == "manifest.json":
        check_manifest(path)
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".jsonl":
        check_lines(path.read_text(), cut_end)
    elif path.suffix == ".safetensors":
        check_safetensors(path.read_bytes())
    elif path.suffix == ".html":
        page_data(path.read_text())
    elif path.suffix in (".md", ".csv", ".tsv"):
        assert path.read_text().endswith("\n"), "the last line is cut"
    elif "tfevents" in path.name:
        check_events(path.read_bytes(), cut_end=True)  # as TensorBoard allows it
    elif path.suffix == ".npy":
        check_npy(path.read_bytes())


def damaged_files(folder: pathlib.Path, cut_end: bool = False) -> list[str]:
    """Every file that is not whole under its final name, and why."""
    found = []
    for path in files_in(folder):
        if any(PART.search(part) for part in path.relative_to(folder).parts):
            continue
        try:
            check_file(path, cut_end)
        except Exception as error:  # whatever a damaged file makes of a parser
            found.append(f"{path.relative_to(folder)}: {type(error).__name__}: {error}")
    return found


# ------------------------------------------------------------------------------------------------- the same or not


def without_measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_measured(item) for key, item in value.items() if key not in MEASURED}
    return [without_measured(item) for item in value] if isinstance(value, list) else value


def tensors_of(raw: bytes) -> dict[str, bytes]:
    size, = struct.unpack_from("<Q", raw)
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


def content_of(path: pathlib.Path) -> Any:
    """What two runs have in common, to the bit. None: only that there is such a file."""
    if path.suffix == ".safetensors":
        return tensors_of(path.read_bytes())
    if path.suffix == ".json":
        return without_measured(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [without_measured(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".html":
        return without_measured(page_data(path.read_text()))
    return path.read_bytes() if path.suffix in (".tsv", ".npy") else None


def contents(folder: pathlib.Path) -> dict[str, Any]:
    return {relative_name(path, folder): content_of(path) for path in files_in(folder)}


def state_of(folder: pathlib.Path) -> str:
    """A digest of everything in a folder that what goes on there depends on."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = relative_name(path, folder)
        content = content_of(path) if path.is_file() else path.is_dir()
        if content is None and "tfevents" not in name and path.name != "log.txt":
            content = path.read_bytes()
        digest.update(repr((name, content)).replace(str(folder), "FOLDER").encode())
    return digest.hexdigest()


def differences(whole: dict[str, Any], other: dict[str, Any], whole_folder: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Names of files that differ. Paths inside the files are those of their own folder."""
    def plain(value: Any, own: pathlib.Path) -> Any:
        if isinstance(value, dict):
            return {key: plain(item, own) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item, own) for item in value]
        return value.replace(str(own), "FOLDER") if isinstance(value, str) else value

    found = [f"{name} is missing" for name in whole if name not in other]
    found += [f"{name} is left over" for name in other if name not in whole]
    return found + [f"{name} differs" for name in whole if name in other and plain(whole[name], whole_folder) != plain(other[name], folder)]
