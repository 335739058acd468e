"""Formats and the settings of a codec."""

import subprocess
import sys
import unittest

import tf_epgc
from tests import reference
from tf_epgc.formats import FORMATS, CodecConfig


class FormatTest(unittest.TestCase):
    def test_ranges_are_the_codes(self):
        for bits in (8, 9, 11, 16):
            magnitudes = reference.magnitudes(bits)
            self.assertEqual(FORMATS[bits].smallest, magnitudes[1])
            self.assertEqual(FORMATS[bits].largest, magnitudes[-2])
            self.assertEqual(1 + FORMATS[bits].exponent_bits + FORMATS[bits].mantissa_bits, bits)


class CodecConfigTest(unittest.TestCase):
    def test_scaling_follows_the_format(self):
        self.assertEqual([CodecConfig(b).scaling for b in FORMATS], ["block", "none", "block", "block", "none"])
        self.assertEqual(CodecConfig(8, scaling="none").scaling, "none")

    def test_refused(self):
        for arguments, text in (
            ({"bits": 12}, "bits=12 is not supported; use one of 8, 9, 11, 16, 32"),
            ({"bits": "8"}, "bits='8' is not supported"),
            ({"bits": True}, "bits=True is not supported"),
            ({"rounding": "up"}, "rounding='up' is not supported; use one of truncate, nearest, stochastic"),
            ({"scaling": "layer"}, "scaling='layer' is not supported; use one of block, none"),
            ({"bits": 32, "scaling": "block"}, "scaling='block' has no meaning for bits=32"),
            ({"seed": 1.5}, "seed=1.5 is not supported; use an integer"),
            ({"seed": 2**63}, "use an integer of at most 64 bits"),
        ):
            with self.assertRaises(ValueError) as raised:
                CodecConfig(**arguments)
            self.assertIn(text, str(raised.exception))


class ImportTest(unittest.TestCase):
    def test_import_alone_needs_no_tensorflow(self):
        code = "import sys, tf_epgc, tf_epgc.formats, tf_epgc.packing; sys.exit('tensorflow' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_without_tensorflow(self):
        code = "import sys; sys.modules['tensorflow'] = None; import tf_epgc; tf_epgc.EPGCMirroredStrategy"
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        self.assertIn("tf_epgc.EPGCMirroredStrategy needs TensorFlow, which is not installed", ended.stderr)

    def test_public_names(self):
        for name in tf_epgc.__all__:
            self.assertIsNotNone(getattr(tf_epgc, name))
        with self.assertRaises(AttributeError):
            tf_epgc.nothing  # noqa: B018


if __name__ == "__main__":
    unittest.main()
