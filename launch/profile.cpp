// SPDX-License-Identifier: MIT
#include "launch/profile.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/backoff.hpp"
#include "base/bounded_json.hpp"
#include "base/escape.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"

namespace heddle::launch {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr unsigned kFormat = 1;
constexpr std::size_t kLargestFile = 4UL << 20;
constexpr std::chrono::seconds kLockLimit{20};
constexpr const char* kSelected = "selected";
constexpr const char* kSuffix = ".json";
constexpr const char* kNoProfile = "no profile of this name";

/// Thrown in this file only; parse_profile() turns it into an Error.
struct Wrong {
  std::string key;
  std::string how;
};

/// Reads the keys of an object, and refuses others.
class Reader {
 public:
  /// `key` is the object's; empty: it is the file.
  Reader(const Json& in, const std::string& key) : in_(in), path_(key.empty() ? "" : key + ".") {
    if (!in.is_object()) throw Wrong{key.empty() ? "the file" : key, "is not an object"};
  }
  const Json* find(const char* key) {
    known_.insert(key);
    const auto at = in_.find(key);
    return at == in_.end() ? nullptr : &*at;
  }
  void text(const char* key, std::string& value) {
    if (const auto* json = find(key)) value = text_of(*json, path_ + key);
  }
  template <class Fields>
  void object(const char* key, const Fields& fields) {
    if (const auto* json = find(key)) {
      Reader io(*json, key);
      fields(io);
      io.refuse_others();
    }
  }
  void refuse_others() const {
    for (const auto& each : in_.items())
      if (!known_.contains(each.key())) throw Wrong{path_ + each.key(), "is no field of a profile"};
  }
  static std::string text_of(const Json& json, const std::string& key) {
    if (!json.is_string()) throw Wrong{key, "is not a text"};
    return json.get<std::string>();
  }

 private:
  const Json& in_;
  std::string path_;
  std::set<std::string> known_;
};

Profile profile_of(const Json& json) {
  Reader io(json, "");
  const auto* format = io.find("heddle_profile");
  if (!format) throw Wrong{"heddle_profile", "is missing"};
  if (*format != kFormat)
    throw Wrong{"heddle_profile", "is not " + std::to_string(kFormat) + ", the format known here"};
  Profile out;
  io.text("map", out.map);
  io.object("mpi", [&](Reader& mpi) {
    mpi.text("family", out.mpi.family);
    mpi.text("version", out.mpi.version);
    mpi.text("library", out.mpi.library);
  });
  if (const auto* files = io.find("files")) {
    if (!files->is_array()) throw Wrong{"files", "is not a list"};
    for (const auto& each : *files) out.files.push_back(Reader::text_of(each, "files"));
  }
  if (const auto* variables = io.find("environment")) {
    if (!variables->is_object()) throw Wrong{"environment", "is not an object"};
    for (const auto& each : variables->items())
      out.environment[each.key()] = Reader::text_of(each.value(), "environment." + each.key());
  }
  io.object("container", [&](Reader& container) {
    container.text("backend", out.container.backend);
    container.text("image", out.container.image);
    container.text("source", out.container.source);
  });
  io.refuse_others();
  return out;
}

bool is_absolute(const std::string& path) {
  return path.starts_with('/') && path.find('\0') == path.npos;
}

bool is_variable_name(const std::string& name) {
  return !name.empty() && name.find('=') == name.npos && name.find('\0') == name.npos;
}

/// Whether user ids other than root's (that of "/", see trusted_path.cpp) can have written `fd`.
bool is_roots(int fd) {
  struct stat file {
  }, top{};
  return ::fstat(fd, &file) == 0 && ::stat("/", &top) == 0 && file.st_uid == top.st_uid &&
         (file.st_mode & 0022) == 0;
}

}  // namespace

