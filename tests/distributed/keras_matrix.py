"""Small training cases for Keras 3 and tf_keras, each run with and without a strategy.

A case is a function that builds a model and data which are the same in every process, trains, and returns what came
of it. `run_section` runs all cases of a section one after another in one process with one strategy object, as a test
would be slow otherwise. keras_matrix_test.py compares the results.

By hand, to see what stock TensorFlow makes of it:

    EPGC_MATRIX_STRATEGY=stock python -m pytest tests/distributed/keras_matrix_test.py
"""

import contextlib
import dataclasses
import faulthandler
import importlib
import os
import traceback

import numpy as np

BATCH = 16
SAMPLES = 64
FEATURES = 8
EPOCHS = 2
#: How long one case may take.
CASE_SECONDS = 60
LIBRARIES = ("keras", "tf_keras")
KIND = os.environ.get("EPGC_MATRIX_STRATEGY", "epgc")

#: Why cases differ from one process.
OWN_ROWS = "statistics are those of a replica's rows"
ORDER_OF_SUMS = "sums in another order, magnified by the variance"
LOW_PRECISION = "rounded to 16 bits, in another order"

CASES = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """One case and what may be expected of it.

    Attributes:
        name: The function's name.
        section: What it belongs to.
        function: Called with a `Context`; returns a dict with some of weights, history, evaluate, predict, batch_logs.
        libraries: The libraries it applies to.
        tolerance: How far from the run in one process it may be; None where it differs by nature.
        why: Why it may differ more than float32 rounds.
        own_logs: Libraries whose logs are the means over the workers; elsewhere they are not compared.
        trains: Whether the loss falls.
    """

    name: str
    section: str
    function: object
    libraries: tuple = LIBRARIES
    tolerance: float | None = 1e-5
    why: str = ""
    own_logs: tuple = LIBRARIES
    trains: bool = True


def case(section, **expectations):
    """Registers a function as a case."""

    def register(function):
        assert expectations.get("tolerance", 1e-5) == 1e-5 or expectations.get("why"), function.__name__
        CASES[function.__name__] = Case(function.__name__, section, function, **expectations)
        return function

    return register


def cases_of(section, library):
    """The cases of a section that apply to a library."""
    return [each for each in CASES.values() if each.section == section and library in each.libraries]


def make_strategy(kind, bits):
    """The strategy under test; the only place that makes one.

    Args:
        kind: "epgc", "stock" for TensorFlow's own, or "none" for training without one.
        bits: The format; only "epgc" has any.

    Returns:
        A strategy, or None.
    """
    import tensorflow as tf

    if kind == "none":
        return None
    if kind == "stock":
        return tf.distribute.MultiWorkerMirroredStrategy()
    import tf_epgc

    # The models are small: without min_elements=1 hardly anything would be coded.
    return tf_epgc.EPGCMirroredStrategy(bits=bits, min_elements=1)


def run_section(section, library, kind, bits=None):
    """Runs all cases of a section; called in each worker.

    Args:
        section: The section's name.
        library: "keras" or "tf_keras".
        kind: As for `make_strategy`.
        bits: As for `make_strategy`.

    Returns:
        A dict from case name to its result; the result of a case that raised is {"error": traceback}.
    """
    strategy = make_strategy(kind, bits)
    return {each.name: _run(each, library, strategy) for each in cases_of(section, library)}


def _run(each, library, strategy):
    # A case that hangs ends its process, with every thread's stack in the output.
    faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
    try:
        return each.function(Context(library, strategy))
    except Exception:  # one broken case must not hide what the others do
        return {"error": traceback.format_exc()}
    finally:
        faulthandler.cancel_dump_traceback_later()


