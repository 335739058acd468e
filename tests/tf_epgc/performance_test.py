"""The performance model against values computed by hand, its limits, and a simulation in small steps of time."""

import dataclasses
import math
import subprocess
import sys

import pytest

from tf_epgc import native, packing, performance
from tf_epgc.performance import CodecRates, Exchange, Gradient, Machine, Network, predict

MEGA = 1_000_000


def one_gradient(elements=MEGA, ready=1.0):
    return Network("one", (Gradient("w", elements, ready),))


def several(count=6, elements=100_000):
    return Network("several", tuple(Gradient(f"w{i}", elements, (count - i) / count) for i in range(count)))


def machine_of(bandwidth=1e9, latency=1e-4, op_seconds=1e-3, rate=1e9):
    rates = CodecRates(rate, rate, rate)
    return Machine(bandwidth, latency, op_seconds, codecs=dict.fromkeys((8, 9, 11, 16, 32), rates))


class TestClosedForms:
    def test_one_pack_of_8_bits_without_scaling(self):
        # 1.024 M values on 4 workers: shards of 256000 bytes, three sent in either phase, in 0.768 ms at 1 GB/s.
        exchange = Exchange(8, scaling="none")
        result = predict(one_gradient(1_024_000), machine_of(), 4, 0.5, exchange)
        phase = 768_000 / 1e9 + 1e-3 + 3 * 1e-4
        assert result.bytes_sent == 2 * 768_000
        assert result.exposed_seconds == pytest.approx(2 * phase + 3 * 1_024_000 / 1e9)
        [pack] = result.packs
        assert pack.ready == pytest.approx(0.5)
        assert pack.packed - pack.ready == pytest.approx(1.024e-3)
        assert pack.sent - pack.packed == pytest.approx(phase)
        assert pack.reduced - pack.sent == pytest.approx(1.024e-3)
        assert pack.gathered - pack.reduced == pytest.approx(phase)
        assert pack.unpacked - pack.gathered == pytest.approx(1.024e-3)

    def test_ring_of_float32(self):
        # Thakur et al.: 2 (N - 1) alpha + 2 (N - 1) / N n (beta + gamma / 2), where adding takes 2 ns a byte.
        machine = dataclasses.replace(machine_of(), ring_bandwidth=1 / (1e-9 + 2e-9 / 2))
        result = predict(one_gradient(MEGA), machine, 4, 0.5, Exchange(32))
        ring = 1e-3 + 6 * 1e-4 + 1.5 * 4e6 / 1e9 + 0.75 * 4e6 * 2e-9
        assert result.bytes_sent == 6_000_000
        assert result.exposed_seconds == pytest.approx(ring + 2 * MEGA / 1e9)

    def test_ring_of_float16_sends_half(self):
        exchange = Exchange(16, algorithm="ring", min_elements=0)
        assert predict(one_gradient(MEGA), machine_of(), 4, 0.5, exchange).bytes_sent == 3_000_000

    def test_no_latency_no_codec_is_bytes_over_bandwidth(self):
        result = predict(one_gradient(MEGA), Machine(1e8), 2, 1.0, Exchange(16, scaling="none"))
        assert result.exposed_seconds == pytest.approx(2_000_000 / 1e8)
        assert result.efficiency == pytest.approx(1 / 1.02)

    def test_perfect_overlap_shows_only_what_comes_last(self):
        # The first of two packs is gone before the second, known at the end of the step, is ready.
        network = Network("two", (Gradient("first", 1024, 1.0), Gradient("last", MEGA, 0.1)))
        exchange = Exchange(8, scaling="none", bytes_per_pack=4)
        result = predict(network, Machine(1e8), 2, 3.0, exchange)
        assert [pack.elements for pack in result.packs] == [MEGA, 1024]
        assert result.packs[0].ready == pytest.approx(1.0 + 0.2)
        assert result.exposed_seconds == pytest.approx(1024 / 1e8)

    def test_second_pack_waits_for_the_link(self):
        network = Network("two", (Gradient("first", MEGA, 1.0), Gradient("last", MEGA, 1.0)))
        exchange = Exchange(8, scaling="none", bytes_per_pack=4)
        both = predict(network, Machine(1e8), 2, 1.0, exchange)
        assert both.exposed_seconds == pytest.approx(4 * 0.5e6 / 1e8, rel=1e-4)

    def test_many_workers_send_at_most_twice_the_pack(self):
        sent = predict(one_gradient(64 * MEGA), Machine(1e9), 256, 1.0, Exchange(8, scaling="none")).bytes_sent
        assert sent == pytest.approx(2 * 64 * MEGA * 255 / 256, rel=1e-3)


