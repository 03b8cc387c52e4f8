"""Deployment-domain shifts: what changes between the training data and the place where the device ends up.

Severity 3 of brightness, contrast and noise are the shifts of the algorithm study (docs/method.md); 1 and 2 are
milder, 4 and 5 harsher. All work on 0..255 pixels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from converters.errors import UserError

SHIFTS = ("none", "brightness", "contrast", "noise", "rotation")
SEVERITIES = range(1, 6)

_BRIGHTNESS = {1: (0.8, 40.0), 2: (0.6, 70.0), 3: (0.4, 100.0), 4: (0.3, 130.0), 5: (0.2, 160.0)}  # gain, offset
_CONTRAST = {1: 0.7, 2: 0.5, 3: 0.3, 4: 0.2, 5: 0.1}  # gain about 128
_NOISE = {1: 20.0, 2: 40.0, 3: 60.0, 4: 80.0, 5: 100.0}  # standard deviation
_ROTATION = {1: 30, 2: 60, 3: 90, 4: 135, 5: 180}  # degrees, anticlockwise
_CHUNK = 512  # images, so that the noise of a large set needs little memory


def apply(name: str, images: np.ndarray, severity: int = 3, seed: int = 0) -> np.ndarray:
    """uint8 [n, h, w, c] -> uint8 [n, h, w, c]. The seed matters to noise alone, whose bits depend on (seed, i)."""
    if name not in SHIFTS:
        raise UserError(f"shift {name!r} is unknown: choose one of {', '.join(SHIFTS)}.")
    if severity not in SEVERITIES:
        raise UserError(f"the severity of a shift is 1 to 5, not {severity}.")
    if name == "none":
        return images
    shift = {"brightness": _brightness, "contrast": _contrast, "noise": _noise, "rotation": _rotation}[name]
    shifted = np.empty_like(images)
    for first in range(0, len(images), _CHUNK):
        shifted[first : first + _CHUNK] = shift(images[first : first + _CHUNK], severity, seed, first)
    return shifted


def _to_pixels(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _brightness(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    gain, offset = _BRIGHTNESS[severity]
    return _to_pixels(gain * images.astype(np.float64) + offset)


def _contrast(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    return _to_pixels(_CONTRAST[severity] * (images.astype(np.float64) - 128) + 128)


def _noise(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    """Gaussian noise by Box-Muller from raw Philox words: numpy promises the words, not its normal() of a version."""
    noisy = np.empty_like(images)
    for i, image in enumerate(images):
        words = np.random.Philox(key=seed, counter=[0, 0, 0, first + i]).random_raw(image.size)
        radius = np.sqrt(-2 * np.log(((words >> np.uint64(32)) + 1.0) * 2.0**-32))
        angle = 2 * np.pi * (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
        noisy[i] = _to_pixels(image + _NOISE[severity] * (radius * np.cos(angle)).reshape(image.shape))
    return noisy


def _rotation(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    degrees = _ROTATION[severity]
    if degrees % 90 == 0 and images.shape[1] == images.shape[2]:
        return np.rot90(images, degrees // 90, axes=(1, 2))
    planes = [i[..., 0] if i.shape[-1] == 1 else i for i in images]
    turned = [np.asarray(Image.fromarray(i).rotate(degrees, Image.Resampling.BILINEAR)) for i in planes]
    return np.stack(turned).reshape(images.shape)
