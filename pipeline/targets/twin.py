"""The twin: a target on the host that equals a board bit for bit, built from other people's forward pass.

tflite-runtime's reference kernels run the graph (the weights patched into the flatbuffer), pipeline.zo does the rest.
Whatever a board replies to a command, the twin replies too: losses, counts, checksums. That is what proves a board.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tflite_runtime.interpreter import Interpreter, OpResolverType

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline.targets.target import BatchLoss, Probe, TargetInfo, Update, UpdateResult
from pipeline.zo import loss, update

CAPACITY = 1 << 17  # samples; memory is taken as they come
MAX_BATCH = 1 << 12


class Twin:
    """See target.Target. Each thread makes an interpreter of its own; none outlives the weights it was made of."""

    def __init__(self, image: DeviceImage, threads: int | None = None) -> None:
        """threads: all cores by default."""
        self._image = image
        self._weights = image.get_weights()
        self._pixels = np.empty((0, image.input.height, image.input.width, image.input.channels), np.int8)
        self._labels = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64)
        self._threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads)

    @property
    def info(self) -> TargetInfo:
        return TargetInfo(
            board="twin",
            runner="tflite-runtime (reference kernels)",
            image_crc=self._image.crc,
            weights_crc=self.weights_crc(),
            weights=self._weights.size,
            mu_max=self._image.mu_max,
            classes=self._image.classes,
            sample_bytes=self._image.input.size,
            capacity=CAPACITY,
            max_batch=MAX_BATCH,
            threads=self._threads,
            memory={"weights": self._weights.size, "samples": self._pixels.nbytes},
        )

    def write_samples(self, first: int, pixels: np.ndarray, labels: np.ndarray) -> None:
        end = first + len(labels)
        if not 0 <= first <= end <= CAPACITY:
            raise UserError(f"the twin holds {CAPACITY} samples; slots {first} to {end - 1} are beyond: use fewer.")
        if pixels.shape[1:] != self._pixels.shape[1:]:
            raise UserError(f"the network takes images of {self._pixels.shape[1:]}, not of {pixels.shape[1:]}.")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self._image.classes:
            raise UserError(f"the network has {self._image.classes} classes; a label is outside of them.")
        if end > len(self._labels):
            more = end - len(self._labels)
            self._pixels = np.concatenate([self._pixels, np.zeros((more, *self._pixels.shape[1:]), np.int8)])
            self._labels = np.concatenate([self._labels, np.zeros(more, np.int64)])
        self._pixels[first:end] = self._image.quantize_pixels(pixels)
        self._labels[first:end] = labels

    def select(self, slots: Sequence[int]) -> None:
        chosen = np.asarray(slots, np.int64)
        if not 1 <= chosen.size <= MAX_BATCH or np.unique(chosen).size != chosen.size:
            raise UserError(f"a batch is 1 to {MAX_BATCH} different samples, not {chosen.size}.")
        if chosen.min() < 0 or chosen.max() >= len(self._labels):
            raise UserError(f"a batch names sample {chosen.max()}, but {len(self._labels)} are loaded.")
        self._slots = chosen

    def loss(self) -> BatchLoss:
        return self._loss(self._weights)

    def probe(self, seed: int, mu: int) -> Probe:
        self._check_mu(mu)
        plus = self._loss(update.perturb(self._weights, seed, mu))
        return Probe(plus, self._loss(update.perturb(self._weights, seed, -mu)))

    def probe_plus(self, seed: int, mu: int) -> BatchLoss:
        self._check_mu(mu)
        return self._loss(update.perturb(self._weights, seed, mu))

    def update(self, request: Update) -> UpdateResult:
        try:
            self._weights, changed, at_rail = update.apply_update(
                self._weights,
                self._image.mu_max,
                request.rounding,
                request.rounding_seed,
                request.seeds,
                request.coefficients,
            )
        except ValueError as error:
            raise UserError(f"the twin refuses the update: {error}.") from error
        return UpdateResult(changed, at_rail, self.weights_crc())

    def weights_crc(self) -> int:
        return zlib.crc32(self._weights.tobytes())

    def refresh(self) -> TargetInfo:
        return self.info

    def set_weight(self, index: int, value: int) -> int:
        """Give one weight another value; returns the one that it had."""
        before = int(self._weights[index])
        self._weights[index] = value
        return before

    def logits(self) -> np.ndarray:
        """int8 [batch, classes] of the current batch."""
        return self._run(self._weights)

    def read_tflite(self) -> bytes:
        return self._image.with_weights(self._weights)

    def reset_weights(self) -> int:
        self._weights = self._image.get_weights()
        return self.weights_crc()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _check_mu(self, mu: int) -> None:
        if not 1 <= mu <= self._image.mu_max:
            raise UserError(f"mu is {mu}, but the image leaves room for 1 to {self._image.mu_max}: convert it anew.")

    def _run(self, weights: np.ndarray) -> np.ndarray:
        model = self._image.with_weights(weights)
        parts = np.array_split(self._slots, min(self._threads, self._slots.size))
        return np.concatenate(list(self._pool.map(lambda part: _logits(model, self._pixels[part]), parts)))

    def _loss(self, weights: np.ndarray) -> BatchLoss:
        logits = self._run(weights)
        labels = self._labels[self._slots]
        table = self._image.loss
        losses = loss.sample_losses(logits, labels, table.exp, table.scale_q24)
        return BatchLoss(int(losses.sum(dtype=np.uint64)), loss.count_correct(logits, labels))


def _logits(model: bytes, pixels: np.ndarray) -> np.ndarray:
    """int8 [n, classes] of int8 pixels [n, h, w, c], one image at a time as a board does it."""
    interpreter = Interpreter(
        model_content=model, num_threads=1, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    source, sink = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    logits = []
    for image in pixels:
        interpreter.set_tensor(source, image[None])
        interpreter.invoke()
        logits.append(interpreter.get_tensor(sink)[0])
    return np.stack(logits)
