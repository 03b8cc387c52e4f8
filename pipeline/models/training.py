"""Training on the host, with backpropagation: what happens before a network meets its device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from converters.keras_env import keras, tf
from pipeline.cli import progress
from pipeline.datasets import Split

_PREDICT_BATCH = 256


@dataclass(frozen=True)
class Schedule:
    """Adam with one cycle of the learning rate: up to the peak over the first fifth, then down to zero."""

    epochs: int
    peak: float
    batch: int = 128
    augment: bool = False  # mirror each image at random, and move each batch by up to 1/16 of its size


def scale(images: tf.Tensor | np.ndarray, lo: tuple[float, ...], hi: tuple[float, ...]) -> tf.Tensor:
    """uint8 pixels -> float32 in the network's input range, channel by channel."""
    low, high = (tf.constant(np.broadcast_to(np.float32(v), images.shape[-1])) for v in (lo, hi))
    return low + (high - low) * (tf.cast(images, tf.float32) / 255.0)


def fit(
    model: keras.Model,
    split: Split,
    lo: tuple[float, ...],
    hi: tuple[float, ...],
    schedule: Schedule,
    seed: int,
    title: str,
) -> None:
    """Train `model` (logits out) in place; a batch never exceeds the split."""
    if schedule.epochs == 0:
        return
    schedule = replace(schedule, batch=min(schedule.batch, len(split)))
    steps = schedule.epochs * (len(split) // schedule.batch)
    model.compile(
        keras.optimizers.Adam(_OneCycle(schedule.peak, steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(_batches(split, lo, hi, schedule, seed), epochs=1, steps_per_epoch=steps, verbose=0,
              callbacks=[_Progress(title, steps, len(split) // schedule.batch)])  # fmt: skip


def accuracy(model: keras.Model, split: Split, lo: tuple[float, ...], hi: tuple[float, ...]) -> float:
    """Share of right answers, evaluated without training-time behaviour."""
    forward = tf.function(lambda x: tf.argmax(model(scale(x, lo, hi), training=False), -1))
    right = 0
    for first in range(0, len(split), _PREDICT_BATCH):
        part = slice(first, first + _PREDICT_BATCH)
        right += int(np.sum(forward(tf.constant(split.images[part])).numpy() == split.labels[part]))
    return right / len(split)


def _batches(split: Split, lo, hi, schedule: Schedule, seed: int) -> tf.data.Dataset:
    labels = split.labels.astype(np.int32)

    def take(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = scale(tf.gather(images, index), lo, hi)
        if schedule.augment:
            x = _translate(tf.image.random_flip_left_right(x), split.images.shape[1] // 16)
        return x, tf.gather(targets, index)

    with tf.device("CPU"):
        images, targets = tf.constant(split.images), tf.constant(labels)
    order = tf.data.Dataset.range(len(labels)).shuffle(len(labels), seed=seed).repeat(schedule.epochs)
    return order.batch(schedule.batch, drop_remainder=True).map(take, num_parallel_calls=2).prefetch(4)


def _translate(x: tf.Tensor, most: int) -> tf.Tensor:
    """One random translation of the whole batch, edges reflected."""
    size = tf.shape(x)
    padded = tf.pad(x, ((0, 0), (most, most), (most, most), (0, 0)), "REFLECT")
    corner = tf.random.uniform((2,), 0, 2 * most + 1, tf.int32)
    return tf.reshape(padded[:, corner[0] : corner[0] + size[1], corner[1] : corner[1] + size[2]], size)


class _OneCycle(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak: float, steps: int):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        part = tf.cast(step, tf.float32) / float(self.steps)
        return self.peak * tf.minimum(part / 0.2 + 0.05, tf.maximum(1.0 - part, 0.0) / 0.8)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


class _Progress(keras.callbacks.Callback):
    """One bar with an ETA over all steps."""

    def __init__(self, title: str, steps: int, epoch: int):
        super().__init__()
        self.epoch = epoch
        self.bar = progress(steps, title, "step")

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update()
        if batch % 20 == 0 and logs:
            self.bar.set_postfix(epoch=batch // self.epoch + 1, loss=f"{logs['loss']:.3f}",
                                 accuracy=f"{logs['accuracy']:.3f}", refresh=False)  # fmt: skip
        if (batch + 1) % self.epoch == 0:
            self.model.reset_metrics()

    def on_train_end(self, logs=None):
        self.bar.close()
