"""Measures which share of a real training run's gradient values each format turns into zeros, with and without a loss
scale.

For every format a network learns images while its gradients go through the format, as an exchange with `scaling="none"`
would have them, under an MPUOptimizer whose scale grows fast. So the scale finds by itself the place just under the
format's overflow. At each measured step, gradients are counted three times: as they are without a scale, with the
scale, and with block scaling. A share is of the values that are not zero before; "overflow" counts skipped steps.

    python benchmarks/underflow.py --data mnist.npz
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import image_data
import keras
import numpy as np
import tensorflow as tf

import tf_epgc.keras_integration


def main():
    options = parse_arguments()
    name, (x, y, _, _) = image_data.load_images(options.data)
    print(
        f"{len(x)} images of {name}, {options.steps} steps of {options.batch}, scale doubles after {options.growth} "
        "good steps; shares of values that become 0:"
    )
    print(f"{'bits':>4} {'no scale':>9} {'scale':>9} {'block':>9} {'last scale':>11} {'overflows':>9} {'loss':>7}")
    for bits in options.bits:
        print(row(bits, *train(bits, x, y, options)), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    image_data.add_data_argument(parser)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 9, 11, 16])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--growth", type=int, default=20, help="growth_steps of the scale (default: 20)")
    parser.add_argument("--every", type=int, default=10, help="steps between measured ones (default: 10)")
    return parser.parse_args()


def train(bits, x, y, options):
    """Trains with one format; returns its shares of zeros (three), the last scale, skipped steps and the last loss."""
    keras.utils.set_random_seed(1)
    model = image_data.build_model(x.shape[1:])
    inner = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer = tf_epgc.keras_integration.MPUOptimizer(inner, initial_scale=1.0, growth_steps=options.growth)
    optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer, bits)
    generator = np.random.default_rng(1)
    losses, gradients, counts = [], None, np.zeros(4)
    for number in range(options.steps):
        batch = generator.integers(0, len(x), options.batch)
        scale = float(optimizer.loss_scale)
        loss, gradients = step(x[batch], y[batch])
        losses.append(float(loss))
        if number % options.every == 0 and number >= options.steps // 3:
            counts += count_zeros(gradients.numpy(), scale, bits)
    shares = counts[:3] / counts[3]
    return shares, float(optimizer.loss_scale), int(optimizer.skipped_steps), float(np.mean(losses[-50:]))


def make_step(model, optimizer, bits):
    """A step whose gradients are rounded to the format; it returns the loss and the scaled gradients, in one vector."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        rounded = [tf_epgc.quantize(g, bits, scaling="none") for g in gradients]
        optimizer.apply_gradients(zip(rounded, model.trainable_variables, strict=True))
        return loss, tf.concat([tf.reshape(g, [-1]) for g in gradients], 0)

    return step


def count_zeros(scaled, scale, bits):
    """How many values become zero without a scale, with it, and with block scaling, and how many there are."""
    scaled = scaled[np.isfinite(scaled) & (scaled != 0)]
    plain = scaled / np.float32(scale)

    def zeros(values, scaling):
        return np.count_nonzero(tf_epgc.quantize(tf.constant(values), bits, scaling=scaling).numpy() == 0)

    # Nine bits have float32's exponent, and no block scaling.
    block = zeros(plain, "none" if bits == 9 else "block")
    return np.array([zeros(plain, "none"), zeros(scaled, "none"), block, len(scaled)])


def row(bits, shares, scale, skipped, loss):
    texts = " ".join(f"{share:9.3%}" for share in shares)
    return f"{bits:4} {texts} {f'2^{np.log2(scale):.0f}':>11} {skipped:9} {loss:7.3f}"


if __name__ == "__main__":
    main()
