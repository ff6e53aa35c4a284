// The local cache of the Hugging Face hub: models that its own tools have downloaded. Nothing is ever downloaded here.
#pragma once

#include <string>
#include <string_view>

namespace untied {

// Whether the text can be the name of a model on the hub: "org/name".
bool is_hub_name(std::string_view text);

// The folder of the cached snapshot of the branch `main`. Throws InputError when there is none.
std::string find_in_hub_cache(const std::string& name);

}  // namespace untied
