// Which level's kernels run on this processor.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace fathom {

// The levels that were compiled and that this processor can run, best first; "portable" is always the last.
const std::vector<const Kernels*>& usable_levels();

// The level in use; the best one unless use_level was called.
const Kernels& kernels();

// Take a level by name, for tests. Throws std::invalid_argument if it is not usable here.
void use_level(const std::string& name);

}  // namespace fathom
