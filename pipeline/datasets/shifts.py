"""Deployment-domain shifts: what changes between the training data and the place where the device ends up.

Severity 3 of brightness, contrast and noise are the shifts of the algorithm study (docs/method.md); 1 and 2 are
milder, 4 and 5 harsher. All work on 0..255 pixels. What JPEG leaves depends on Pillow's libjpeg.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from converters.errors import UserError

SHIFTS = ("none", "brightness", "contrast", "noise", "rotation", "defocus", "haze", "jpeg")
SEVERITIES = range(1, 6)

_BRIGHTNESS = {1: (0.8, 40.0), 2: (0.6, 70.0), 3: (0.4, 100.0), 4: (0.3, 130.0), 5: (0.2, 160.0)}  # gain, offset
_CONTRAST = {1: 0.7, 2: 0.5, 3: 0.3, 4: 0.2, 5: 0.1}  # gain about 128
_NOISE = {1: 20.0, 2: 40.0, 3: 60.0, 4: 80.0, 5: 100.0}  # standard deviation
_ROTATION = {1: 30, 2: 60, 3: 90, 4: 135, 5: 180}  # degrees, anticlockwise
_DEFOCUS = {1: 1.0, 2: 1.5, 3: 2.0, 4: 3.0, 5: 4.0}  # radius of the blur's disk, in pixels of an image 64 wide
_HAZE = {1: 0.8, 2: 0.65, 3: 0.5, 4: 0.35, 5: 0.2}  # mean share of light that comes through
_HAZE_LIGHT = 220.0  # brightness of the haze itself
_HAZE_GRID = 5  # its thickness is drawn at so many places a side, and interpolated between them
_JPEG = {1: 40, 2: 25, 3: 15, 4: 8, 5: 4}  # quality
_CHUNK = 512  # images, so that the noise of a large set needs little memory


def apply(name: str, images: np.ndarray, severity: int = 3, seed: int = 0) -> np.ndarray:
    """uint8 [n, h, w, c] -> uint8 [n, h, w, c]. Noise and haze of image i depend on (seed, i)."""
    if name not in SHIFTS:
        raise UserError(f"shift {name!r} is unknown: choose one of {', '.join(SHIFTS)}.")
    if severity not in SEVERITIES:
        raise UserError(f"the severity of a shift is 1 to 5, not {severity}.")
    if name == "none":
        return images
    shift = _SHIFTS[name]
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


def _words(seed: int, image: int, count: int) -> np.ndarray:
    """uint64 [count]: numpy promises Philox's words, not what its distributions make of them."""
    return np.random.Philox(key=seed, counter=[0, 0, 0, image]).random_raw(count)


def _noise(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    """Gaussian, by Box-Muller."""
    noisy = np.empty_like(images)
    for i, image in enumerate(images):
        words = _words(seed, first + i, image.size)
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


def _defocus(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    """The mean over a disk, as of a lens out of focus; edges are continued."""
    radius = max(1.0, _DEFOCUS[severity] * images.shape[2] / 64)
    reach = int(radius)
    disk = [(y, x) for y in range(-reach, reach + 1) for x in range(-reach, reach + 1) if y * y + x * x <= radius**2]
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge").astype(np.uint32)
    total = sum(padded[:, reach + y : reach + y + height, reach + x : reach + x + width] for y, x in disk)
    return _to_pixels(total / len(disk))


def _haze(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    """Light t x + (1 - t) 220, where t varies smoothly over the image: the exponential of a bilinear thickness."""
    hazy = np.empty_like(images)
    rows, columns = (_interpolation(n) for n in images.shape[1:3])
    for i, image in enumerate(images):
        drawn = (_words(seed, first + i, _HAZE_GRID**2) >> np.uint64(11)) * 2.0**-53
        thickness = -np.log(_HAZE[severity]) * (0.5 + drawn.reshape(_HAZE_GRID, _HAZE_GRID))
        through = np.exp(-(rows @ thickness @ columns.T))[..., None]
        hazy[i] = _to_pixels(through * image + (1 - through) * _HAZE_LIGHT)
    return hazy


def _interpolation(pixels: int) -> np.ndarray:
    """float64 [pixels, grid]: weights of the grid's places for each pixel, bilinear."""
    at = np.linspace(0, _HAZE_GRID - 1, pixels)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(_HAZE_GRID)))


def _jpeg(images: np.ndarray, severity: int, seed: int, first: int) -> np.ndarray:
    packed = np.empty_like(images)
    for i, image in enumerate(images):
        file = io.BytesIO()
        plane = image[..., 0] if image.shape[-1] == 1 else image
        Image.fromarray(plane).save(file, "JPEG", quality=_JPEG[severity])
        packed[i] = np.asarray(Image.open(file)).reshape(image.shape)
    return packed


_SHIFTS = {
    "brightness": _brightness, "contrast": _contrast, "noise": _noise, "rotation": _rotation,
    "defocus": _defocus, "haze": _haze, "jpeg": _jpeg,
}  # fmt: skip
