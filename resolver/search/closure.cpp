// SPDX-License-Identifier: MIT
#include "resolver/search/closure.hpp"

namespace heddle {

const char* to_string(FoundBy found_by) {
  switch (found_by) {
    case FoundBy::program:
      return "program";
    case FoundBy::preload:
      return "preload";
    case FoundBy::rpath:
      return "rpath";
    case FoundBy::runpath:
      return "runpath";
    case FoundBy::ld_library_path:
      return "ld_library_path";
    case FoundBy::cache:
      return "cache";
    case FoundBy::default_path:
      return "default";
    case FoundBy::path:
      return "path";
    case FoundBy::interpreter:
      return "interpreter";
  }
  return "unknown";
}

const char* to_string(Probe::Outcome outcome) {
  switch (outcome) {
    case Probe::Outcome::found:
      return "found";
    case Probe::Outcome::missing:
      return "no such file";
    case Probe::Outcome::no_directory:
      return "no such directory";
    case Probe::Outcome::wrong_class:
      return "for another machine";
    case Probe::Outcome::unreadable:
      return "cannot be opened";
    case Probe::Outcome::not_elf:
      return "not a library ld.so accepts";
    case Probe::Outcome::in_system_dir:
      return "in a system directory, ruled out by nodeflib";
  }
  return "unknown";
}

}  // namespace heddle
