#include "base/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

namespace untied {
namespace {

// A file with one number; nullopt when it is not there or says "max".
std::optional<dim_t> number_in(const std::string& path) {
  std::ifstream file(path);
  dim_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

struct Container {
  std::optional<dim_t> limit, used;
};
// The limit of this process's control group, as a container sees it: version 2, else version 1.
Container container() {
  const std::string v2 = "/sys/fs/cgroup/memory.", v1 = "/sys/fs/cgroup/memory/memory.";
  if (const auto limit = number_in(v2 + "max")) return {limit, number_in(v2 + "current")};
  if (const auto limit = number_in(v1 + "limit_in_bytes")) return {limit, number_in(v1 + "usage_in_bytes")};
  return {};
}

dim_t available_on_machine() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, rest; file >> name && std::getline(file, rest);)
    if (name == "MemAvailable:") return std::strtoll(rest.c_str(), nullptr, 10) * 1024;
  return static_cast<dim_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

}  // namespace

dim_t host_memory() {
  const dim_t machine = static_cast<dim_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min(machine, container().limit.value_or(machine));
}

dim_t available_host_memory() {
  const dim_t available = available_on_machine();
  const Container here = container();
  if (!here.limit) return available;
  return std::clamp<dim_t>(*here.limit - here.used.value_or(0), 0, available);
}

}  // namespace untied