class Context:
    """The library and the strategy a case runs with, and what most cases need."""

    def __init__(self, library, strategy):
        import tensorflow as tf

        self.keras = importlib.import_module(library)
        self.layers = self.keras.layers
        self.is_keras3 = library == "keras"
        self.strategy = strategy or tf.distribute.get_strategy()
        self._in_scope = strategy is not None
        self.keras.utils.set_random_seed(1)

    def scope(self):
        return self.strategy.scope() if self._in_scope else contextlib.nullcontext()

    def model(self, build, optimizer=None, loss="mse", metrics=lambda: ["mae"]):
        """Builds, seeds and compiles a model; all that makes variables is a function, called in the scope."""
        with self.scope():
            model = build(self)
            seed_weights(model)
            model.compile(optimizer=optimizer() if optimizer else self.sgd(), loss=loss, metrics=metrics())
        return model

    def sgd(self):
        return self.keras.optimizers.SGD(0.05, momentum=0.9)

    def adam(self):
        return self.keras.optimizers.Adam(0.01)

    def accumulating(self, name="SGD"):
        return getattr(self.keras.optimizers, name)(0.05, gradient_accumulation_steps=2)

    def fit(self, model, x, y, **fit_arguments):
        """Trains and returns the whole result."""
        history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, **fit_arguments)
        return self.result(model, x, y, history.history)

    def fit_dataset(self, model, dataset, x, y, **fit_arguments):
        """The same from a tf.data pipeline."""
        history = model.fit(dataset, epochs=EPOCHS, verbose=0, **fit_arguments)
        return self.result(model, x, y, history.history)

    def result(self, model, x, y, history):
        return {
            "weights": model.get_weights(),
            "history": history,
            "evaluate": model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True),
            "predict": model.predict(x, batch_size=BATCH, verbose=0),
        }


# Data and models.


def seed_weights(model, seed=1):
    """Gives every kernel values that do not depend on library or process; biases and statistics keep theirs."""
    random = np.random.default_rng(seed)
    model.set_weights(
        [
            random.normal(0, 1 / np.sqrt(np.prod(value.shape[:-1])), value.shape).astype(value.dtype)
            if value.ndim > 1
            else value
            for value in model.get_weights()
        ]
    )


def regression(samples=SAMPLES, outputs=1, seed=2):
    """Features and targets that a small network can learn."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(samples, FEATURES)).astype(np.float32)
    mixing = random.normal(size=(FEATURES, outputs)).astype(np.float32)
    return x, np.tanh(x @ mixing)


def aligned(values):
    """The same values at an address at which TensorFlow does not copy what Python hands it."""
    memory = np.zeros(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


def classification(samples=SAMPLES, classes=3):
    """Features and one-hot targets."""
    x, scores = regression(samples, classes)
    return x, np.eye(classes, dtype=np.float32)[scores.argmax(axis=1)]


def images():
    """8 x 8 images and targets."""
    x, y = regression()
    return np.repeat(np.repeat(x.reshape(SAMPLES, 2, 4, 1), 4, axis=1), 2, axis=2), y


def tokens(length=6, words=20):
    """Sequences of word numbers, some words often and some never, and targets."""
    random = np.random.default_rng(3)
    x = np.minimum(random.geometric(0.2, (SAMPLES, length)), words - 1).astype(np.int32)
    return x, x.mean(axis=1, keepdims=True).astype(np.float32) / words


def dataset(*columns, policy="DATA", batch=BATCH, drop_remainder=False):
    """A batched tf.data pipeline with an auto-shard policy, of features, targets and possibly weights."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    batches = tf.data.Dataset.from_tensor_slices(columns).batch(batch, drop_remainder=drop_remainder)
    return batches.with_options(options)


def dense(k, outputs=1, activation=None):
    return k.keras.Sequential(
        [
            k.layers.Input((FEATURES,)),
            k.layers.Dense(32, activation="relu"),
            k.layers.Dense(outputs, activation=activation),
        ]
    )


def classifier(k):
    return dense(k, outputs=3, activation="softmax")


