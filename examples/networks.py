"""The networks that the examples classify small images with: ResNet and VGG, each in its variant for CIFAR."""

import re

#: Convolutions of each stage of VGG; every stage ends with a pooling layer.
VGG_STAGES = {
    8: (1, 1, 2, 2, 1),
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
}


def build(name, shape=(32, 32, 3), classes=10, width=16):
    """Builds a network by its name.

    Args:
        name: `resnetD` with D = 6 n + 2 (8, 14, 20, ...), or `vggD` with D of `VGG_STAGES`.
        shape: Height, width and channels of the images.
        classes: How many classes there are.
        width: Channels of the first convolution: 16 is the ResNet of the paper, 64 the VGG of the paper.

    Returns:
        A Keras model from float32 images of shape (batch, *shape) to logits of shape (batch, classes).

    Raises:
        ValueError: If there is no network of that name.
    """
    family, depth = parse(name)
    return (resnet if family == "resnet" else vgg)(depth, shape, classes, width)


def parse(name):
    """The family and the depth in a network's name; ValueError when there is no such network."""
    match = re.fullmatch(r"(resnet|vgg)(\d+)", name)
    family, depth = (match[1], int(match[2])) if match else (None, 0)
    if family == "resnet" and depth >= 8 and depth % 6 == 2 or family == "vgg" and depth in VGG_STAGES:
        return family, depth
    raise ValueError(
        f"there is no network {name!r}; use resnet8, resnet14, resnet20 (6 n + 2) or "
        f"{', '.join(f'vgg{known}' for known in VGG_STAGES)}"
    )


def resnet(depth, shape, classes, width):
    """ResNet for CIFAR (He et al., https://arxiv.org/abs/1512.03385, section 4.2): three stages of basic blocks."""
    from keras import Model, layers

    image = layers.Input(shape)
    x = _convolution(image, width)
    for stage in range(3):
        for block in range((depth - 2) // 6):
            x = _residual_block(x, width << stage, 2 if stage and not block else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return Model(image, layers.Dense(classes)(x), name=f"resnet{depth}")


def vgg(depth, shape, classes, width):
    """VGG (Simonyan and Zisserman, https://arxiv.org/abs/1409.1556) with batch normalization and one dense layer."""
    from keras import Model, layers

    image = x = layers.Input(shape)
    for stage, convolutions in enumerate(VGG_STAGES[depth]):
        for _ in range(convolutions):
            x = _convolution(x, width << min(stage, 3))
        x = layers.MaxPooling2D(padding="same")(x)
    x = layers.Flatten()(x)
    return Model(image, layers.Dense(classes)(x), name=f"vgg{depth}")


def _convolution(x, channels, strides=1, activation="relu"):
    from keras import layers

    x = layers.Conv2D(channels, 3, strides, "same", use_bias=False, kernel_initializer="he_normal")(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.Activation(activation)(x) if activation else x


def _residual_block(x, channels, strides):
    from keras import layers

    residual = _convolution(_convolution(x, channels, strides), channels, activation=None)
    if strides > 1 or x.shape[-1] != channels:
        x = layers.Conv2D(channels, 1, strides, use_bias=False, kernel_initializer="he_normal")(x)
    return layers.Activation("relu")(layers.Add()([x, residual]))
