"""ResNet with frozen batch norm (He et al. 2016), under torchvision's parameter names, up to its last feature map."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_EPS = 1e-5


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics and scales are constants: an affine map of each channel of [N,C,H,W]."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        """[N,C,H,W] -> the same."""
        scale = self.weight * (self.running_var + _EPS).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = FrozenBatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = FrozenBatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), FrozenBatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C',H/stride,W/stride]."""
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """ResNet-18 is `ResNet(64, (2, 2, 2, 2))`, whose last feature map is layer4's.

    New weights are He's. As no batch norm keeps the activations' size, the blocks' own share of it begins at one over
    their number.

    Args:
        width: channels of the first stage.
        blocks: of each stage.

    Example:
        >>> ResNet(64, (2, 2, 2, 2))(torch.zeros(1, 3, 224, 224)).shape
        torch.Size([1, 512, 7, 7])
    """

    def __init__(self, width: int, blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = FrozenBatchNorm2d(width)
        self.stages: tuple[str, ...] = tuple(f"layer{number}" for number in range(1, len(blocks) + 1))
        inputs = width
        for number, (name, count) in enumerate(zip(self.stages, blocks, strict=True)):
            outputs, first = width * 2**number, 1 if number == 0 else 2
            parts = [BasicBlock(inputs if i == 0 else outputs, outputs, first if i == 0 else 1) for i in range(count)]
            self.add_module(name, nn.Sequential(*parts))
            inputs = outputs
        self.channels = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, BasicBlock):
                    module.conv2.weight.div_(math.sqrt(sum(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images [N,3,H,W] -> the last stage's features [N,channels,H',W']."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return x