class TestLimits:
    @pytest.mark.parametrize("bits", [8, 9, 11, 16, 32])
    def test_one_worker_exchanges_nothing(self, bits):
        result = predict(several(), machine_of(), 1, 0.2, Exchange(bits))
        assert (result.efficiency, result.bytes_sent, result.packs) == (1.0, 0, ())

    def test_infinite_bandwidth_leaves_latency_and_codec(self):
        result = predict(one_gradient(), machine_of(bandwidth=1e30), 2, 0.2, Exchange(8))
        assert result.exposed_seconds == pytest.approx(2 * (1e-3 + 1e-4) + 3e-3)
        assert predict(one_gradient(), Machine(1e30), 2, 0.2, Exchange(8)).efficiency == pytest.approx(1.0)

    @pytest.mark.parametrize("bits", [8, 32])
    def test_slower_links_and_more_latency_never_help(self, bits):
        steps = [
            predict(
                several(), machine_of(bandwidth=10.0**power), 4, 0.05, Exchange(bits, bytes_per_pack=4)
            ).step_seconds
            for power in (10, 9, 8, 7, 6)
        ]
        assert steps == sorted(steps)
        steps = [
            predict(several(), machine_of(latency=latency), 4, 0.05, Exchange(bits)).step_seconds
            for latency in (0.0, 1e-5, 1e-3)
        ]
        assert steps == sorted(steps)

    def test_more_workers_never_help(self):
        steps = [predict(several(), machine_of(), n, 0.01, Exchange(8)).step_seconds for n in (1, 2, 4, 8, 64)]
        assert steps == sorted(steps)

    def test_break_even_rate(self):
        """R107: on a faster link coding does not pay; alone it never does."""
        # Coding costs 3 ms; on a link without latency float32 takes longer by (8 - 2) MB / 2 / B, less its own codec.
        machine = Machine(1e9, codecs={8: CodecRates(1e9, 1e9, 1e9)})
        exchange = Exchange(8, scaling="none")
        rate = performance.break_even_rate(one_gradient(), machine, 2, 1.0, exchange, gain=1.0)
        assert rate == pytest.approx(3e6 / 3e-3, rel=0.011)
        assert performance.break_even_rate(one_gradient(), machine, 1, 1.0, exchange) == 0.0


class TestOpCost:
    def test_grows_to_full_messages(self):
        machine = Machine(
            1e8, op_seconds=1e-2, op_least_seconds=2e-3, ring_seconds=8e-3, ring_least_seconds=4e-3, full_bytes=1000
        )
        assert [machine.op_cost(size) for size in (0, 500, 1000, 4000)] == pytest.approx([2e-3, 6e-3, 1e-2, 1e-2])
        assert [machine.ring_cost(size) for size in (0, 500, 1000, 4000)] == pytest.approx([4e-3, 6e-3, 8e-3, 8e-3])

    def test_the_same_for_every_size_unless_measured(self):
        machine = Machine(1e8, op_seconds=1e-2, ring_seconds=5e-3)
        assert [machine.op_cost(0), machine.op_cost(1e9)] == [1e-2, 1e-2]
        assert [machine.ring_cost(0), machine.ring_cost(1e9)] == [5e-3, 5e-3]

    @pytest.mark.parametrize("bits", [8, 32])
    def test_a_small_pack_pays_less(self, bits):
        machine = Machine(1e8, op_seconds=1e-2, op_least_seconds=0.0, ring_least_seconds=0.0, full_bytes=1e6)
        small, large = (
            predict(one_gradient(n), machine, 2, 0.01, Exchange(bits)).exposed_seconds - n * bits / 8 / 1e8
            for n in (1 << 12, 1 << 24)
        )
        assert small < 1e-3 < 9e-3 < large