def with_layer(make_layer, use_bias=True):
    """A build function with one more layer in the middle, after a dense one with or without a bias."""

    def build(k):
        return k.keras.Sequential(
            [
                k.layers.Input((FEATURES,)),
                k.layers.Dense(32, use_bias=use_bias),
                make_layer(k),
                k.layers.Activation("relu"),
                k.layers.Dense(1),
            ]
        )

    return build


def two_outputs(k):
    inputs = k.layers.Input((FEATURES,))
    hidden = k.layers.Dense(32, activation="relu")(inputs)
    return k.keras.Model(inputs, {"a": k.layers.Dense(1, name="a")(hidden), "b": k.layers.Dense(2, name="b")(hidden)})


def embedding(k):
    return k.keras.Sequential(
        [k.layers.Input((6,), dtype="int32"), k.layers.Embedding(20, 8), k.layers.Flatten(), k.layers.Dense(1)]
    )


def recurrent(name):
    def build(k):
        return k.keras.Sequential(
            [
                k.layers.Input((6,), dtype="int32"),
                k.layers.Embedding(20, 8),
                getattr(k.layers, name)(8),
                k.layers.Dense(1),
            ]
        )

    return build


# MLP and convolution.


@case("mlp")
def mlp(k):
    return k.fit(k.model(dense), *regression())


@case("mlp")
def mlp_adam(k):
    return k.fit(k.model(dense, k.adam), *regression())


@case("mlp")
def subclassed_unbuilt(k):
    class Subclassed(k.keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = k.layers.Dense(
                32, activation="relu", kernel_initializer=k.keras.initializers.GlorotUniform(seed=5)
            )
            self.out = k.layers.Dense(1, kernel_initializer=k.keras.initializers.GlorotUniform(seed=6))

        def call(self, inputs):
            return self.out(self.hidden(inputs))

    with k.scope():
        model = Subclassed()
        model.compile(optimizer=k.adam(), loss="mse")
    return k.fit(model, *regression())


@case("mlp")
def conv(k):
    def build(k):
        return k.keras.Sequential(
            [
                k.layers.Input((8, 8, 1)),
                k.layers.Conv2D(4, 3, activation="relu"),
                k.layers.MaxPooling2D(),
                k.layers.Flatten(),
                k.layers.Dense(1),
            ]
        )

    return k.fit(k.model(build), *images())


# Loss and metrics.


@case("metrics")
def metrics(k):
    def build(k):
        return dense(k, activation="sigmoid")

    x, y = regression()
    model = k.model(
        build, loss="binary_crossentropy", metrics=lambda: ["accuracy", k.keras.metrics.AUC(name="auc"), "mse"]
    )
    return k.fit(model, x, (y > 0).astype(np.float32))


@case("metrics")
def metrics_vec(k):
    return k.fit(
        k.model(
            classifier,
            loss="categorical_crossentropy",
            metrics=lambda: [k.keras.metrics.F1Score(average="macro", name="f1")],
        ),
        *classification(),
    )


@case("metrics")
def metrics_vec_none(k):
    return k.fit(
        k.model(
            classifier,
            loss="categorical_crossentropy",
            metrics=lambda: [k.keras.metrics.F1Score(average=None, name="f1")],
        ),
        *classification(),
    )


@case("metrics", own_logs=("keras",))  # tf_keras sums what each worker has already summed
def batch_logs(k):
    seen = []
    remember = k.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    result = k.fit(k.model(dense), *regression(), callbacks=[remember])
    return dict(result, batch_logs={name: [logs[name] for logs in seen] for name in seen[0]})


def evaluated(k, samples, make_input):
    model = k.model(dense)
    return {"weights": model.get_weights(), "evaluate": make_input(model, *regression(samples))}


@case("metrics", trains=False)
def eval61(k):
    return evaluated(k, 61, lambda model, x, y: model.evaluate(dataset(x, y), verbose=0, return_dict=True))


@case("metrics", trains=False)
def eval49(k):
    """One replica gets nothing of the last batch."""
    return evaluated(k, 49, lambda model, x, y: model.evaluate(dataset(x, y), verbose=0, return_dict=True))


@case("metrics", trains=False)
def eval61_np(k):
    return evaluated(k, 61, lambda model, x, y: model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True))


