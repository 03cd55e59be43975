"""The compiled pass over scores, made by the machine's C compiler when it is first wanted.

Without a compiler there is none, and everything is done by PyTorch, with the same numbers and slower.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-ffp-contract=fast")
_NATIVE = ("-march=native",), ("-mcpu=native",), ()
"""How compilers are told to use all that this processor has; some know one, some the other."""


@cache
def kernel() -> ctypes.CDLL | None:
    """Return the library of streaming_kernel.c, or None where no compiler is found or wanted.

    The environment variable CC names the compiler, as it does elsewhere; an empty one stands for none. It is
    compiled anew in every process, in less than a second: a file kept for later might meet another processor.
    """
    named = os.environ.get("CC")
    if named is None:
        command = [path for path in map(shutil.which, _COMPILERS) if path][:1]
    else:
        command = shlex.split(named)
    return _built(command) if command else None


def _built(command: list[str]) -> ctypes.CDLL | None:
    said = ""
    with (
        as_file(files("headwise.heads") / "streaming_kernel.c") as source,
        tempfile.TemporaryDirectory(prefix="headwise-", ignore_cleanup_errors=True) as folder,
    ):
        target = Path(folder) / "streaming_kernel.so"
        for native in _NATIVE:
            try:
                subprocess.run(
                    [*command, *_FLAGS, *native, str(source), "-o", str(target), "-lm"],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                return ctypes.CDLL(str(target))
            except subprocess.CalledProcessError as error:
                said = said or error.stderr.strip()
            except OSError as error:
                said = said or str(error)
    warnings.warn(
        f"{shlex.join(command)} could not compile the fast pass over scores, so statistics of heads take "
        "several times as long, with the same numbers; name another compiler in the environment variable CC, "
        f"or leave it empty to do without. It said: {said.splitlines()[-1] if said else 'nothing'}",
        RuntimeWarning,
        stacklevel=2,
    )
    return None
