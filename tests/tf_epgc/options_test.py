"""Options of a call and how they are merged."""

import tensorflow as tf

import tf_epgc
from tf_epgc.formats import CodecConfig
from tf_epgc.options import ExchangeOptions, GradientOptions, gradient_options_of

STOCK = tf.distribute.experimental.CommunicationOptions


class GradientOptionsTest(tf.test.TestCase):
    def test_open_settings_are_the_strategy_s(self):
        default = CodecConfig(11, "truncate", "none", seed=5)
        self.assertEqual(GradientOptions().codec_config(default), default)
        self.assertEqual(GradientOptions(bits=8).codec_config(default), CodecConfig(8, "truncate", "block", 5))
        self.assertEqual(
            GradientOptions(scaling="block").codec_config(default), CodecConfig(11, "truncate", "block", 5)
        )
        self.assertTrue(GradientOptions(bits=32).codec_config(default).is_exact)

    def test_refused(self):
        with self.assertRaisesRegex(ValueError, "bits=5 is not supported"):
            tf_epgc.GradientOptions(bits=5)
        with self.assertRaisesRegex(ValueError, "rounding='down' is not supported"):
            tf_epgc.GradientOptions(rounding="down")


class MergeTest(tf.test.TestCase):
    def test_mark_survives(self):
        base = ExchangeOptions.wrap(STOCK(bytes_per_pack=5, timeout_seconds=7.0))
        merged = base.merge(GradientOptions(bits=8, bytes_per_pack=9))
        self.assertEqual((merged.bytes_per_pack, merged.timeout_seconds), (9, 7.0))
        self.assertEqual(gradient_options_of(merged).bits, 8)
        self.assertEqual(gradient_options_of(base.merge(merged)).bits, 8)

    def test_no_mark(self):
        base = ExchangeOptions.wrap(STOCK())
        for options in (None, STOCK(), base):
            self.assertIsNone(gradient_options_of(base.merge(options)))
        self.assertIsNone(gradient_options_of(None))


if __name__ == "__main__":
    tf.test.main()
