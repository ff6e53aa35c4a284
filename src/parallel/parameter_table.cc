#include "parallel/parameter_table.h"

#include <string_view>

#include "base/error.h"

namespace untied {
namespace {

constexpr dim_t kAlignment = 64;  // elements: 128 bytes of bf16, a cache line of any device

// Whether `name` is `suffix` or ends with "." and `suffix`.
bool has_suffix(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  return name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.';
}

}  // namespace

int ParameterTable::unit(UnitKind kind, int block) const {
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (units_[i].kind == kind && units_[i].block == block) return static_cast<int>(i);
  if (kind == UnitKind::kHead) return unit(UnitKind::kEmbedding);
  CHECK(false, "the model has no unit of kind {} at block {}", static_cast<int>(kind), block);
}

int ParameterTable::find(const std::string& name) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].name == name) return static_cast<int>(i);
  return -1;
}

int ParameterTable::in_unit(int unit, const std::string& suffix) const {
  for (int i : units_.at(unit).parameters)
    if (has_suffix(parameters_[i].name, suffix)) return i;
  return -1;
}

void ParameterTable::add(int unit, std::string name, Shape shape, Init init, HeadAxis heads) {
  Unit& home = units_[unit];
  home.parameters.push_back(static_cast<int>(parameters_.size()));
  parameters_.push_back({.name = std::move(name),
                         .shape = shape,
                         .heads = heads,
                         .init = init,
                         .decays = shape.rank() == 2,
                         .unit = unit,
                         .offset = home.size});
  home.size = round_up(home.size + shape.size(), kAlignment);
}

int ParameterTable::add_unit(UnitKind kind, int block, std::string name) {
  units_.push_back({.kind = kind, .block = block, .name = std::move(name)});
  return static_cast<int>(units_.size()) - 1;
}

}  // namespace untied
