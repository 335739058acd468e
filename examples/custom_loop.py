"""A training loop of one's own: strategy.run, GradientTape and MPUOptimizer, on scanned digits.

    python examples/custom_loop.py --bits 8

starts two workers on this machine; where TF_CONFIG is set, it trains as one worker of that cluster. Variables are
float16, with float32 masters in the optimizer. `apply_gradients` exchanges the gradients, so that the loop does not
need to. The digits come with scikit-learn.
"""

import argparse
import os
import sys

import digits
import exchange_options
import local_workers


def parse(arguments=None):
    """Reads the command line; ends the program with a message when it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exchange_options.add_arguments(parser, epochs=10, batch=64)
    options = parser.parse_args(arguments)
    exchange_options.check_batch(parser, options)
    if not options.workers:
        parser.error("--workers is 0, but this loop is one for a strategy; use 1 or more")
    options.mpu = True
    return options


def train(options):
    """Trains as one worker and returns the result."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    import tensorflow as tf

    import tf_epgc

    strategy = exchange_options.strategy(options)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy("float16")
    with strategy.scope():
        model = digits.build_model(keras)
        optimizer = tf_epgc.MPUOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
        optimizer.build(model.trainable_variables)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_replica(images, labels):
        with tf.GradientTape() as tape:
            losses = criterion(labels, model(images, training=True))
            # Every replica has its part of the batch: the gradients' sum is then that of the batch's mean loss.
            loss = tf.reduce_sum(losses) / options.batch
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def train_step(images, labels):
        return strategy.reduce("SUM", strategy.run(train_replica, args=(images, labels)), axis=None)

    (x_train, y_train), (x_test, y_test) = digits.load(options.seed)
    batches = digits.batches(x_train, y_train, options.batch, options.seed)
    for epoch in range(options.epochs):
        losses = [float(train_step(*batch)) for batch in strategy.experimental_distribute_dataset(batches)]
        local_workers.say(f"epoch {epoch + 1}/{options.epochs}: loss {sum(losses) / len(losses):.4f}")
    # All replicas hold the same weights, so that each worker can test by itself.
    answers = tf.argmax(model(x_test, training=False), -1).numpy()
    return {
        **exchange_options.settings(options),
        "accuracy": round(float((answers == y_test).mean()), 4),
        "loss_scale": float(optimizer.loss_scale),
        "skipped_steps": int(optimizer.skipped_steps),
        "weights": local_workers.fingerprint(model),
    }


def main(arguments=None):
    """Runs the example; also the entry point of the workers it starts. Returns the exit code."""
    options = parse(arguments)
    return local_workers.main(__file__, train, options, arguments)


if __name__ == "__main__":
    sys.exit(main())
