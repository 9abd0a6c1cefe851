// Which level's kernels run on this processor.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace fathom {

// The levels that were compiled and that this processor can run, best first. The last is one that every processor of
// the kind can run: "neon" on 64-bit Arm, else "portable".
const std::vector<const Kernels*>& usable_levels();

// The level in use; the best one unless use_level was called.
const Kernels& kernels();

// Take a level by name, for tests. Throws std::invalid_argument if it is not usable here.
void use_level(const std::string& name);

}  // namespace fathom
