"""The performance model: what a training step takes on N workers, by format. Needs neither TensorFlow nor a cluster.

from tf_epgc import performance

network = performance.network("ResNet50")               # or from_keras(model), load_network("sizes.csv")
machine = performance.load_machine("machine.json")      # from `tf-epgc bench --calibrate machine.json`
prediction = performance.predict(network, machine, workers=8, compute_seconds=0.18, exchange=performance.Exchange(8))
print(prediction.efficiency, prediction.exposed_seconds)
"""

from tf_epgc.performance.known import network
from tf_epgc.performance.machine import CodecRates, Machine, ideal_machine, load_machine
from tf_epgc.performance.model import (
    Exchange,
    PackTimes,
    Prediction,
    break_even_rate,
    predict,
    shard_bytes,
    speed_up,
)
from tf_epgc.performance.network import Gradient, Layer, Network, from_keras, from_layers, load_network
from tf_epgc.performance.units import format_rate, parse_rate, parse_seconds

__all__ = [
    "CodecRates",
    "Exchange",
    "Gradient",
    "Layer",
    "Machine",
    "Network",
    "PackTimes",
    "Prediction",
    "break_even_rate",
    "format_rate",
    "from_keras",
    "from_layers",
    "ideal_machine",
    "load_machine",
    "load_network",
    "network",
    "parse_rate",
    "parse_seconds",
    "predict",
    "shard_bytes",
    "speed_up",
]
