// SPDX-License-Identifier: MIT
#include "fsgen/compat/program_world.hpp"

namespace heddle::compat {

std::string ProgramWorld::real_path(const std::string& path) {
  if (path != path_) return base_.real_path(path);
  const auto slash = path_.rfind('/');
  if (slash == path_.npos || slash == 0) return path_;
  const auto folder = base_.real_path(path_.substr(0, slash));
  return folder.empty() ? path_ : (folder == "/" ? "" : folder) + path_.substr(slash);
}

}  // namespace heddle::compat
