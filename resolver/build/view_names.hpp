// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "resolver/build/app_inputs.hpp"
#include "resolver/build/object_table.hpp"
#include "resolver/search/closure.hpp"

namespace heddle {

/// The names of one flat directory, and those that ld.so may be sent there for.
struct ViewNames {
  std::map<std::string, ObjectId> view;
  std::map<std::string, ObjectId> guided;
};

/// Adds a closure whose objects have the ids `ids` (by position). Within one process a name means
/// one file, so what is there already stays.
///
/// The view gets every name: those asked for first, then sonames, then the files' own names and the
/// links beside them. `guided` gets only names that ld.so's search provably leads to that file (it
/// was asked for them, or the file is loaded and answers to its soname) and all absolute paths of
/// the file: an alias nobody asked for might lead another search elsewhere. ld.so itself is in the
/// view, never guided.
void add_closure(ViewNames& names, const ObjectTable& objects, const Closure& closure,
                 const std::vector<ObjectId>& ids, RootIs root);

/// Adds a library that a run opened as `name` (a soname or an absolute path). `guided` gets that
/// name and all paths of the file, the view the names it may have beside what is there.
void add_library(ViewNames& names, const ObjectTable& objects, const std::string& name,
                 ObjectId id);

/// Adds one file under `relative` ("ucx/libuct_cma.so.0") and all its paths to `guided`.
void add_plugin_file(ViewNames& names, const ObjectTable& objects, const std::string& relative,
                     ObjectId id);

}  // namespace heddle