class TestBusyCollectives:
    def test_two_packs_wait_for_each_other(self):
        """Both ready at once, without bytes or codec to speak of: latencies overlap, what is busy adds up."""
        network = Network("two", (Gradient("a", 2048, 1.0), Gradient("b", 2048, 1.0)))
        exchange = Exchange(8, bytes_per_pack=8192)
        seconds = {}
        for busy in (0.0, 4e-3, 10e-3):
            machine = Machine(1e15, op_seconds=10e-3, op_busy_seconds=busy)
            seconds[busy] = predict(network, machine, 2, 0.1, exchange).exposed_seconds
        assert seconds == {0.0: pytest.approx(20e-3), 4e-3: pytest.approx(24e-3), 10e-3: pytest.approx(40e-3)}

    def test_never_more_than_the_collective(self):
        machine = Machine(1e15, op_seconds=1e-3, op_busy_seconds=5e-3)
        assert predict(one_gradient(), machine, 2, 0.1, Exchange(8)).exposed_seconds == pytest.approx(2e-3, rel=1e-3)


class TestShares:
    @pytest.mark.parametrize("bits", [8, 11, 32])
    @pytest.mark.parametrize("bandwidth", [1e7, 1e9])
    def test_they_add_up_to_the_step(self, bits, bandwidth):
        result = predict(several(), machine_of(bandwidth), 4, 0.02, Exchange(bits, bytes_per_pack=400_000))
        assert sum(result.shares.values()) == pytest.approx(result.step_seconds)
        assert result.exposed_seconds > 0


def simulate(network, machine, workers, compute, exchange, tick=1e-6):
    """The same packs, advanced tick by tick: who is first in a queue is served, then waits for its delay.

    Written from docs/performance_model.md, not from the model's code.
    """
    specs = [packing.TensorSpec(g.elements, "float32") for g in network.gradients]
    plan = packing.plan_packs(specs, exchange.min_elements, exchange.bytes_per_pack)
    peers, delay = workers - 1, 0.0
    forward = compute * network.forward_share
    packs = []
    for positions in plan.coded:
        elements = sum(specs[i].elements for i in positions)
        rates = machine.codecs[exchange.bits]
        if exchange.bits == 32:
            ring = machine.ring_seconds + 2 * peers * (machine.latency + elements / workers * 4 / machine.bandwidth)
            work = [elements / rates.pack, ring, elements / rates.unpack]
        else:
            layout = native.shard_layout(elements, workers, exchange.bits, exchange.scaling)
            wire = machine.op_busy_seconds + peers * layout["shard_words"] * 4 / machine.bandwidth
            work = [elements / rates.pack, wire, elements / rates.reduce, wire, elements / rates.unpack]
            delay = machine.op_seconds + peers * machine.latency - machine.op_busy_seconds
        ready = forward + (compute - forward) * max(network.gradients[i].ready for i in positions)
        packs.append({"from": ready, "work": work, "stage": 0})
    now, serving = 0.0, [None, None]  # codec, link
    while any(pack["stage"] < len(pack["work"]) for pack in packs):
        for resource in (0, 1):
            if serving[resource] is None:
                waiting = [p for p in packs if p["stage"] < len(p["work"]) and p["from"] <= now]
                queue = [p for p in waiting if p["stage"] % 2 == resource]
                serving[resource] = min(queue, key=lambda p: p["from"], default=None)
            pack = serving[resource]
            if pack is None:
                continue
            pack["work"][pack["stage"]] -= tick
            if pack["work"][pack["stage"]] <= 0:
                pack["from"] = now + tick + (delay if resource else 0.0)
                pack["stage"] += 1
                serving[resource] = None
        now += tick
    return max(pack["from"] for pack in packs)


class TestSimulation:
    @pytest.mark.parametrize("bits", [8, 11, 32])
    @pytest.mark.parametrize("workers", [2, 8])
    @pytest.mark.parametrize("bandwidth", [5e7, 1e9])
    @pytest.mark.parametrize("busy", [0.0, 1e-4])
    def test_same_step(self, bits, workers, bandwidth, busy):
        machine = dataclasses.replace(machine_of(bandwidth, latency=2e-5, op_seconds=2e-4), op_busy_seconds=busy)
        exchange = Exchange(bits, bytes_per_pack=400_000)
        expected = simulate(several(), machine, workers, 0.01, exchange)
        assert predict(several(), machine, workers, 0.01, exchange).step_seconds == pytest.approx(expected, rel=0.01)


