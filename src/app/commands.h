// One function per subcommand, each in the file of its name. They print results to stdout, progress and logs to stderr,
// and return the exit code; what goes wrong they throw (base/error.h), and main turns it into a line and a code.
#pragma once

#include <memory>
#include <string>

#include "app/options.h"
#include "io/checkpoint.h"
#include "io/dataset.h"
#include "model/config.h"

namespace untied {

int run_train(const Invocation& invocation);
int run_plan(const Invocation& invocation);
int run_verify(const Invocation& invocation);
int run_bench(const Invocation& invocation);
int run_data(const Invocation& invocation);
int run_model(const Invocation& invocation);

// The folder that --model names, by its path or as "org/name" in the Hugging Face cache; "" when it names a preset, a
// config.json or nothing: then weights are random. A folder comes before a preset of the same name. (model.cc)
std::string model_folder(const std::string& model);
ModelConfig load_model_config(const std::string& model);  // throws InputError, as the next one does
std::shared_ptr<const CheckpointReader> open_checkpoint(const std::string& model);  // null: random weights

// How the run reads data. Text is bytes when the user says so, or when the model has no tokenizer of its own. (data.cc)
DataOptions data_options(const RunConfig& run, dim_t vocab);

}  // namespace untied
