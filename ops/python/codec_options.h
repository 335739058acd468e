// The codec's settings as Python's modules take them, checked: each message tells what was given and what is allowed.
#ifndef EPGC_OPS_PYTHON_CODEC_OPTIONS_H_
#define EPGC_OPS_PYTHON_CODEC_OPTIONS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "ops/core/codec.h"

namespace epgc {

inline std::string Quoted(const std::string& text) { return "'" + text + "'"; }

inline Rounding ParseRounding(const std::string& name) {
  if (name == "truncate") return Rounding::kTruncate;
  if (name == "nearest") return Rounding::kNearest;
  if (name == "stochastic") return Rounding::kStochastic;
  throw pybind11::value_error("rounding is " + Quoted(name) + "; choose 'truncate', 'nearest' or 'stochastic'.");
}

inline Scaling ParseScaling(const std::string& name) {
  if (name == "none") return Scaling::kNone;
  if (name == "block") return Scaling::kBlock;
  throw pybind11::value_error("scaling is " + Quoted(name) + "; choose 'none' or 'block'.");
}

inline CodecOptions MakeOptions(int bits, const std::string& rounding, const std::string& scaling, uint64_t seed = 0,
                                uint64_t step = 0, uint64_t stream = 0) {
  if (!IsSupportedBits(bits)) {
    throw pybind11::value_error("bits is " + std::to_string(bits) + "; choose 8, 9, 11, 16 or 32.");
  }
  CodecOptions options{bits, ParseRounding(rounding), ParseScaling(scaling), seed, step, stream};
  if (bits == 32 && options.scaling != Scaling::kNone) {
    throw pybind11::value_error(
        "scaling is 'block' with bits 32, which are exact and cannot be scaled; choose 'none'.");
  }
  return options;
}

}  // namespace epgc

#endif  // EPGC_OPS_PYTHON_CODEC_OPTIONS_H_
