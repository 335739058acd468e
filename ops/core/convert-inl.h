// Conversions between a tensor's own type and float32: plain loops that compilers vectorize. Each kernels_*.cc includes
// this inside its own region and namespace, hence neither a guard nor includes.

// Loads one element that may have any alignment.
template <typename T>
inline T LoadElement(const void* in, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(in) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
inline void StoreElement(T value, void* out, int64_t i) {
  std::memcpy(static_cast<char*>(out) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <DType kDType>
inline void ConvertToFloat(const void* in, int64_t size, float* out) {
  if constexpr (kDType == DType::kFloat32) {
    if (size > 0) std::memcpy(out, in, static_cast<size_t>(size) * sizeof(float));
  } else {
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (kDType == DType::kFloat16) out[i] = BitsToFloat(WidenHalf(LoadElement<uint16_t>(in, i)));
      if constexpr (kDType == DType::kBFloat16) {
        out[i] = BitsToFloat(static_cast<uint32_t>(LoadElement<uint16_t>(in, i)) << 16);
      }
      if constexpr (kDType == DType::kFloat64) out[i] = static_cast<float>(LoadElement<double>(in, i));
    }
  }
}

template <DType kDType>
inline void ConvertFromFloat(const float* in, int64_t size, void* out) {
  if constexpr (kDType == DType::kFloat32) {
    if (size > 0) std::memcpy(out, in, static_cast<size_t>(size) * sizeof(float));
  } else {
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (kDType == DType::kFloat16) StoreElement(NarrowToHalf(FloatToBits(in[i])), out, i);
      if constexpr (kDType == DType::kBFloat16) StoreElement(NarrowToBFloat16(FloatToBits(in[i])), out, i);
      if constexpr (kDType == DType::kFloat64) StoreElement(static_cast<double>(in[i]), out, i);
    }
  }
}
