// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "resolver/policy/container_side.hpp"
#include "resolver/policy/decision.hpp"
#include "resolver/policy/swapped_world.hpp"

namespace heddle {

/// Files of the image whose RPATH or RUNPATH would lead to the image's copy of what is the host's,
/// and what is served over them: their own bytes, with tags by which the host's are found. The
/// image's copies stay as they are, for the programs that nobody asked about.
///
/// Where there is room for a longer string the tag gets the mount's folder in front: ld.so finds
/// there what is the host's, and all else as before. Where there is none the tag is made one that
/// ld.so ignores, if ld.so.cache leads to all that it led to. Neither is possible: change() says
/// so.
class TagChanges {
 public:
  TagChanges(ContainerSide& inside, std::string mount_point)
      : inside_(inside), mount_point_(std::move(mount_point)) {}

  /// A file of the container that a search path led to, and what the mount has in its place.
  struct Stray {
    const LoadedObject* object = nullptr;
    std::string mount_name;
  };
  /// Gives `names`, what the mount serves, the other names that the image has beside `stray` for
  /// it. Empty: done; else why it cannot be.
  std::string take_names(const Stray& stray, std::map<std::string, std::string>& names);
  /// `owner`'s tags lead to `strays`, whose names were taken. `names`: what the mount serves.
  /// Empty: done; else why it cannot be.
  std::string change(const LoadedObject& owner, const std::vector<Stray>& strays,
                     const std::map<std::string, std::string>& names);
  /// What was changed so far is in effect from here on: it may lead astray no more.
  void settle();

  /// By path, free of links.
  const std::map<std::string, ServedFile>& files() const { return files_; }
  /// Names that the mount alone has, and not ld.so.cache: nobody else finds them.
  bool is_alone(const std::string& name) const { return alone_.contains(name); }
  std::map<std::string, SwappedWorld::Tags> tags() const;

 private:
  std::string why_not_served(const std::string& path, ServedFile& file);
  std::string share_names(const ServedFile& file);
  bool put_mount_in_front(const ElfFacts& elf, ServedFile& file) const;
  std::string drop(const LoadedObject& owner, const std::map<std::string, std::string>& names,
                   ServedFile& file);

  ContainerSide& inside_;
  std::string mount_point_;
  std::map<std::string, ServedFile> files_;
  std::set<std::string> settled_;  ///< of files_
  std::set<std::string> alone_;
};

}  // namespace heddle
