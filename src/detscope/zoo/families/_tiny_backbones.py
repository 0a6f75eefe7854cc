"""Small backbones that train from random weights in minutes on two cores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.ssdlite import SSDLiteFeatureExtractorMobileNet
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3
from torchvision.models.resnet import BasicBlock
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7


class SmallResNet(nn.Module):
    """A ResNet of one basic block per stage, named as torchvision names its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _make_residual(width, width, stride=1)
        self.layer2 = _make_residual(width, 2 * width, stride=2)
        self.layer3 = _make_residual(2 * width, 4 * width, stride=2)
        self.layer4 = _make_residual(4 * width, 8 * width, stride=2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _make_residual(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
        )
    return nn.Sequential(BasicBlock(inputs, outputs, stride, shortcut))


def make_resnet_with_fpn(width: int, channels: int, levels: tuple[int, ...], deeper: bool) -> BackboneWithFPN:
    """`levels` of the small ResNet (1 has stride 4) through an FPN; `deeper` adds P6 and P7."""
    return BackboneWithFPN(
        SmallResNet(width),
        return_layers={f"layer{level}": str(index) for index, level in enumerate(levels)},
        in_channels_list=[width * 2 ** (level - 1) for level in levels],
        out_channels=channels,
        extra_blocks=LastLevelP6P7(channels, channels) if deeper else LastLevelMaxPool(),
    )


class SmallVgg(nn.Module):
    """SSD's VGG extractor with fewer, normalised layers: rescaled conv4 features, then extra blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        w = width
        self.features = nn.Sequential(
            *_make_convolution(3, w),
            nn.MaxPool2d(2),
            *_make_convolution(w, 2 * w),
            nn.MaxPool2d(2),
            *_make_convolution(2 * w, 4 * w),
            nn.MaxPool2d(2, ceil_mode=True),
            *_make_convolution(4 * w, 4 * w),
        )
        fc = nn.Sequential(
            *_make_convolution(4 * w, 8 * w, dilation=3), *_make_convolution(8 * w, 8 * w, kernel=1)
        )
        self.extra = nn.ModuleList(
            [
                nn.Sequential(nn.MaxPool2d(2), *_make_convolution(4 * w, 4 * w), fc),
                _make_extra(8 * w, 4 * w),
                _make_extra(4 * w, 4 * w),
            ]
        )
        self.scale_weight = nn.Parameter(torch.ones(4 * w) * 20)
        self.out_channels = [4 * w, 8 * w, 4 * w, 4 * w]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Feature maps by level, the largest first."""
        x = self.features(x)
        levels = [self.scale_weight.view(1, -1, 1, 1) * functional.normalize(x)]
        for block in self.extra:
            x = block(x)
            levels.append(x)
        return OrderedDict((str(index), level) for index, level in enumerate(levels))


def _make_convolution(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, dilation: int = 1
) -> list[nn.Module]:
    padding = dilation * (kernel // 2)
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


def _make_extra(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *_make_convolution(inputs, outputs // 2, kernel=1),
        *_make_convolution(outputs // 2, outputs, stride=2),
    )


def make_ssdlite_extractor(norm_layer: Callable[..., nn.Module]) -> nn.Module:
    """SSDLite's feature extractor on a MobileNetV3 of seven narrow blocks."""

    def make_block(
        inputs: int, kernel: int, expanded: int, outputs: int, attention: bool, stride: int
    ) -> InvertedResidualConfig:
        return InvertedResidualConfig(
            inputs, kernel, expanded, outputs, attention, "HS" if attention else "RE", stride, 1, 1.0
        )

    settings = [
        make_block(16, 3, 16, 16, False, 1),
        make_block(16, 3, 48, 24, False, 2),
        make_block(24, 3, 72, 24, False, 1),
        make_block(24, 5, 72, 32, True, 2),
        make_block(32, 5, 96, 32, True, 1),
        make_block(32, 5, 128, 48, True, 2),
        make_block(48, 5, 192, 48, True, 1),
    ]
    features = MobileNetV3(settings, last_channel=64, norm_layer=norm_layer).features
    fourth = [index for index, part in enumerate(features) if getattr(part, "_is_cn", False)][-1]
    extractor: nn.Module = SSDLiteFeatureExtractorMobileNet(features, fourth, norm_layer, width_mult=0.25)
    return extractor