# Prediction: all rows, in order, on every worker.


def predicted(k, samples, make_input):
    model = k.model(dense)
    return {"weights": model.get_weights(), "predict": make_input(model, *regression(samples))}


@case("predict", trains=False)
def predict_np(k):
    return predicted(k, 64, lambda model, x, y: model.predict(x, batch_size=BATCH, verbose=0))


@case("predict", trains=False)
def predict_np61(k):
    return predicted(k, 61, lambda model, x, y: model.predict(x, batch_size=BATCH, verbose=0))


@case("predict", trains=False)
def predict_data(k):
    return predicted(k, 61, lambda model, x, y: model.predict(dataset(x, y), verbose=0))


@case("predict", trains=False, libraries=("tf_keras",))  # Keras 3 repeats half of the rows and drops the rest
def predict_off(k):
    return predicted(k, 64, lambda model, x, y: model.predict(dataset(x, y, policy="OFF"), verbose=0))


@case("predict")
def multi_out(k):
    x, y = regression()
    targets = {"a": y, "b": np.concatenate([y, -y], axis=1)}
    return k.fit(k.model(two_outputs, loss={"a": "mse", "b": "mse"}, metrics=lambda: None), x, targets)


# Batch normalization: the statistics of a worker's share are not those of the whole batch.


@case("batchnorm", tolerance=None, why=OWN_ROWS)
def bn(k):
    return k.fit(k.model(with_layer(lambda k: k.layers.BatchNormalization())), *regression())


@case("batchnorm", tolerance=1e-3, why=ORDER_OF_SUMS)
def syncbn(k):
    return k.fit(k.model(with_layer(lambda k: k.layers.BatchNormalization(synchronized=True))), *regression())


@case("batchnorm", tolerance=None, why=OWN_ROWS)
def bn_renorm(k):
    return k.fit(k.model(with_layer(lambda k: k.layers.BatchNormalization(renorm=True))), *regression())


# 33 samples: one replica gets nothing of the last batch, whose one sample throws training back, also in one process.
# Keras 3's BatchNormalization divides zero by zero there, whatever the strategy.
@case("batchnorm", tolerance=None, why=OWN_ROWS, trains=False, libraries=("tf_keras",))
def empty_bn(k):
    return k.fit(k.model(with_layer(lambda k: k.layers.BatchNormalization())), *regression(33))


def sync_normalized(k, rows):
    return k.fit(k.model(with_layer(lambda k: k.layers.BatchNormalization(synchronized=True))), *regression(rows))


@case("batchnorm", tolerance=1e-3, why=ORDER_OF_SUMS, trains=False, libraries=("keras",))
def empty_syncbn(k):
    return sync_normalized(k, 33)


@case(
    "batchnorm",
    tolerance=None,
    why="an empty share's moving statistics stay, and are averaged",
    trains=False,
    libraries=("tf_keras",),
)
def empty_syncbn_averaged(k):
    return sync_normalized(k, 33)


@case("batchnorm", tolerance=1e-3, why=ORDER_OF_SUMS)
def uneven_syncbn(k):
    """Gradients through the shared statistics have to be weighted by rows too."""
    return sync_normalized(k, 61)


@case("batchnorm", trains=False)
def empty_ln(k):
    return k.fit(k.model(with_layer(lambda k: k.layers.LayerNormalization())), *regression(33))


# Validation during training.


@case("validation")
def val_np(k):
    return k.fit(k.model(dense), *regression(), validation_data=regression(48, seed=9))


@case("validation")
def val_ds(k):
    x, y = regression()
    return k.fit_dataset(k.model(dense), dataset(x, y), x, y, validation_data=dataset(*regression(48, seed=9)))


