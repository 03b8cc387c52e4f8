"""Other people's forward passes, which a board has to equal bit for bit: tflite-runtime's and TFLM's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from typing import Protocol

import numpy as np

from converters.errors import UserError
from converters.tflite_model import with_every_output


class Interpreter(Protocol):
    def run(self, x: np.ndarray) -> np.ndarray:
        """int8 [classes] of one input, int8 [h, w, c]."""


class TfliteInterpreter:
    """tflite-runtime's reference kernels; with `keep`, what every op writes can be read after a run."""

    def __init__(self, tflite: bytes, *, keep: bool = False) -> None:
        try:
            from tflite_runtime.interpreter import Interpreter, OpResolverType
        except ImportError as error:
            raise UserError(
                f"the oracle is missing, tflite-runtime ({error}), which has wheels for Python 3.10 and 3.11: "
                "python -m pipeline.doctor says how to get it."
            ) from error
        self._interpreter = Interpreter(
            model_content=with_every_output(tflite) if keep else tflite,
            num_threads=1,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        self._interpreter.allocate_tensors()
        self._source = self._interpreter.get_input_details()[0]["index"]
        self._sink = self._interpreter.get_output_details()[0]["index"]

    def run(self, x: np.ndarray) -> np.ndarray:
        self._interpreter.set_tensor(self._source, x[None])
        self._interpreter.invoke()
        return self._interpreter.get_tensor(self._sink).reshape(-1)

    def tensor(self, index: int) -> np.ndarray:
        """A tensor of the graph as the last run left it (a copy)."""
        return self._interpreter.get_tensor(index)


class TflmInterpreter:
    """Upstream TFLM, from the tflite-micro wheel. Raises ImportError without it."""

    _ARENA = 32 << 20

    def __init__(self, tflite: bytes) -> None:
        from tflite_micro import runtime

        self._interpreter = runtime.Interpreter.from_bytes(tflite, arena_size=self._ARENA)

    def run(self, x: np.ndarray) -> np.ndarray:
        self._interpreter.set_input(x[None], 0)
        self._interpreter.invoke()
        return self._interpreter.get_output(0).reshape(-1).copy()


class Oracle:
    """Interpreters of one kind that share the inputs among them, a thread each."""

    def __init__(self, name: str, interpreters: Sequence[Interpreter]) -> None:
        self.name = name
        self._interpreters = interpreters
        self._pool = ThreadPoolExecutor(len(interpreters))

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        """int8 [n, classes] of inputs, int8 [n, h, w, c]."""
        parts = np.array_split(inputs, len(self._interpreters))
        shares = self._pool.map(lambda i, part: [i.run(x) for x in part], self._interpreters, parts)
        return np.stack([logits for share in shares for logits in share])

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def open_oracles(tflite: bytes, threads: int) -> list[Oracle]:
    """tflite-runtime, which has to be there, and TFLM where its wheel is installed."""
    reference = [TfliteInterpreter(tflite) for _ in range(threads)]
    oracles = [Oracle(f"tflite-runtime {version('tflite-runtime')}", reference)]
    with suppress(ImportError):
        oracles.append(Oracle(f"tflite-micro {version('tflite-micro')}", [TflmInterpreter(tflite)]))
    return oracles
