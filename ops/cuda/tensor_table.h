// The tensors of a pack as an argument of a kernel: it travels with the launch, so that nothing is copied or waited
// for.
#ifndef EPGC_OPS_CUDA_TENSOR_TABLE_H_
#define EPGC_OPS_CUDA_TENSOR_TABLE_H_

#include <cstdint>

#include "ops/core/block.h"
#include "ops/core/codec.h"
#include "ops/cuda/device.h"

namespace epgc {
namespace cuda {

// Tensors a launch can take. Arguments of a kernel may have 4 KiB together in every version, and 32,764 bytes from
// CUDA 12.1 on; the small table is there because arguments are sent with every launch. A block overlaps 1024 tensors at
// the most, so that a large table always holds those of some whole blocks.
inline constexpr int kSmallTable = 220;
inline constexpr int kLargeTable = 1800;
static_assert(kLargeTable > kBlockSize, "a large table must hold the tensors of any one block");

// Non-empty tensors laid end to end. Positions count elements from the start of the pack.
template <int kCapacity>
struct TensorTable {
  int64_t start = 0;  // position of the first tensor's first element
  int64_t end[kCapacity];
  char* data[kCapacity];
  int32_t count = 0;
  uint8_t dtype[kCapacity];

  // Number of the tensor that holds the element at `position`; `count` if none does.
  EPGC_HD int Find(int64_t position) const {
    int low = 0;
    for (int high = count; low < high;) {
      const int middle = (low + high) / 2;
      if (end[middle] > position) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  EPGC_HD int64_t StartOf(int tensor) const { return tensor == 0 ? start : end[tensor - 1]; }
};

static_assert(sizeof(TensorTable<kSmallTable>) <= 3840 && sizeof(TensorTable<kLargeTable>) <= 32000,
              "a kernel has other arguments too");

inline char* Writable(const void* data) { return static_cast<char*>(const_cast<void*>(data)); }

template <typename Tensor>
TensorTable<1> TableOfOne(const Tensor& tensor) {
  TensorTable<1> table;
  table.end[0] = tensor.size;
  table.data[0] = Writable(tensor.data);
  table.dtype[0] = static_cast<uint8_t>(tensor.dtype);
  table.count = 1;
  return table;
}

// The number of the block that holds the pack's element `position`.
inline int64_t BlockOf(const ShardLayout& layout, int64_t position) {
  return position / layout.shard_elements * layout.shard_blocks + position % layout.shard_elements / kBlockSize;
}

// Calls launch(table, first_block, last_block), which returns nullptr or an error, for tables that together hold all
// tensors, and ranges that together are all blocks of the pack: once, if the tensors fit. Stops after an error and
// returns it.
template <int kCapacity, typename Tensor, typename Launch>
const char* ForEachTable(const ShardLayout& layout, const Tensor* tensors, int64_t num_tensors, Launch&& launch) {
  const int64_t num_blocks = layout.shards * layout.shard_blocks;
  int64_t next = 0, next_start = 0;
  for (int64_t first_block = 0; first_block < num_blocks;) {
    TensorTable<kCapacity> table;
    table.start = next_start;
    int64_t position = next_start, in_table = next;
    for (; in_table < num_tensors; ++in_table) {
      if (tensors[in_table].size == 0) continue;
      if (table.count == kCapacity) break;
      position += tensors[in_table].size;
      table.end[table.count] = position;
      table.data[table.count] = Writable(tensors[in_table].data);
      table.dtype[table.count++] = static_cast<uint8_t>(tensors[in_table].dtype);
    }
    const bool is_last = in_table == num_tensors;
    const int64_t last_block = is_last ? num_blocks : BlockOf(layout, position);
    if (last_block <= first_block) return "a block overlaps more tensors than a table holds";
    if (const char* error = launch(table, first_block, last_block)) return error;
    // The next table begins with the tensor that reaches into `last_block`.
    const int64_t reached =
        last_block / layout.shard_blocks * layout.shard_elements + last_block % layout.shard_blocks * kBlockSize;
    for (; next < num_tensors && next_start + tensors[next].size <= reached; ++next) next_start += tensors[next].size;
    first_block = last_block;
  }
  return nullptr;
}

// Whether the non-empty ones among `tensors` fit a small table.
template <typename Tensor>
bool FitsSmallTable(const Tensor* tensors, int64_t num_tensors) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_tensors; ++i) count += tensors[i].size > 0 ? 1 : 0;
  return count <= kSmallTable;
}

}  // namespace cuda
}  // namespace epgc

#endif  // EPGC_OPS_CUDA_TENSOR_TABLE_H_
