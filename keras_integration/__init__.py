"""Keras optimizers and callbacks on top of tf_epgc's public names."""
