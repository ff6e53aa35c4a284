// Working weights, sharded over all ranks (FSDP / ZeRO-3, Rajbhandari et al. 2020): every rank keeps 1/W of each unit's flat
// buffer; a unit is gathered ahead of its use and let go behind it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "parallel/parameter_table.h"

namespace untied {

// Elements of a unit's flat buffer, padded so that all W shards are equal and aligned. The padding stays zero.
dim_t padded_size(const Unit& unit, int ranks);

// A part of this rank's shard that belongs to one parameter.
struct ShardPiece {
  int parameter;
  Range in_shard;      // elements of the shard
  dim_t in_parameter;  // first element of the parameter (working order)
};
std::vector<ShardPiece> shard_pieces(const ParameterTable& table, int unit, int rank, int ranks);

class ShardedParameters {
 public:
  ShardedParameters(Ctx& ctx, const ParameterTable& table, Communicator& world, DType working);

  DType dtype() const { return dtype_; }
  Tensor shard(int unit) const;  // [padded / W] of the working type

  // The order in which units will be used from here on: what gathering ahead follows. Called after any update of the shards.
  void begin_walk(std::vector<int> units);
  // Forgets what is left of a walk that was given up.
  void abandon_walk();

  // A gathered unit. The buffer goes back when this does.
  class Use {
   public:
    Tensor operator[](const char* suffix) const;           // "q_proj.weight": the parameter's whole tensor
    std::optional<Tensor> find(const char* suffix) const;  // nullopt when the model has no such parameter (biases)
    Tensor flat() const { return flat_; }

   private:
    friend class ShardedParameters;
    const ParameterTable* table_ = nullptr;
    int unit_ = -1;
    Buffer buffer_;
    Tensor flat_;
  };
  // The walk's next unit, which must be `unit`: waits for its gather and starts the following one.
  Use use(int unit);

 private:
  struct Gather {
    int unit = -1;
    Buffer buffer;
    Event done;
  };
  Gather gather(int unit);
  void skip_to(int unit);

  Ctx& ctx_;
  const ParameterTable& table_;
  Communicator& world_;
  DType dtype_;
  std::vector<Buffer> shards_;
  std::vector<int> walk_;
  std::size_t next_ = 0;
  Gather ahead_;
};

}  // namespace untied