std::string to_json(const Profile& profile) {
  Json out = {{"heddle_profile", kFormat}};
  const auto put = [](Json& object, const char* key, const std::string& value) {
    if (!value.empty()) object[key] = value;
  };
  put(out, "map", profile.map);
  const auto put_object = [&](const char* key, auto&& fields) {
    auto object = Json::object();
    fields(object);
    if (!object.empty()) out[key] = std::move(object);
  };
  put_object("mpi", [&](Json& mpi) {
    put(mpi, "family", profile.mpi.family);
    put(mpi, "version", profile.mpi.version);
    put(mpi, "library", profile.mpi.library);
  });
  if (!profile.files.empty()) out["files"] = profile.files;
  if (!profile.environment.empty()) out["environment"] = profile.environment;
  put_object("container", [&](Json& container) {
    put(container, "backend", profile.container.backend);
    put(container, "image", profile.container.image);
    put(container, "source", profile.container.source);
  });
  return out.dump(2) + "\n";
}

Result<void> check_profile(const Profile& profile, const std::string& where) {
  const auto wrong = [&](const std::string& key, const std::string& value,
                         const std::string& how) -> Result<void> {
    return fail(where, key + " '" + escape_for_terminal(value) + "' " + how);
  };
  const std::pair<const char*, const std::string*> paths[] = {
      {"map", &profile.map},
      {"mpi.library", &profile.mpi.library},
      {"container.source", &profile.container.source}};
  for (const auto& [key, path] : paths)
    if (!path->empty() && !is_absolute(*path)) return wrong(key, *path, "is no absolute path");
  for (const auto& file : profile.files) {
    const auto colon = file.find(':');
    if (!is_absolute(file) || (colon != file.npos && (file.find(':', colon + 1) != file.npos ||
                                                      !is_absolute(file.substr(colon + 1)))))
      return wrong("files", file, "is neither PATH nor PATH:PATH_IN_CONTAINER");
  }
  for (const auto& [name, value] : profile.environment)
    if (!is_variable_name(name) || value.find('\0') != value.npos)
      return wrong("environment", name, "is no variable");
  const auto& container = profile.container;
  if (!container.backend.empty() &&
      std::ranges::find(kBackends, container.backend) == std::end(kBackends))
    return wrong("container.backend", container.backend, "is unknown");
  // An engine would take a leading dash for an option.
  if (container.image.starts_with('-') || container.image.find('\0') != container.image.npos)
    return wrong("container.image", container.image, "is no image");
  const auto is_text = [](const std::string& text) { return is_valid_utf8(text); };
  const auto& mpi = profile.mpi;
  for (const auto* text :
       {&profile.map, &mpi.family, &mpi.version, &mpi.library, &container.image, &container.source})
    if (!is_text(*text)) return wrong("the text", *text, "is not UTF-8");
  for (const auto& file : profile.files)
    if (!is_text(file)) return wrong("files", file, "is not UTF-8");
  for (const auto& [name, value] : profile.environment)
    if (!is_text(name) || !is_text(value)) return wrong("environment", name, "is not UTF-8");
  return {};
}

Result<Profile> parse_profile(std::string_view text, const std::string& where) {
  if (const char* why = beyond({}, text)) return fail(where, "no profile", why);
  Profile out;
  try {
    out = profile_of(Json::parse(text));
  } catch (const Wrong& wrong) {
    return fail(where, "no profile", escape_for_terminal(wrong.key) + " " + wrong.how);
  } catch (const Json::parse_error& error) {
    const auto before = text.substr(0, error.byte);
    return fail(where, "no profile",
                "no JSON at line " + std::to_string(1 + std::ranges::count(before, '\n')));
  } catch (const Json::exception&) {
    return fail(where, "no profile", "a value is of the wrong kind");
  }
  TRY(check_profile(out, where));
  return out;
}

Result<void> check_profile_name(const std::string& name) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  const auto fits = [&](char c) {
    return is_word(c) || std::string_view("._@+-").find(c) != std::string_view::npos;
  };
  if (name.empty() || name.size() > 64 || !is_word(name[0]) || !std::ranges::all_of(name, fits))
    return fail_errno(name, "no name for a profile", EINVAL,
                      "1 to 64 letters, digits and ._@+- that begin with a letter or digit");
  return {};
}

