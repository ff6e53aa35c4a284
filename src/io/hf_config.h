// Hugging Face's config.json to and from ModelConfig. Both layouts are read: that of transformers 4 (rope_theta and
// rope_scaling at the top, torch_dtype) and that of transformers 5 (rope_parameters, dtype).
// What the engine would compute differently from transformers is refused by name; other unknown keys mean nothing to it.
#pragma once

#include <string>

#include "io/json.h"
#include "model/config.h"

namespace untied {

// `where` is the file, for messages. Throws InputError with file and field, what was found and what would be legal.
// The result has passed validate().
ModelConfig read_hf_config(const Json& json, const std::string& where);

// Reads config.json of a folder.
ModelConfig load_hf_config(const std::string& folder);

// A config.json for a model made here, readable by transformers 4 and 5.
Json hf_config_json(const ModelConfig& config);

}  // namespace untied
