"""The tests of the C app once more, with the app built under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SANITIZE = "address,undefined"


def libasan() -> str:
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


@pytest.mark.skipif("ZO_SANITIZE" in os.environ, reason="these are the inner runs")
@pytest.mark.parametrize(
    ("files", "preload"),
    [
        (["test_app_zo.py"], True),  # the app as a library inside Python: its runtime has to be loaded first
        (["test_neural_art_map.py"], True),
        (["test_app_link.py", "test_app_image.py", "test_app_plan.py"], False),
        (["test_runner.py"], False),
        (["test_neural_art_runner.py"], False),
        (["test_kernels.py::test_probes_of_unusual_windows", "test_kernels.py::test_scales_of_any_size"], False),
    ],
    ids=lambda v: Path(v[0]).stem if isinstance(v, list) else "",
)
def test_under_sanitizers(files, preload):
    env = dict(os.environ, ZO_SANITIZE=SANITIZE, UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")
    if preload:
        env |= {"LD_PRELOAD": libasan(), "ASAN_OPTIONS": "detect_leaks=0"}  # Python's own leaks are not ours
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        *(str(HERE / f) for f in files),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=HERE.parent)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
