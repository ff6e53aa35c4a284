// The one table of parameters. Sharding, gathering, initialisation, loading, saving, updating and counting all walk it; what is
// in it, the model says (model/parameters.h).
#pragma once

#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace untied {

// Which dimension is made of heads of D elements. Working weights keep heads in the order in which the attention stages
// use them (parallel/schedule.h); checkpoints, and everything a user sees, keep the canonical order.
enum class HeadAxis { kNone, kQueryRows, kQueryCols, kKeyRows };
enum class Init { kNormal, kOnes, kZeros };

struct Parameter {
  std::string name;  // as Hugging Face names it
  Shape shape;       // as in the checkpoint, [out, in] for matrices
  HeadAxis heads = HeadAxis::kNone;
  Init init = Init::kNormal;
  bool decays = false;  // weight decay: matrices only
  int unit = 0;
  dim_t offset = 0;  // first element inside the unit's flat buffer; a multiple of 64
};

// What is gathered and reduced together.
enum class UnitKind { kEmbedding, kAttention, kMlp, kFinalNorm, kHead };
struct Unit {
  UnitKind kind;
  int block = -1;               // for attention and MLP
  std::string name;             // "block 3 attention"
  std::vector<int> parameters;  // indices into the table
  dim_t size = 0;               // elements of the flat buffer, gaps included
};

class ParameterTable {
 public:
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  int unit(UnitKind kind, int block = -1) const;  // a tied head is the embedding's unit
  int find(const std::string& name) const;        // -1 when there is none
  // Index of the parameter `suffix` ("q_proj.weight") of a unit, -1 when the model has none (biases).
  int in_unit(int unit, const std::string& suffix) const;

 protected:
  int add_unit(UnitKind kind, int block, std::string name);
  void add(int unit, std::string name, Shape shape, Init init, HeadAxis heads = HeadAxis::kNone);

 private:
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
};

}  // namespace untied
