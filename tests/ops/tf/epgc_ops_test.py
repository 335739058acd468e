"""The TensorFlow ops against the numpy reference, and what they refuse."""

import os
import subprocess
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import reference
from tests.ops.tf.op_cases import SETTINGS, tensors
from tf_epgc import ops
from tf_epgc.formats import CodecConfig


class PackTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*SETTINGS)
    def test_equals_reference(self, bits, rounding, scaling):
        config = CodecConfig(bits, rounding, scaling, seed=3)
        values = tensors()
        for shards in (1, 3):
            codes = ops.pack(values, config, shards, step=5, stream=2)
            wanted = reference.pack([v.numpy() for v in values], shards, bits, rounding, scaling, 3, 5, 2)
            np.testing.assert_array_equal(codes.numpy().view(np.uint32), wanted)
            rows = tf.stack([codes[0], codes[0]])
            reduced = ops.reduce(rows, config, scale=0.5, step=5, stream=9)
            elements, _, _ = reference.shard_layout(sum(int(tf.size(v)) for v in values), shards, bits, scaling)
            wanted = reference.reduce(
                rows.numpy().view(np.uint32), elements, bits, rounding, scaling, 0.5, seed=3, step=5, stream=9
            )
            np.testing.assert_array_equal(reduced.numpy().view(np.uint32), wanted[np.newaxis])
            for got, like in zip(ops.unpack(codes, config, values), values, strict=True):
                self.assertEqual((got.dtype, got.shape), (like.dtype, like.shape))

    def test_in_a_function(self):
        config = CodecConfig(8)
        values = tensors()

        @tf.function
        def round_trip(step):
            return ops.unpack(ops.pack(values, config, 2, step), config, values)

        eager = ops.unpack(ops.pack(values, config, 2), config, values)
        for a, b in zip(round_trip(tf.constant(0, tf.int64)), eager, strict=True):
            self.assertEqual(a.numpy().tobytes(), b.numpy().tobytes())

    def test_inputs_stay_as_they_are(self):
        value = tf.constant([1.1, 2.2])
        ops.unpack(ops.pack([value], CodecConfig(8), 1), CodecConfig(8), [value])
        ops.quantize_with(value, CodecConfig(8))
        self.assertAllEqual(value, np.array([1.1, 2.2], np.float32))

    def test_no_tensors(self):
        self.assertEqual(ops.library().epgc_pack([], 0, shards=2, bits=8).shape, [2, 0])

    def test_static_shapes(self):
        @tf.function(input_signature=[tf.TensorSpec([100]), tf.TensorSpec([None, 4])])
        def pack(a, b):
            known = ops.pack([a], CodecConfig(11), 2)
            self.assertEqual(known.shape, [2, 23])
            self.assertEqual(ops.pack([a, b], CodecConfig(11), 2).shape.as_list(), [2, None])
            self.assertEqual(ops.unpack(known, CodecConfig(11), [a])[0].shape, [100])
            self.assertEqual(ops.reduce(known, CodecConfig(11)).shape, [1, 23])
            return known

        pack.get_concrete_function()


class RefusedTest(parameterized.TestCase, tf.test.TestCase):
    def test_integers(self):
        for function in (ops.encode, ops.quantize):
            with self.assertRaisesRegex(TypeError, "has dtype int32; the codec takes float32"):
                function(tf.constant([1, 2]))

    @parameterized.parameters(7, 10, 0, True, None)
    def test_bits(self, bits):
        with self.assertRaisesRegex(ValueError, "use one of 8, 9, 11, 16, 32"):
            ops.encode([1.0], bits=bits)

    def test_op_refuses_bits(self):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "bits = 10 is not a format"):
            ops.library().epgc_pack([tf.constant([1.0])], 0, shards=1, bits=10)

    def test_step_is_no_scalar(self):
        config = CodecConfig(8)
        with self.assertRaises(tf.errors.InvalidArgumentError):
            ops.pack([tf.constant([1.0])], config, 1, step=[1, 2])
        with self.assertRaises((tf.errors.InvalidArgumentError, ValueError)):
            tf.function(lambda: ops.pack([tf.constant([1.0])], config, 1, step=tf.constant([1, 2], tf.int64)))()

    @parameterized.parameters(([3], 1), ([1, 2], 1), ([2, 9, 9], 1), ([1, 10], 40))
    def test_codes_of_another_shape(self, shape, elements):
        like, config = tf.zeros([elements]), CodecConfig(8)
        with self.assertRaises((tf.errors.InvalidArgumentError, ValueError)):
            ops.unpack(tf.zeros(shape, tf.int32), config, [like])
        with self.assertRaises((tf.errors.InvalidArgumentError, ValueError)):
            tf.function(lambda: ops.unpack(tf.zeros(shape, tf.int32), config, [like]))()

    def test_rows_of_no_shard(self):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "A row of 2 words is no shard of the 8-bit format"):
            ops.reduce(tf.zeros([2, 2], tf.int32), CodecConfig(8))

    @parameterized.product(bits=(8, 9, 11, 16), scaling=("none", "block"), groups=(0, 1, 31, 32, 33, 128, 129, 5000))
    def test_every_layout_is_recognized(self, bits, scaling, groups):
        config = CodecConfig(bits, scaling=scaling)
        codes = ops.pack([tf.zeros([groups * 32])], config, 1)
        self.assertEqual(ops.reduce(codes, config).shape, [1, codes.shape[1]])


class PublicFunctionsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*SETTINGS)
    def test_quantize_is_decode_of_encode(self, bits, rounding, scaling):
        for value in tensors():
            settings = {"bits": bits, "rounding": rounding, "scaling": scaling, "seed": 4, "step": 6}
            codes = ops.encode(value, **settings)
            decoded = ops.decode(codes, value.shape, bits, scaling, value.dtype)
            if bits != 32:
                self.assertEqual(decoded.numpy().tobytes(), ops.quantize(value, **settings).numpy().tobytes())
            else:
                self.assertAllEqual(tf.cast(value, tf.float32), tf.cast(decoded, tf.float32))

    def test_simulation_zeroes_the_mantissa(self):
        value = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        zeroed = (value.view(np.uint32) & 0xFF800000).view(np.float32)
        self.assertAllEqual(ops.quantize(value, bits=9, rounding="truncate"), zeroed)

    def test_quantize_passes_the_gradient(self):
        value = tf.Variable([1.1, 2.3])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.quantize(value, bits=8) * [3.0, 4.0])
        self.assertAllEqual(tape.gradient(loss, value), [3.0, 4.0])

    def test_subnormals_survive_tensorflow_s_threads(self):
        """TensorFlow's threads flush subnormals to zero; the codec must not."""
        tiny = np.full([200_000], 2.0**-140, np.float32)
        doubled = ops.decode(ops.reduce(tf.stack([ops.encode(tiny, bits=32)] * 2), CodecConfig(32))[0], tiny.shape, 32)
        self.assertEqual(set(doubled.numpy().view(np.uint32)), {1 << 10})  # 2^-139

    def test_docstring_examples(self):
        codes = ops.encode([1.0, 2.5, -3.1], bits=8)
        self.assertAllEqual(ops.decode(codes, shape=[3], bits=8), [1.0, 2.5, -3.0])


class LoadingTest(tf.test.TestCase):
    def test_twice(self):
        """R106: loading again gives the same module, which has all ops."""
        self.assertIs(ops.library(), ops.library())
        for name in ("epgc_pack", "epgc_reduce", "epgc_unpack", "epgc_quantize"):
            self.assertTrue(hasattr(ops.library(), name))

    def test_another_tensorflow(self):
        """R103: refused before it is loaded."""
        build_info = type("", (), {"TF_VERSION": "2.3.4", "OP_LIBRARY": "x.so"})
        with self.assertRaisesRegex(ImportError, "built for TensorFlow 2.3.4, but this is .*; rebuild tf_epgc with"):
            ops._check_build(build_info)

    def test_missing_library(self):
        build_info = type("", (), {"TF_VERSION": tf.__version__, "OP_LIBRARY": "/nowhere/x.so"})
        with self.assertRaisesRegex(ImportError, "/nowhere/x.so is missing; rebuild"):
            ops._check_build(build_info)

    def test_undefined_symbol(self):
        """R97: as with another string ABI; the error says what it was built for, what runs, and what to do."""
        source, path = (os.path.join(self.get_temp_dir(), name) for name in ("x.cc", "x.so"))
        with open(source, "w") as file:
            file.write("namespace tensorflow { void Gone(); }\nstruct X { X() { tensorflow::Gone(); } } x;\n")
        subprocess.run([os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-o", path, source], check=True)
        build_info = type("", (), {"TF_VERSION": tf.__version__, "OP_LIBRARY": path})
        said = f"built for TensorFlow {tf.__version__}, cannot be loaded into TensorFlow .*undefined symbol.*rebuild"
        with mock.patch.object(ops, "_build_info", lambda: build_info), self.assertRaisesRegex(ImportError, said):
            ops.library.__wrapped__()


if __name__ == "__main__":
    tf.test.main()
