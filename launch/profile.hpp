// SPDX-License-Identifier: MIT
#pragma once

// Profiles of fs-launch: what a job on this machine needs, under a name. A profile is a JSON file
// (docs/formats/profile.md) of the user or of the system. Its words become options of containers
// and variables of ranks, so a file is read only if its owner and root alone could have
// written it; the worst that another user's could do is run that user's program as this one.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace heddle::launch {

/// Values of Profile::Container::backend.
inline constexpr const char* kBackends[] = {"auto",   "podman",    "charliecloud", "bare",
                                            "docker", "apptainer", "singularity",  "shifter"};

struct Profile {
  struct Mpi {
    std::string family;  ///< as MpiIdentity's
    std::string version;
    std::string library;  ///< path; empty: none is named
    bool operator==(const Mpi&) const = default;
  };
  struct Container {
    std::string backend;  ///< empty: none is named
    std::string image;
    std::string source;  ///< path of a script that a shell reads before the program starts
    bool operator==(const Container&) const = default;
  };
  std::string map;  ///< path of a map or bundle; empty: each node resolves
  Mpi mpi;
  std::vector<std::string> files;  ///< for a container: PATH, or PATH:PATH_IN_CONTAINER
  std::map<std::string, std::string> environment;
  Container container;
  bool operator==(const Profile&) const = default;
};

std::string to_json(const Profile& profile);
/// `where` names the text in errors.
Result<Profile> parse_profile(std::string_view text, const std::string& where);
/// What parse_profile() accepts in the fields. The error names the first wrong one.
Result<void> check_profile(const Profile& profile, const std::string& where);

/// 1 to 64 of letters, digits and `._@+-`, the first a letter or digit.
Result<void> check_profile_name(const std::string& name);

/// A directory of profiles. Changes are made under a lock, each file is replaced at once: readers
/// need no lock.
class ProfileDirectory {
 public:
  /// $XDG_CONFIG_HOME/heddle/profiles, else ~/.config/heddle/profiles; only its user can read it.
  static Result<ProfileDirectory> of_user();
  /// /etc/heddle/profiles; all of it must belong to root.
  static ProfileDirectory of_system();
  /// The user's, if there is one, and the system's.
  static std::vector<ProfileDirectory> all();
  ProfileDirectory(std::string path, bool is_system)
      : path_(std::move(path)), is_system_(is_system) {}

  const std::string& path() const { return path_; }
  std::string file_of(const std::string& name) const;
  bool is_system() const { return is_system_; }

  /// Names, sorted. No directory: none.
  Result<std::vector<std::string>> names() const;
  /// ENOENT: there is none of that name.
  Result<Profile> load(const std::string& name) const;
  /// The name that select() was given last; empty: none.
  Result<std::string> selected() const;

  /// EEXIST: the name is taken.
  Result<void> check_free(const std::string& name) const;
  Result<void> fail_missing(const std::string& name) const;
  /// Whether a profile, or none, was selected here.
  bool has_selection() const;
  /// All or none. EEXIST: a name is taken.
  Result<void> create(const std::map<std::string, Profile>& profiles) const;
  /// Replaces a profile by what `change` makes of it.
  Result<void> edit(const std::string& name,
                    const std::function<Result<void>(Profile&)>& change) const;
  /// All or none, if the file system allows. A selected one is selected no more.
  Result<void> remove(const std::vector<std::string>& names) const;
  /// Empty: none.
  Result<void> select(const std::string& name) const;

 private:
  Result<std::string> read(const std::string& path) const;
  Result<void> write(const std::string& path, const std::string& text) const;
  Result<Fd> lock() const;

  std::string path_;
  bool is_system_;
};

/// The user's profile `name`, else the system's. ENOENT: there is neither.
Result<Profile> load_profile(const std::string& name);
/// The file of load_profile(name), by which other nodes name it too.
Result<std::string> find_profile(const std::string& name);
/// As load_profile(), by find_profile()'s path.
Result<Profile> read_profile(const std::string& path);
/// The name selected by the user, else by the system; empty: none.
Result<std::string> selected_profile();

}  // namespace heddle::launch
