#include "io/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "io/file.h"

namespace untied {
namespace {

namespace fs = std::filesystem;

// One path component that stays inside its folder.
bool is_plain_name(std::string_view text) {
  return !text.empty() && text[0] != '.' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// In the order in which huggingface_hub looks.
fs::path cache_folder() {
  if (const std::string folder = environment("HF_HUB_CACHE"); !folder.empty()) return folder;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface/hub";
  return fs::path(environment("HOME")) / ".cache/huggingface/hub";
}

}  // namespace

bool is_hub_name(std::string_view text) {
  const std::size_t slash = text.find('/');
  return slash != std::string_view::npos && is_plain_name(text.substr(0, slash)) &&
         is_plain_name(text.substr(slash + 1));
}

std::string find_in_hub_cache(const std::string& name) {
  const std::size_t slash = name.find('/');
  CHECK(is_hub_name(name), "'{}' is not of the form org/name", name);
  const fs::path model = cache_folder() / format("models--{}--{}", name.substr(0, slash), name.substr(slash + 1));
  std::error_code error;
  const fs::path ref = model / "refs" / "main";
  if (!fs::is_regular_file(ref, error))
    throw InputError(
        "{0}: no such folder, and not in the Hugging Face cache ({1}); untied never downloads, "
        "`hf download {0}` does",
        name, model.string());
  const MappedFile file(ref);
  std::string commit(file.text());
  commit.erase(std::find_if(commit.begin(), commit.end(), [](unsigned char c) { return std::isspace(c); }),
               commit.end());
  if (!is_plain_name(commit)) throw InputError("{}: does not hold the name of a commit", ref.string());
  const fs::path snapshot = model / "snapshots" / commit;
  if (!fs::is_directory(snapshot, error))
    throw InputError("{0}: the Hugging Face cache has no {1}; untied never downloads, `hf download {0}` does", name,
                     snapshot.string());
  return snapshot;
}

}  // namespace untied
