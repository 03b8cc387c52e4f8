"""Networks by name: `build(ModelSpec("resnet18", 32, 3, 10, width=16, stem="small"))`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converters.keras_env import keras

NAMES = ("resnet18", "mobilenet_v2")


@dataclass(frozen=True)
class ModelSpec:
    """width and stem are ResNet18's, alpha MobileNetV2's."""

    name: str
    input_size: int
    channels: int
    classes: int
    width: int = 16
    stem: str = "small"
    alpha: float = 0.35

    def __str__(self) -> str:
        own = f"width {self.width}, {self.stem} stem" if self.name == "resnet18" else f"alpha {self.alpha:g}"
        return f"{self.name} ({own}) at {self.input_size}x{self.input_size}x{self.channels}, {self.classes} classes"


def default_stem(input_size: int) -> str:
    """Of a ResNet18 for images of this size."""
    return "small" if input_size <= 64 else "standard"


def build(spec: ModelSpec) -> keras.Model:
    """An untrained tf-keras model with logits out."""
    if spec.name == "resnet18":
        from pipeline.models.resnet18 import resnet18

        return resnet18(spec.input_size, spec.channels, spec.classes, spec.width, spec.stem)
    from pipeline.models.mobilenet_v2 import mobilenet_v2

    return mobilenet_v2(spec.input_size, spec.channels, spec.classes, spec.alpha)