class TestPacks:
    @pytest.mark.parametrize("elements", [1, 31, 1000, 5000, 1_000_003])
    @pytest.mark.parametrize("bits,scaling", [(8, "block"), (9, "none"), (11, "block"), (16, "none"), (32, "none")])
    def test_shard_bytes_are_those_of_the_codec(self, elements, bits, scaling):
        for shards in (1, 2, 7, 64):
            words = native.shard_layout(elements, shards, bits, scaling)["shard_words"]
            assert performance.shard_bytes(elements, shards, bits, scaling) == 4 * words

    def test_packs_are_the_strategys(self):
        network = performance.network("ResNet50")
        specs = [packing.TensorSpec(g.elements, "float32") for g in network.gradients]
        plan = packing.plan_packs(specs, 1024, None)
        packs = predict(network, Machine(1e9), 2, 0.2, Exchange(8)).packs
        assert sorted(pack.elements for pack in packs) == sorted(
            sum(specs[i].elements for i in positions) for positions in (*plan.coded, plan.small)
        )


class TestNetworks:
    # Numbers of trainable parameters: keras.applications' own, and 26.3 M for SSD300 on VOC.
    @pytest.mark.parametrize("name,elements", [("ResNet50", 25_583_592), ("VGG16", 138_357_544)])
    def test_sizes(self, name, elements):
        assert performance.network(name).elements == elements

    def test_ssd_size(self):
        assert performance.network("SSD300").elements == pytest.approx(26.3e6, rel=0.01)

    def test_backward_order(self):
        gradients = performance.network("VGG16").gradients
        ready = [gradient.ready for gradient in gradients]
        assert ready == sorted(ready, reverse=True)
        assert ready[0] == pytest.approx(1.0)
        # The first dense layer holds three quarters of the values, and they are known after a hundredth of the work.
        [fc1] = [g for g in gradients if g.name == "fc1/0"]
        assert fc1.ready < 0.01

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["ResNet50", "VGG16"])
    def test_same_as_keras(self, name):
        keras = pytest.importorskip("keras")
        model = getattr(keras.applications, name)(weights=None)
        from_keras, known = performance.from_keras(model), performance.network(name)
        assert from_keras.elements == known.elements
        assert [g.elements for g in from_keras.gradients] == [g.elements for g in known.gradients]
        for exchange in (Exchange(32), Exchange(8)):
            one = predict(from_keras, Machine(5e8), 8, 0.2, exchange)
            assert one.efficiency == pytest.approx(predict(known, Machine(5e8), 8, 0.2, exchange).efficiency, abs=0.01)

    @pytest.mark.slow
    @pytest.mark.parametrize("library", ["keras", "tf_keras"])
    def test_keras_nested_frozen_and_shared(self, library):
        keras = pytest.importorskip(library)
        inner = keras.Sequential([keras.layers.Input((6, 8)), keras.layers.Dense(4)])
        words = keras.layers.Input((6,))
        shared = keras.layers.Dense(4)
        hidden = inner(keras.layers.Embedding(1000, 8)(words))
        frozen = keras.layers.Dense(4, trainable=False)
        model = keras.Model(words, keras.layers.Dense(2)(frozen(shared(shared(hidden)))))
        network = performance.from_keras(model)
        assert [g.elements for g in network.gradients] == [math.prod(v.shape) for v in model.trainable_variables]
        # 8 x 4, 4 x 4 (shared, then frozen), 4 x 2 multiplications at each of 6 places; the table takes none.
        by_size = {g.elements: g.ready for g in network.gradients}
        assert by_size == pytest.approx({8000: 1.0, 32: 1.0, 16: 40 / 72, 8: 8 / 72, 4: by_size[4], 2: 8 / 72})

    @pytest.mark.slow
    def test_keras_model_without_weights(self):
        keras = pytest.importorskip("keras")
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.ReLU()])
        with pytest.raises(ValueError, match="no trainable weights"):
            performance.from_keras(model)

    def test_scaled(self):
        assert performance.network("VGG16").scaled(1 / 16).elements == pytest.approx(138_357_544 / 16, rel=1e-4)

    def test_unknown(self):
        with pytest.raises(ValueError, match="'resnet' is not known"):
            performance.network("resnet")

    def test_csv_and_json(self, tmp_path):
        (tmp_path / "a.csv").write_text("name,elements,ready\nfirst,10,1\nlast,20,0.5\n")
        network = performance.load_network(tmp_path / "a.csv")
        assert network == Network("a", (Gradient("first", 10, 1.0), Gradient("last", 20, 0.5)))
        (tmp_path / "b.json").write_text('{"name": "b", "gradients": [{"elements": 5}, {"elements": 6}]}')
        assert [g.ready for g in performance.load_network(tmp_path / "b.json").gradients] == [1.0, 0.5]

    @pytest.mark.parametrize("name,text", [("a.csv", "x\n1\n"), ("a.json", "[]"), ("a.txt", ""), ("b.json", "{")])
    def test_files_that_are_none(self, tmp_path, name, text):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="does not describe a network"):
            performance.load_network(tmp_path / name)

    @pytest.mark.parametrize("fields", [("w", -1, 0.5), ("w", 1, 1.5), ("w", 1.5, 0.5)])
    def test_bad_gradients(self, fields):
        with pytest.raises(ValueError, match="'w'"):
            Gradient(*fields)


