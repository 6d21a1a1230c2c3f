"""Runs the command with the preloaded shim (shim.c), which counts its calls and makes one of them fail."""

import dataclasses
import errno
import os
import pathlib
import re
import struct
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
KINDS = ["open", "read_open", "read", "write", "fsync", "rename", "mkdir", "unlink", "truncate", "link", "close", "lock", "memory"]
SHORT, FULL = -1, -2  # as in shim.c: half a write; a disk, or a memory, that is full from then on
PATH_MAX = 4096

# What can happen to a call, by its kind.
ERRORS: dict[str, list[int]] = {
    "open": [errno.ENOSPC, errno.EIO],
    "read_open": [errno.EIO],
    "read": [errno.EIO],
    "write": [errno.ENOSPC, errno.EIO, SHORT, FULL],
    "fsync": [errno.EIO, errno.ENOSPC],
    "rename": [errno.ENOSPC, errno.EIO],
    "mkdir": [errno.ENOSPC, errno.EIO],
    "unlink": [errno.EIO],
    "truncate": [errno.EIO],
    "link": [errno.ENOSPC],
    "close": [errno.EIO, errno.ENOSPC],
    "lock": [errno.ENOLCK],
    "memory": [errno.ENOMEM, FULL],
}


def error_name(error: int) -> str:
    return {SHORT: "short", FULL: "full from here"}.get(error) or errno.errorcode[error]


@dataclasses.dataclass(frozen=True)
class Fault:
    """The n-th call of a kind fails."""

    kind: str
    nth: int
    error: int

    def __str__(self) -> str:
        return f"{self.kind} {self.nth}: {error_name(self.error)}"

    def reason(self) -> str:
        """The words that the message must contain."""
        full = errno.ENOMEM if self.kind == "memory" else errno.ENOSPC
        return os.strerror(full if self.error == FULL else self.error) if self.error != SHORT else ""


@dataclasses.dataclass
class Outcome:
    code: int
    stdout: str
    stderr: str
    fired: bool
    path: str  # of the call that failed
    calls: list[tuple[str, str]]  # kind and path of every call, in order

    def message(self) -> str:
        """The last line that the command says about itself, with the lines that follow."""
        at = ("\n" + self.stderr).rfind("\nstrata: ")
        return self.stderr[at:] if at >= 0 else ""


def build_shim(folder: pathlib.Path) -> pathlib.Path:
    """Compiles the shim. It belongs to this machine, so it is never kept."""
    shim = folder / "shim.so"
    compiler = os.environ.get("CC", "cc")
    # -fno-builtin: the compiler may not replace a call inside malloc by a call of malloc.
    subprocess.run([compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fno-builtin", "-shared", "-fPIC", "-o", shim, HERE / "shim.c", "-ldl"],
                   check=True)
    return shim


def without_part(name: str) -> str:
    """The name that a temporary file will have."""
    return re.sub(r"\.part[0-9a-f]{8}", "", name)


class Command:
    """The command under test, in an environment that is the same everywhere."""

    def __init__(self, program: str, shim: pathlib.Path, limit: float = 120):
        self.program, self.shim, self.limit = program, shim, limit

    def environment(self, cache: pathlib.Path, case: pathlib.Path) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE") if name in os.environ}
        # The count of spins is set, because the command would set it itself and start anew (cli/main.cc).
        return {**kept, "LC_ALL": "C", "GOMP_SPINCOUNT": "10000", "XDG_CACHE_HOME": str(cache), "FAULTS_CASE": str(case)}

    def run(self, args: list[str], case: pathlib.Path, cache: pathlib.Path) -> subprocess.CompletedProcess[str]:
        """Without faults."""
        return subprocess.run([self.program, *args], cwd=case, env=self.environment(cache, case), capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, timeout=self.limit)

    def run_with_fault(self, args: list[str], case: pathlib.Path, cache: pathlib.Path, fault: Fault | None) -> Outcome:
        """With one fault, or with none but a list of the calls. Raises TimeoutExpired if the command hangs."""
        with tempfile.TemporaryDirectory(prefix="strata-faults-") as folder:
            state, log = pathlib.Path(folder, "state"), pathlib.Path(folder, "log")
            state.write_bytes(bytes(8 * len(KINDS) + 8 + PATH_MAX))
            env = self.environment(cache, case)
            env.update(LD_PRELOAD=str(self.shim), FAULTS_ROOT=str(case.resolve()), FAULTS_STATE=str(state))
            if fault is None:
                env.update(FAULTS_LOG=str(log))
            else:
                env.update(FAULTS_KIND=fault.kind, FAULTS_NTH=str(fault.nth), FAULTS_ERROR=str(fault.error))
            done = subprocess.run([self.program, *args], cwd=case, env=env, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                                  timeout=self.limit)
            raw = state.read_bytes()
            fired, = struct.unpack_from("<Q", raw, 8 * len(KINDS))
            path = raw[8 * len(KINDS) + 8:].split(b"\0")[0].decode(errors="replace")
            lines = log.read_text().splitlines() if log.exists() else []
        calls = [(kind, name) for kind, _, name in (line.partition(" ") for line in lines)]
        return Outcome(done.returncode, done.stdout, done.stderr, fired != 0, path, calls)