Result<ProfileDirectory> ProfileDirectory::of_user() {
  auto path = below_home("XDG_CONFIG_HOME", "/.config", "/heddle/profiles");
  if (!path.empty()) return ProfileDirectory(std::move(path), false);
  return fail("", "no directory for profiles", "neither XDG_CONFIG_HOME nor HOME is set");
}

ProfileDirectory ProfileDirectory::of_system() { return {"/etc/heddle/profiles", true}; }

std::string ProfileDirectory::file_of(const std::string& name) const {
  return path_ + "/" + name + kSuffix;
}

std::vector<ProfileDirectory> ProfileDirectory::all() {
  std::vector<ProfileDirectory> out;
  if (auto user = of_user()) out.push_back(std::move(*user));
  out.push_back(of_system());
  return out;
}

Result<std::string> ProfileDirectory::read(const std::string& path) const {
  TRY(check_trusted_file(path));
  const auto file = TRY(open_regular(path));
  if (is_system_ && !is_roots(file.get()))
    return fail(path, "cannot be trusted", "it does not belong to root alone",
                "chown root " + path + " && chmod 644 " + path);
  return read_all(file.get(), path, kLargestFile);
}

Result<void> ProfileDirectory::write(const std::string& path, const std::string& text) const {
  auto file = TRY(AtomicFile::create(path, 0600));
  // A system's is for all, whatever the umask.
  if (is_system_ && ::fchmod(file.fd(), 0644) != 0) return fail_errno(path, "cannot write");
  TRY(file.write(text));
  return file.commit();
}

/// An open file description's lock, which works on NFS too, where it needs a file that can be
/// written.
Result<Fd> ProfileDirectory::lock() const {
  TRY(check_trusted_directory(path_));  // before it or one above is made
  std::error_code error;
  // Neither closed to users nor open for others to write to.
  const auto umask = ::umask(022);
  fs::create_directories(fs::path(path_).parent_path(), error);
  const bool made = ::mkdir(path_.c_str(), is_system_ ? 0755 : 0700) == 0 || errno == EEXIST;
  const int not_made = errno;
  ::umask(umask);
  if (!made) return fail_errno(path_, "cannot make the directory", not_made);
  TRY(check_trusted_directory(path_));
  const auto path = path_ + "/.lock";
  auto fd = TRY(open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600));
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(32));
  const auto end = std::chrono::steady_clock::now() + kLockLimit;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    if (const int why = errno; why != EWOULDBLOCK || !pauses.sleep_before(end))
      return fail_errno(path, "cannot lock", why);
  return fd;
}

Result<std::vector<std::string>> ProfileDirectory::names() const {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(path_, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == kSuffix && check_profile_name(at->path().stem()))
      out.push_back(at->path().stem());
  if (error && error != std::errc::no_such_file_or_directory)
    return fail_errno(path_, "cannot read the directory", error.value());
  std::ranges::sort(out);
  return out;
}

Result<Profile> ProfileDirectory::load(const std::string& name) const {
  TRY(check_profile_name(name));
  const auto text = TRY(read(file_of(name)));
  return parse_profile(text, file_of(name));
}

Result<std::string> ProfileDirectory::selected() const {
  const auto path = path_ + "/" + kSelected;
  // A home that is none, or another user's, has no selection; in one that others may write to, a
  // selection that is there is refused, and not ignored: ranks might run outside of their image.
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 &&
      (errno == ENOENT || errno == ENOTDIR || errno == EACCES))
    return std::string();
  auto text = TRY(read(path));
  if (text.ends_with('\n')) text.pop_back();
  if (const auto fits = check_profile_name(text); !fits && !text.empty())
    return fail(path, "holds no name of a profile", "", "fs-launch profile use --none");
  return text;
}

bool ProfileDirectory::has_selection() const {
  struct stat status {};
  return ::lstat((path_ + "/" + kSelected).c_str(), &status) == 0;
}

