// Walks through tensors laid end to end.
#ifndef EPGC_OPS_CORE_TENSOR_CURSOR_H_
#define EPGC_OPS_CORE_TENSOR_CURSOR_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/core/codec.h"
#include "ops/core/kernels.h"

namespace epgc {

inline int64_t DTypeSize(DType dtype) {
  constexpr int64_t kSizes[] = {4, 2, 2, 8};
  return kSizes[static_cast<int>(dtype)];
}

// A position among tensors that are read (ConstTensor) or written (MutableTensor). It steps over empty ones.
template <typename Tensor>
class TensorCursor {
 public:
  using Byte = std::conditional_t<std::is_same_v<Tensor, ConstTensor>, const char, char>;
  using Float = std::conditional_t<std::is_same_v<Tensor, ConstTensor>, const float, float>;

  // `position` counts elements from the start of the first tensor.
  TensorCursor(const Tensor* tensors, int64_t num_tensors, int64_t position)
      : tensor_(tensors), end_(tensors + num_tensors), offset_(position) {
    SkipFinished();
  }

  bool AtEnd() const { return tensor_ == end_; }

  // The next `size` elements where they lie, if that is one tensor of aligned float32, and steps over them; or nullptr.
  Float* TakeDirect(int64_t size) {
    if (AtEnd() || tensor_->dtype != DType::kFloat32 || tensor_->size - offset_ < size) return nullptr;
    Byte* data = Here();
    if (reinterpret_cast<uintptr_t>(data) % alignof(float) != 0) return nullptr;
    Advance(size);
    return reinterpret_cast<Float*>(data);
  }

  // Reads the next `size` elements as float32; zeros beyond the last tensor.
  void Gather(const KernelTable& kernels, int64_t size, float* out) {
    while (size > 0 && !AtEnd()) {
      const int64_t piece = std::min(size, tensor_->size - offset_);
      kernels.to_float[static_cast<int>(tensor_->dtype)](Here(), piece, out);
      Advance(piece);
      out += piece;
      size -= piece;
    }
    std::fill_n(out, size, 0.0f);
  }

  // Writes the next `size` elements; what lies beyond the last tensor is dropped.
  void Scatter(const KernelTable& kernels, int64_t size, const float* in) {
    while (size > 0 && !AtEnd()) {
      const int64_t piece = std::min(size, tensor_->size - offset_);
      kernels.from_float[static_cast<int>(tensor_->dtype)](in, piece, Here());
      Advance(piece);
      in += piece;
      size -= piece;
    }
  }

 private:
  Byte* Here() const { return static_cast<Byte*>(tensor_->data) + offset_ * DTypeSize(tensor_->dtype); }

  void Advance(int64_t size) {
    offset_ += size;
    SkipFinished();
  }

  void SkipFinished() {
    for (; tensor_ != end_ && offset_ >= tensor_->size; ++tensor_) offset_ -= tensor_->size;
  }

  const Tensor* tensor_;
  const Tensor* end_;
  int64_t offset_;
};

}  // namespace epgc

#endif  // EPGC_OPS_CORE_TENSOR_CURSOR_H_
