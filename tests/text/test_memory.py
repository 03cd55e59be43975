from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Runs in a process of its own, because a process never forgets its peak. Sizes are in bytes.
PROGRAM = """
import json, re, sys
from pathlib import Path
from headwise.text import Batches, Tokenizer, open_corpus, prepare, sequential_windows

def peak():  # getrusage would also count what the parent held at the fork
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024

text, folder = sys.argv[1], Path(sys.argv[2])
small = folder / "small.txt"
small.write_text("A first line to load every part once.\\n" * 100)
bpe = Tokenizer.train("bpe", open_corpus(str(small)).chunks(), vocab_size=300)
for kind in ("char", bpe):
    first = prepare(open_corpus(str(small)), kind, folder / "small", block_size=8)
    Batches(first.train, 8, 4, 0).at(0)
found = {"start": peak()}
prepared = prepare(open_corpus(text), "char", folder / "char", block_size=64)
found["char"] = peak()
prepare(open_corpus(text + ".small"), bpe, folder / "bpe", block_size=64)
found["bpe"] = peak()
batches = Batches(prepared.train, 1024, 64, seed=0)
for position in range(0, batches.windows_per_epoch, 64):
    batches.at(position)
for _ in sequential_windows(prepared.train, 1024, 64):
    pass
found["batches"] = peak()
found["tokens"] = prepared.train.path.stat().st_size
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is measured as Linux reports it")
def test_memory_stays_bounded_however_long_the_text(tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    line = "나는 학교에 버스로 갔다 and the bus was late again, as it is on every single morning.\n"
    line_bytes = line.encode("utf-8")
    text.write_bytes(line_bytes * (20_000_000 // len(line_bytes)))
    (tmp_path / "long.txt.small").write_bytes(line_bytes * (2_000_000 // len(line_bytes)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(text), str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    print(found)
    # Held as one string and a list of ids, this text would take over 150 MB; its token file alone has 28 MB.
    assert found["tokens"] > 25_000_000
    assert found["char"] - found["start"] < 20_000_000
    assert found["bpe"] - found["char"] < 16_000_000
    assert found["batches"] - found["bpe"] < 16_000_000