@case("validation")
def val_split(k):
    return k.fit(k.model(dense), *regression(), validation_split=0.25)


# Gradient accumulation; only Keras 3 has it.


@case("accumulation", libraries=("keras",))
def accum(k):
    return k.fit(k.model(dense, k.accumulating), *regression())


@case("accumulation", libraries=("keras",))
def accum_adam(k):
    return k.fit(k.model(dense, lambda: k.accumulating("Adam")), *regression())


# Sparse gradients and recurrent layers.


@case("sparse")
def emb(k):
    return k.fit(k.model(embedding), *tokens())


@case("sparse")
def emb_adam(k):
    return k.fit(k.model(embedding, k.adam), *tokens())


@case("sparse", libraries=("keras",))
def emb_accum(k):
    return k.fit(k.model(embedding, k.accumulating), *tokens())


@case("sparse")
def lstm(k):
    return k.fit(k.model(recurrent("LSTM"), k.adam), *tokens())


@case("sparse")
def gru(k):
    return k.fit(k.model(recurrent("GRU"), k.adam), *tokens())


@case("sparse")
def string_input(k):
    words = np.array([f"w{number}" for number in range(20)])
    x, y = tokens()
    lookup = k.layers.StringLookup(vocabulary=list(words[1:]), num_oov_indices=1)
    pipeline = dataset(words[x], y).map(lambda text, target: (lookup(text), target))
    return k.fit_dataset(k.model(embedding), pipeline, x, y)


# Loops and steps of one's own.


def own_loop(k, apply, build_first):
    """Trains with strategy.run; every worker gives its share of the mean loss."""
    import tensorflow as tf

    x, y = regression()
    with k.scope():
        model = dense(k)
        seed_weights(model)
        optimizer = k.adam()
        if build_first:
            optimizer.build(model.trainable_variables)

    def step(features, targets):
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(model(features, training=True) - targets))
            loss = errors / k.strategy.num_replicas_in_sync
        apply(optimizer, tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def train(batch):
        return k.strategy.reduce("SUM", k.strategy.run(step, args=batch), axis=None)

    losses = []
    for _ in range(EPOCHS):
        batches = k.strategy.experimental_distribute_dataset(dataset(x, y))
        losses.append(float(np.mean([train(batch).numpy() for batch in batches])))
    return {"weights": model.get_weights(), "history": {"loss": losses}}


@case("custom")
def ctl(k):
    return own_loop(
        k, lambda optimizer, grads, weights: optimizer.apply_gradients(zip(grads, weights, strict=True)), True
    )


@case("custom", libraries=("keras",))
def ctl_apply(k):
    return own_loop(k, lambda optimizer, grads, weights: optimizer.apply(grads, weights), True)


@case("custom")
def ctl_unbuilt(k):
    return own_loop(
        k, lambda optimizer, grads, weights: optimizer.apply_gradients(zip(grads, weights, strict=True)), False
    )


@case("custom", own_logs=("keras",))  # tf_keras adds the workers' logs up
def custom_train_step(k):
    import tensorflow as tf

    class Model(k.keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                predicted_y = self(x, training=True)
                errors = tf.reduce_mean(tf.square(predicted_y - y))
                loss = errors / k.strategy.num_replicas_in_sync
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"own_loss": errors}

    def build(k):
        inputs = k.layers.Input((FEATURES,))
        hidden = k.layers.Dense(32, activation="relu")(inputs)
        return Model(inputs, k.layers.Dense(1)(hidden))

    return k.fit(k.model(build, metrics=lambda: None), *regression())


for _module in ("keras_cases", "keras_reports", "keras_loops", "keras_mixtures"):  # which register more of them
    importlib.import_module(f"tests.distributed.{_module}")
SECTIONS = tuple(dict.fromkeys(each.section for each in CASES.values()))