Result<void> ProfileDirectory::check_free(const std::string& name) const {
  TRY(check_profile_name(name));
  struct stat status {};
  if (::lstat(file_of(name).c_str(), &status) != 0) return {};
  return fail_errno(name, "cannot make the profile", EEXIST,
                    load(name) ? "fs-launch profile edit " + name + ", or delete " + name
                               : "fs-launch profile delete " + name);
}

Result<void> ProfileDirectory::fail_missing(const std::string& name) const {
  struct stat status {};
  const bool is_systems = !is_system_ && ::lstat(of_system().file_of(name).c_str(), &status) == 0;
  return fail_errno(
      name, kNoProfile, ENOENT,
      is_systems ? "one of the system has this name: --system" : "fs-launch profile list");
}

Result<void> ProfileDirectory::create(const std::map<std::string, Profile>& profiles) const {
  for (const auto& [name, profile] : profiles) {
    TRY(check_profile_name(name));
    TRY(check_profile(profile, name));
  }
  const auto held = TRY(lock());
  for (const auto& [name, profile] : profiles) TRY(check_free(name));
  std::vector<std::string> made;
  for (const auto& [name, profile] : profiles) {
    if (auto written = write(file_of(name), to_json(profile)); !written) {
      for (const auto& path : made) ::unlink(path.c_str());
      return written;
    }
    made.push_back(file_of(name));
  }
  return {};
}

Result<void> ProfileDirectory::edit(const std::string& name,
                                    const std::function<Result<void>(Profile&)>& change) const {
  TRY(check_profile_name(name));
  const auto held = TRY(lock());
  auto profile = load(name);
  if (!profile && profile.error().code() == ENOENT) return fail_missing(name);
  if (!profile) return fail(std::move(profile.error()));
  TRY(change(*profile));
  TRY(check_profile(*profile, name));
  return write(file_of(name), to_json(*profile));
}

Result<void> ProfileDirectory::remove(const std::vector<std::string>& names) const {
  for (const auto& name : names) TRY(check_profile_name(name));
  const auto held = TRY(lock());
  for (const auto& name : names)
    if (struct stat status{}; ::lstat(file_of(name).c_str(), &status) != 0)
      return errno == ENOENT ? fail_missing(name) : fail_errno(name, "cannot delete the profile");
  for (const auto& name : names) {
    if (selected().value_or("") == name) ::unlink((path_ + "/" + kSelected).c_str());
    if (::unlink(file_of(name).c_str()) != 0 && errno != ENOENT)
      return fail_errno(name, "cannot delete the profile");
  }
  return {};
}

Result<void> ProfileDirectory::select(const std::string& name) const {
  const auto held = TRY(lock());
  const auto path = path_ + "/" + kSelected;
  // Else the system's would be selected.
  const auto system = is_system_ ? Result<std::string>("") : of_system().selected();
  if (!name.empty() || !system || !system->empty()) return write(path, name + "\n");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno(path, "cannot remove");
  return {};
}

Result<std::string> find_profile(const std::string& name) {
  TRY(check_profile_name(name));
  for (const auto& directory : ProfileDirectory::all()) {
    struct stat status {};
    auto path = directory.file_of(name);
    if (::lstat(path.c_str(), &status) == 0) return path;
    if (errno != ENOENT && errno != ENOTDIR) return fail_errno(path, "cannot read");
  }
  return fail_errno(name, kNoProfile, ENOENT, "fs-launch profile list");
}

Result<Profile> read_profile(const std::string& path) {
  const fs::path file(path);
  const auto system = ProfileDirectory::of_system();
  const auto parent = file.parent_path().string();
  return ProfileDirectory(parent, parent == system.path()).load(file.stem());
}

Result<Profile> load_profile(const std::string& name) {
  const auto path = TRY(find_profile(name));
  return read_profile(path);
}

Result<std::string> selected_profile() {
  for (const auto& directory : ProfileDirectory::all()) {
    auto name = directory.selected();
    if (!name || !name->empty() || directory.has_selection()) return name;
  }
  return std::string();
}

}  // namespace heddle::launch
