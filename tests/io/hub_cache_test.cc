#include "io/hub_cache.h"

#include <cstdlib>

#include "files.h"

namespace untied {
namespace {

// An environment variable's value during a test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Environment() { set(old_.empty() ? nullptr : old_.c_str()); }

 private:
  void set(const char* value) const { value ? ::setenv(name_, value, 1) : ::unsetenv(name_); }
  const char* name_;
  std::string old_;
};

TEST(HubCache, Names) {
  for (const char* name : {"org/name", "meta-llama/Llama-3.2-1B", "a_b/c.d"}) EXPECT_TRUE(is_hub_name(name)) << name;
  for (const char* name : {"", "name", "/name", "org/", "a/b/c", "../name", "org/..", "./a", "org/na me", "~/x"})
    EXPECT_FALSE(is_hub_name(name)) << name;
}

TEST(HubCache, FindsTheMainSnapshotWhereverTheCacheIs) {
  const TemporaryFolder folder;
  const Environment no_cache("HF_HUB_CACHE", nullptr), no_hub_home("HF_HOME", nullptr),
      no_xdg("XDG_CACHE_HOME", nullptr), home("HOME", folder.path().c_str());
  for (const auto& [variable, value, hub] :
       {std::tuple{"HF_HUB_CACHE", folder / "a", folder / "a"}, std::tuple{"HF_HOME", folder / "b", folder / "b/hub"},
        std::tuple{"XDG_CACHE_HOME", folder / "c", folder / "c/huggingface/hub"},
        std::tuple{"HOME", folder / "d", folder / "d/.cache/huggingface/hub"}}) {
    const Environment place(variable, value.c_str());
    const std::string model = hub + "/models--org--name";
    const std::string error = message_of([] { find_in_hub_cache("org/name"); });
    EXPECT_EQ(error, "org/name: no such folder, and not in the Hugging Face cache (" + model +
                         "); untied never downloads, `hf download org/name` does");
    write_text(model + "/refs/main", "0123abcd\n");
    EXPECT_TRUE(
        contains(message_of([] { find_in_hub_cache("org/name"); }), model + "/snapshots/0123abcd; untied never"));
    std::filesystem::create_directories(model + "/snapshots/0123abcd");
    EXPECT_EQ(find_in_hub_cache("org/name"), model + "/snapshots/0123abcd");
    write_text(model + "/refs/main", "../../elsewhere");
    EXPECT_TRUE(contains(message_of([] { find_in_hub_cache("org/name"); }), "does not hold the name of a commit"));
  }
}

}  // namespace
}  // namespace untied