class TestMachine:
    def test_file_round_trip(self, tmp_path):
        machine = dataclasses.replace(machine_of(), codecs={8: CodecRates(1e9, 2e9)}, workers=4)
        machine.save(tmp_path / "m.json")
        assert performance.load_machine(tmp_path / "m.json") == machine

    def test_other_version(self, tmp_path):
        machine_of().save(tmp_path / "m.json")
        text = (tmp_path / "m.json").read_text().replace('"version": 2', '"version": 7')
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(ValueError, match="version 7, this is version 2"):
            performance.load_machine(tmp_path / "m.json")

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "tf_epgc machine", "version": 2}'])
    def test_files_that_are_none(self, tmp_path, text):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(ValueError, match="calibrate"):
            performance.load_machine(tmp_path / "m.json")

    def test_other_link_keeps_the_time_to_add(self):
        machine = Machine(1e9, ring_bandwidth=5e8).with_bandwidth(1e8)
        assert (machine.bandwidth, machine.ring_bandwidth) == (1e8, pytest.approx(1 / 11e-9))
        assert Machine(1e9).with_bandwidth(1e8).ring_bandwidth == pytest.approx(1e8)

    def test_bad_values(self):
        with pytest.raises(ValueError, match="bandwidth"):
            Machine(0)
        with pytest.raises(ValueError, match="latency"):
            Machine(1e9, latency=-1)
        with pytest.raises(ValueError, match="reduce"):
            CodecRates(reduce=0)


class TestArguments:
    @pytest.mark.parametrize("workers", [0, -1, 1.5, True])
    def test_workers(self, workers):
        with pytest.raises(ValueError, match="workers"):
            predict(several(), machine_of(), workers, 0.1)

    @pytest.mark.parametrize("compute", [0, -1, math.inf, math.nan])
    def test_compute(self, compute):
        with pytest.raises(ValueError, match="compute_seconds"):
            predict(several(), machine_of(), 2, compute)

    @pytest.mark.parametrize(
        "settings", [{"bits": 10}, {"algorithm": "tree"}, {"algorithm": "ring"}, {"min_elements": -1}]
    )
    def test_exchange(self, settings):
        with pytest.raises(ValueError):
            Exchange(**settings)


class TestUnits:
    def test_rates(self):
        assert performance.parse_rate("10Gbit/s") == 1.25e9
        assert performance.parse_rate("200 Mbit/s") == 2.5e7
        assert performance.parse_rate("1.5GB/s") == 1.5e9
        assert performance.format_rate(1.25e9) == "10 Gbit/s"

    def test_times(self):
        assert performance.parse_seconds("180ms") == 0.18
        assert performance.parse_seconds("2s") == 2.0

    @pytest.mark.parametrize("text", ["10", "", "Gbit/s", "10 Gb", "-1Gbit/s", "0Gbit/s", "1..2Gbit/s", "nan s"])
    def test_bad_rates(self, text):
        with pytest.raises(ValueError, match="is not a link rate"):
            performance.parse_rate(text)


def test_needs_no_tensorflow():
    code = "import sys, tf_epgc.performance; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
