// Gradients: a unit's whole fp32 buffer while backward fills it, reduced (summed, never averaged) into this rank's shard.
// Shards live on the device or, with the optimizer's state, in host memory. Settling a reduction (adding it, norm, copy to the
// host) is left to the next one, so the communication of one unit runs under the backward of another.
#pragma once

#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "ops/op.h"
#include "parallel/parameter_table.h"

namespace untied {

class GradientShards {
 public:
  // uses[unit]: how many reductions one micro-batch brings (2 for a tied embedding).
  GradientShards(Ctx& ctx, const ParameterTable& table, Communicator& world, MemoryKind place, std::vector<int> uses);

  // Clears the sums' state; `micro_batches` of them follow.
  void begin_step(int micro_batches);
  void begin_micro_batch();

  // A unit's gradient buffer, padding cleared. The first product into a parameter writes, the later ones add.
  class Open {
   public:
    struct Target {
      Tensor tensor;
      Accumulate accumulate;
    };
    Target operator[](const char* suffix);
    // Rows [range) of dimension 0, with a state of their own: stages write disjoint rows of one matrix. The caller says when
    // the rows were written before.
    Tensor tensor(const char* suffix) const;
    std::optional<Tensor> find(const char* suffix) const;

   private:
    friend class GradientShards;
    const ParameterTable* table_ = nullptr;
    int unit_ = -1;
    Buffer buffer_;
    Tensor flat_;
    std::vector<bool> written_;
  };
  Open open(int unit);
  void reduce(Open unit);  // every parameter has been written

  // Forgets a step that was given up.
  void abandon_step() { pending_ = {}; }

  // After the last micro-batch: settles everything. sum_of_squares (fp64[1]) then holds this rank's part of the norm squared.
  void finish();
  Tensor sum_of_squares() const { return squares_.tensor(DType::kF64, {1}); }

  MemoryKind place() const { return place_; }
  Tensor shard(int unit) const;  // fp32, device or host memory

 private:
  struct Pending {
    int unit = -1;
    bool first = false, last = false;  // of the step's reductions of the unit
    Buffer buffer;                     // this reduction's sum, where it is not written to the shard itself
    Event done;
  };
  void settle();
  void check_all_reduced() const;

  Ctx& ctx_;
  const ParameterTable& table_;
  Communicator& world_;
  MemoryKind place_;
  std::vector<int> uses_;
  std::vector<Buffer> shards_;
  std::vector<Event> written_to_host_;
  std::vector<int> reduced_;                 // reductions of each unit in this micro-batch
  int micro_batches_ = 0, micro_batch_ = 0;  // of the step; the current one, from 1
  Pending pending_;
  Buffer squares_;
};

}  // namespace untied
