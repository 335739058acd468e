"""The GPU kernels of the ops, as far as this machine allows."""

import ctypes
import pathlib
import shutil
import subprocess
import unittest

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.ops.core.codec_cases import assert_same_bits
from tests.ops.tf.op_cases import SETTINGS, tensors
from tf_epgc import _build_info, ops
from tf_epgc.formats import CodecConfig

OPS = ("EpgcPack", "EpgcReduce", "EpgcUnpack", "EpgcQuantize")
HAS_GPU = bool(tf.config.list_physical_devices("GPU"))


class Buffer(ctypes.Structure):
    """TF_Buffer of TensorFlow's C interface."""

    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("deallocator", ctypes.c_void_p)]


def registered_kernels(op):
    """Returns the serialized list of an op's kernels, in which their devices can be read."""
    ops.library()
    library = ctypes.CDLL(str(next(pathlib.Path(tf.sysconfig.get_lib()).glob("libtensorflow_cc.so.*"))))
    library.TF_NewStatus.restype = ctypes.c_void_p
    library.TF_GetRegisteredKernelsForOp.restype = ctypes.POINTER(Buffer)
    library.TF_GetRegisteredKernelsForOp.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    found = library.TF_GetRegisteredKernelsForOp(op.encode(), library.TF_NewStatus())
    return ctypes.string_at(found.contents.data, found.contents.length)


class WithoutGpuTest(parameterized.TestCase, tf.test.TestCase):
    """The library that has GPU kernels works where there is no GPU."""

    @parameterized.parameters(*OPS)
    def test_registered(self, op):
        kernels = registered_kernels(op)
        self.assertIn(b"CPU", kernels)
        self.assertEqual(b"GPU" in kernels, bool(_build_info.CUDA_VERSION))

    def test_runtime_is_its_own(self):
        """TensorFlow exports a CUDA runtime of another version, which no linker may take for ours."""
        if shutil.which("nm") is None:
            self.skipTest("no nm to list the library's symbols with")
        listed = subprocess.run(["nm", "-D", str(_build_info.OP_LIBRARY)], capture_output=True, text=True, check=True)
        self.assertIn("tensorflow", listed.stdout)
        self.assertNotRegex(listed.stdout, r"\b(__)?cuda[A-Z]")

    def test_soft_placement(self):
        """By default TensorFlow takes the CPU's kernel."""
        if HAS_GPU:
            self.skipTest("there is a GPU")
        with tf.device("/GPU:0"):
            codes = ops.pack([tf.constant([1.0, 2.5])], CodecConfig(8), 1)
        self.assertAllEqual(ops.unpack(codes, CodecConfig(8), [tf.zeros([2])])[0], [1.0, 2.5])

    def test_errors_name_the_device(self):
        if HAS_GPU:
            self.skipTest("there is a GPU")
        soft = tf.config.get_soft_device_placement()
        tf.config.set_soft_device_placement(False)
        try:
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "GPU:0"), tf.device("/GPU:0"):
                ops.pack([tf.constant([1.0])], CodecConfig(8), 1)

            @tf.function
            def pack():
                with tf.device("/GPU:0"):
                    return ops.pack([tf.constant([1.0])], CodecConfig(8), 1)

            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "GPU:0"):
                pack()
        finally:
            tf.config.set_soft_device_placement(soft)


class GpuTest(parameterized.TestCase, tf.test.TestCase):
    """The GPU's bits are the CPU's."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not HAS_GPU:
            raise unittest.SkipTest("no GPU that this TensorFlow can use")
        if not _build_info.CUDA_VERSION:
            raise unittest.SkipTest("tf_epgc was built without CUDA")

    def everything(self, config, device):
        """Returns the results of all ops."""
        with tf.device(device):
            values = [tf.identity(value) for value in tensors()]
            codes = ops.pack(values, config, 3, step=5, stream=2)
            self.assertIn(device.strip("/"), codes.device)
            reduced = ops.reduce(codes, config, scale=0.5, step=5, stream=9)
            return [codes, reduced, *ops.unpack(codes, config, values), ops.quantize_with(values[0], config)]

    @parameterized.parameters(*SETTINGS)
    def test_equals_cpu(self, bits, rounding, scaling):
        config = CodecConfig(bits, rounding, scaling, seed=3)
        results = zip(self.everything(config, "/GPU:0"), self.everything(config, "/CPU:0"), strict=True)
        for gpu, cpu in results:
            gpu, cpu = gpu.numpy(), cpu.numpy()
            if bits == 32 and gpu.dtype == np.int32:  # a sum that is a NaN has another payload
                gpu, cpu = gpu.view(np.float32), cpu.view(np.float32)
            assert_same_bits(gpu, cpu)


if __name__ == "__main__":
    tf.test.main()
