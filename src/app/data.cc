// `untied data inspect`: what the trainer will see, token by token, with targets and document borders.
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>

#include "app/commands.h"
#include "base/error.h"
#include "base/format.h"
#include "io/dataset.h"
#include "io/inspect.h"

namespace untied {
namespace {

bool has_tokenizer(const std::string& folder) {
  if (folder.empty()) return false;
  return std::filesystem::exists(folder + "/tokenizer.json") || std::filesystem::exists(folder + "/tokenizer.model");
}

// One epoch in the order of training.
int inspect_data(const RunConfig& run) {
  constexpr dim_t kAnyId = std::numeric_limits<std::int32_t>::max();
  const DataOptions options = data_options(run, run.model.empty() ? kAnyId : load_model_config(run.model).vocab);
  const auto data = Dataset::open(run.data, options);
  fmt::print("{}\n", data->report().str());
  for (dim_t i = 0; i < data->report().sequences; ++i)
    fmt::print("\nsequence {}: {}", i, inspect(*data->sequence(i), {0, run.context}, options.byte_tokenizer));
  return 0;
}

}  // namespace

DataOptions data_options(const RunConfig& run, dim_t vocab) {
  return {.context = run.context,
          .vocab = vocab,
          .byte_tokenizer = run.tokenizer == "bytes" || !has_tokenizer(model_folder(run.model)),
          .long_documents = run.long_documents,
          .packing = run.packing,
          .shuffle = run.shuffle,
          .seed = run.seed};
}

int run_data(const Invocation& invocation) {
  if (invocation.action == "inspect") return inspect_data(invocation.run);
  throw ConfigError("data tokenize: is not available yet; `--tokenizer bytes` reads text as it is");
}

}  // namespace untied
