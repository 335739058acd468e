"""Networks that need no Keras to be estimated, so that an answer takes no seconds: layer by layer, from their papers.

References:
    ResNet-50: He et al., https://arxiv.org/abs/1512.03385, as `keras.applications.ResNet50` builds it
    VGG-16: Simonyan and Zisserman, https://arxiv.org/abs/1409.1556
    SSD300: Liu et al., https://arxiv.org/abs/1512.02325, for the 21 classes of VOC
"""

from __future__ import annotations

from tf_epgc.performance.network import Layer, Network, from_keras, from_layers

_RESNET50_STAGES = ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7))
_VGG16_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_SSD_EXTRAS = (
    # filters in, out, kernel, side of the output
    (512, 1024, 3, 19), (1024, 1024, 1, 19), (1024, 256, 1, 19), (256, 512, 3, 10), (512, 128, 1, 10),
    (128, 256, 3, 5), (256, 128, 1, 5), (128, 256, 3, 3), (256, 128, 1, 3), (128, 256, 3, 1),
)  # fmt: skip
_SSD_HEADS = ((512, 38, 4), (1024, 19, 6), (512, 10, 6), (256, 5, 6), (256, 3, 4), (256, 1, 4))
_SSD_CLASSES = 21


def _convolution(name: str, filters_in: int, filters_out: int, kernel: int, side: int) -> Layer:
    weights = kernel * kernel * filters_in * filters_out
    return Layer(name, (weights, filters_out), float(weights * side * side))


def _dense(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, (inputs * outputs, outputs), float(inputs * outputs))


def _with_normalization(layer: Layer) -> list[Layer]:
    return [layer, Layer(f"{layer.name}_bn", (layer.variables[1],) * 2, 0.0)]


def _resnet50() -> list[Layer]:
    layers = _with_normalization(_convolution("conv1", 3, 64, 7, 112))
    filters_in = 64
    for stage, (filters, blocks, side) in enumerate(_RESNET50_STAGES, 2):
        for block in range(1, blocks + 1):
            name = f"conv{stage}_block{block}"
            layers += _with_normalization(_convolution(f"{name}_1", filters_in, filters, 1, side))
            layers += _with_normalization(_convolution(f"{name}_2", filters, filters, 3, side))
            last = [_with_normalization(_convolution(f"{name}_3", filters, 4 * filters, 1, side))]
            if block == 1:  # Keras sorts layers by depth, so that the shortcut's are beside the last ones
                last.insert(0, _with_normalization(_convolution(f"{name}_0", filters_in, 4 * filters, 1, side)))
            layers += [layer for pair in zip(*last, strict=True) for layer in pair]
            filters_in = 4 * filters
    return [*layers, _dense("predictions", 2048, 1000)]


def _vgg16_convolutions(side: int) -> list[Layer]:
    layers, filters_in = [], 3
    for block, (filters, count) in enumerate(_VGG16_BLOCKS, 1):
        for number in range(1, count + 1):
            layers.append(_convolution(f"block{block}_conv{number}", filters_in, filters, 3, side))
            filters_in = filters
        side = -(-side // 2)
    return layers


def _vgg16() -> list[Layer]:
    tops = [_dense("fc1", 25088, 4096), _dense("fc2", 4096, 4096), _dense("predictions", 4096, 1000)]
    return _vgg16_convolutions(224) + tops


def _ssd300() -> list[Layer]:
    layers = _vgg16_convolutions(300)
    layers.append(Layer("conv4_3_norm", (512,), 0.0))
    layers += [_convolution(f"extra{i}", *extra) for i, extra in enumerate(_SSD_EXTRAS)]
    for i, (filters, side, boxes) in enumerate(_SSD_HEADS):
        layers.append(_convolution(f"head{i}_classes", filters, boxes * _SSD_CLASSES, 3, side))
        layers.append(_convolution(f"head{i}_boxes", filters, boxes * 4, 3, side))
    return layers


_KNOWN = {"ResNet50": _resnet50, "VGG16": _vgg16, "SSD300": _ssd300}


def network(name: str) -> Network:
    """A network by its name.

    Args:
        name: `"ResNet50"`, `"VGG16"`, `"SSD300"`, or any model of `keras.applications`, which takes as long as
            importing Keras.

    Returns:
        A `Network`.

    Raises:
        ValueError: There is no such network.
    """
    if name in _KNOWN:
        return from_layers(name, _KNOWN[name]())
    return from_keras(_keras_application(name))


def _keras_application(name: str):
    known = f"Known without Keras: {', '.join(_KNOWN)}; give one of these, a model of keras.applications, or a file"
    try:
        import keras
    except ImportError as e:
        raise ValueError(
            f"Network {name!r} is not known, and Keras, which may have it, is not installed. {known}."
        ) from e
    build = getattr(keras.applications, name, None)
    if not isinstance(name, str) or not name[:1].isupper() or not callable(build):
        raise ValueError(f"Network {name!r} is not known. {known}.")
    return build(weights=None)
