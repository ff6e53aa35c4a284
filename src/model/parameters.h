#pragma once

#include "model/config.h"
#include "parallel/parameter_table.h"

namespace untied {

// The parameters of a decoder-only model, by their Hugging Face names; a new one is one new row in parameters.cc.
class ModelParameters : public ParameterTable {
 public:
  explicit ModelParameters(const ModelConfig& config);
};

}  // namespace untied
