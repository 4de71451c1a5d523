// SPDX-License-Identifier: MIT
#include "resolver/tree/python_trees.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/task_pool.hpp"

namespace heddle {

std::string canonical_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real ? std::string(real.get()) : std::string();
}

bool is_below(const std::string& path, const std::string& directory) {
  return path.size() > directory.size() && path.starts_with(directory) &&
         (directory == "/" || path[directory.size()] == '/');
}
namespace {

/// pyvenv.cfg has 200 bytes, the .pth file of a hundred editable installs 10 KiB.
constexpr std::size_t kMostText = std::size_t{1} << 20;
/// Of a launcher's command line; not a list of ten thousand files.
constexpr std::size_t kMostWords = 64;
constexpr const char* kMissing = "it does not exist";
constexpr std::array kLibraries = {"/lib/", "/lib64/"};

bool exists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

/// The text of a regular file; empty: it cannot be read.
std::string text_of(const std::string& path, std::size_t most = kMostText) {
  const auto fd = open_regular(path);
  if (!fd) return {};
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return {};
  std::string text(std::min(most, static_cast<std::size_t>(st.st_size)), '\0');
  const auto size = ::pread(fd->get(), text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(directory.c_str()), ::closedir);
  if (!list) return names;
  while (const dirent* entry = ::readdir(list.get())) names.emplace_back(entry->d_name);
  std::ranges::sort(names);
  return names;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n\f\v");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n\f\v") - first + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// "python", "python3", "python3.11", "python3.13t": an interpreter that CPython's rules hold for.
bool is_python_name(const std::string& path) {
  auto name = base_name(path);
  if (!name.starts_with("python")) return false;
  name.erase(0, 6);
  return name.find_first_not_of("0123456789.td") == name.npos;
}

/// "python3.11" of a directory or interpreter of that name; else empty.
std::string version_directory(const std::string& name) {
  if (!name.starts_with("python") || name.find('.') == name.npos) return {};
  const auto rest = std::string_view(name).substr(6);
  return rest.find_first_not_of("0123456789.t") == rest.npos ? name : std::string();
}

/// What the options before a script say (Modules/main.c, Python/initconfig.c).
struct PythonOptions {
  bool ignore_environment = false;  ///< -E, -I
  bool no_user_site = false;        ///< -s, -I
  bool no_site = false;             ///< -S
  std::string script;               ///< as given
};

PythonOptions read_options(const std::vector<std::string>& words) {
  PythonOptions out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto& word = words[i];
    if (word.size() < 2 || word[0] != '-') {
      if (word != "-") out.script = word;
      return out;
    }
    if (word.starts_with("--")) {
      if (word == "--check-hash-based-pycs") ++i;
      continue;
    }
    for (std::size_t at = 1; at < word.size(); ++at) {
      const char letter = word[at];
      out.ignore_environment |= letter == 'E' || letter == 'I';
      out.no_user_site |= letter == 's' || letter == 'I';
      out.no_site |= letter == 'S';
      if (letter == 'c' || letter == 'm') return out;  // the program is the rest
      if (letter == 'X' || letter == 'W') {
        if (at + 1 == word.size()) ++i;
        break;
      }
    }
  }
  return out;
}

class PythonSearch {
 public:
  PythonSearch(const std::vector<std::string>& environment, std::string cwd)
      : environment_(environment), cwd_(std::move(cwd)) {}

  PythonTrees run(const std::vector<std::string>& command) {
    if (is_python(command)) {
      find_trees();
      find_in_use();
    }
    return std::move(out_);
  }

 private:
  bool is_python(const std::vector<std::string>& command, bool of_shell = false) {
    for (std::size_t i = 0; i < std::min(command.size(), kMostWords); ++i) {
      const auto& word = command[i];
      const bool is_option = !word.empty() && word[0] == '-';
      // A launcher's options and its NAME=value are no programs.
      if (!word.empty() && (i == 0 || (!is_option && word.find('=') == word.npos))) {
        const std::vector<std::string> rest(command.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                            command.end());
        if (find_interpreter(program_path(word), rest)) return true;
      }
      // That of sh -c, where it does not change the directory or PATH.
      if (is_option && word[word.size() - 1] == 'c' && i + 1 < command.size() && !of_shell &&
          is_python(one_command(command[i + 1]).words, true))
        return true;
    }
    return false;
  }

  std::string variable(std::string_view name) const {
    for (const auto& one : environment_)
      if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
        return one.substr(name.size() + 1);
    return {};
  }
  /// A variable that -E and -I turn off.
  std::string python_variable(std::string_view name) const {
    return options_.ignore_environment ? std::string() : variable(name);
  }
  std::string absolute(const std::string& path, const std::string& from) const {
    return path.starts_with('/') ? path : from + "/" + path;
  }
  std::string program_path(const std::string& name) const {
    const auto found = find_program(name, variable("PATH"));
    return found ? behind_shim(absolute(*found, cwd_)) : std::string();
  }

  /// pyenv's shims are shell scripts that start the interpreter of the chosen version (its
  /// libexec/pyenv-version-name, pyenv-exec). Any other path is returned as it is.
  std::string behind_shim(const std::string& path) const {
    const auto shims = directory_of(path);
    const auto root = directory_of(shims);
    if (base_name(shims) != "shims" || !is_python_name(path) || !exists(root + "/versions"))
      return path;
    auto chosen = variable("PYENV_VERSION");
    for (auto from = cwd_; chosen.empty() && !from.empty(); from = directory_of(from))
      chosen = text_of(from + "/.python-version");
    if (chosen.empty()) chosen = text_of(root + "/version");
    std::ranges::replace(chosen, ':', '\n');
    for (const auto& line : split(chosen, '\n')) {
      const auto version = std::string(trimmed(line));
      if (version.empty() || version.find('/') != version.npos) continue;
      const auto program = root + "/versions/" + version + "/bin/" + base_name(path);
      if (exists(program)) return program;
    }
    // "system", or none: what the shims hide.
    std::string rest;
    for (const auto& directory : split(variable("PATH"), ':'))
      if (directory != shims) rest += (rest.empty() ? "" : ":") + directory;
    const auto found = find_program(base_name(path), rest);
    return found ? absolute(*found, cwd_) : path;
  }

  /// Sets interpreter, script and options, if `path` leads to Python.
  bool find_interpreter(const std::string& path, const std::vector<std::string>& arguments) {
    auto program = path;
    auto words = arguments;
    for (int depth = 0; depth <= kMostScripts && !program.empty(); ++depth) {
      const auto head = text_of(program, 2 * PATH_MAX);
      if (!head.starts_with("#!")) {
        if (head.empty() || (!is_python_name(program) && !is_python_name(canonical_path(program))))
          return false;
        out_.interpreter = program;
        options_ = read_options(words);
        if (!options_.script.empty()) out_.script = absolute(options_.script, cwd_);
        return true;
      }
      words.insert(words.begin(), program);
      program = take_first_line(head, program, words);
    }
    return false;
  }

  /// The program that a script's first line starts; its options go before `words`.
  std::string take_first_line(const std::string& head, const std::string& script,
                              std::vector<std::string>& words) const {
    const auto end = std::min(head.find('\n'), head.size());
    const auto interpreter = script_interpreter(head);
    if (interpreter == "/bin/sh" && end < head.size())
      return trampoline(head.substr(end + 1), script);
    std::vector<std::string> options;
    const auto named = env_program(head, &options);
    if (named.empty()) {
      const auto at = std::min(end, head.find(interpreter) + interpreter.size());
      const std::string option(trimmed(std::string_view(head).substr(at, end - at)));
      if (!option.empty()) options.push_back(option);  // execve(2) splits no words
    }
    words.insert(words.begin(), options.begin(), options.end());
    if (!named.empty()) return program_path(named);
    return interpreter.empty() ? interpreter : absolute(interpreter, cwd_);
  }

  /// The interpreter of a script that execve(2) could not start, since its path is too long or has
  /// spaces: pip writes `'''exec' PATH "$0" "$@"`, uv a path relative to the script's directory.
  static std::string trampoline(std::string_view text, const std::string& script) {
    constexpr std::string_view kExec = "'''exec' ";
    constexpr std::string_view kBeside = R"_("$(dirname -- "$(realpath -- "$0")")"/)_";
    if (!text.starts_with(kExec)) return {};
    text = text.substr(0, text.find('\n')).substr(kExec.size());
    std::string before;
    if (text.starts_with(kBeside)) {
      const auto real = canonical_path(script);
      before = real.substr(0, real.rfind('/') + 1);
      text.remove_prefix(kBeside.size());
    }
    const bool quoted = text.starts_with('"') || text.starts_with('\'');
    const auto path =
        quoted ? text.substr(1, text.find(text[0], 1) - 1) : text.substr(0, text.find(' '));
    return before + std::string(path);
  }

  // From here on Modules/getpath.py and Lib/site.py.

  void find_trees() {
    const auto& executable = out_.interpreter;
    const auto bin = directory_of(executable);
    auto home = directory_of(canonical_path(executable));
    std::string prefix;  // of a virtual environment
    for (const auto& directory : {bin, directory_of(bin)}) {
      const auto text = text_of(directory + "/pyvenv.cfg");
      if (text.empty()) continue;
      for (const auto& line : split(text, '\n')) {
        const auto equals = line.find('=');
        if (equals == line.npos) continue;
        std::string key(trimmed(std::string_view(line).substr(0, equals)));
        std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
        const std::string value(trimmed(std::string_view(line).substr(equals + 1)));
        if (key == "home") {
          home = value;
          prefix = directory_of(bin);
        }
        if (key == "include-system-site-packages") with_system_ = value == "true";
      }
      break;
    }

    const auto python_path = python_variable("PYTHONPATH");
    if (!python_path.empty())
      for (const auto& entry : split(python_path, ':'))
        if (!entry.empty()) add(absolute(entry, cwd_), "PYTHONPATH");
    std::vector<std::string> bases;
    if (const auto given = python_variable("PYTHONHOME"); !given.empty())
      bases = split(given, ':');  // PREFIX[:EXEC_PREFIX]
    else
      bases = {find_base(home)};
    std::erase(bases, "");
    for (const auto& base : bases)
      if (const auto found = versions_in(base); versions_.empty()) versions_ = found;
    for (const auto& base : bases) add_base(base);
    // The virtual environment's interpreter may be a link to another installation than `home`.
    if (const auto linked = find_base(directory_of(canonical_path(executable)));
        !linked.empty() && std::ranges::find(bases, linked) == bases.end())
      add_base(linked);
    if (!prefix.empty()) add(prefix, "virtual environment");
    if (!options_.no_site) {
      if (!prefix.empty()) add_site_directories(prefix);
      if (prefix.empty() || with_system_) {
        const bool no_user = options_.no_user_site || !python_variable("PYTHONNOUSERSITE").empty();
        if (!no_user) add_user_site();
        for (const auto& base : bases) add_site_directories(base);
      }
    }
    finish();
  }

  void find_in_use() {
    out_.in_use.push_back(cwd_);
    if (const auto home = variable("HOME"); home.starts_with('/')) out_.in_use.push_back(home);
    if (out_.script.empty()) return;
    // Scripts that belong to an environment lie beside its interpreter.
    const auto bin = canonical_path(directory_of(out_.interpreter));
    for (const auto& script : {out_.script, canonical_path(out_.script)})
      if (const auto directory = directory_of(script);
          !directory.empty() && canonical_path(directory) != bin)
        out_.in_use.push_back(directory);
  }

  /// The names below lib or lib64, where a prefix has the standard library. Red Hat's and SUSE's
  /// have os.py in lib64, since extension modules lie beside it (sys.platlibdir).
  std::vector<std::string> versions_in(const std::string& prefix) const {
    const auto has_library = [&](const char* lib, const std::string& name) {
      return !name.empty() && exists(prefix + lib + name + "/os.py");
    };
    const auto own = version_directory(base_name(canonical_path(out_.interpreter)));
    for (const char* lib : kLibraries)
      if (has_library(lib, own)) return {own};
    std::vector<std::string> out;
    for (const char* lib : kLibraries)
      for (const auto& name : names_in(prefix + lib))
        if (has_library(lib, version_directory(name))) out.push_back(name);
    return out;
  }

  /// The first directory above `bin` with a standard library; empty: none.
  std::string find_base(const std::string& bin) const {
    for (auto prefix = canonical_path(bin); !prefix.empty(); prefix = directory_of(prefix))
      if (!versions_in(prefix).empty()) return prefix;
    return {};
  }

  void add_base(const std::string& base) {
    // One that has nothing else than Python: conda's, uv's, Spack's.
    if (exists(base + "/conda-meta"))
      add(base, "conda environment");
    else if (base_name(base).find("python") != std::string::npos)
      add(base, "Python's prefix");
    for (const auto& version : versions_)
      for (const char* lib : kLibraries)
        if (exists(base + lib + version)) add(base + lib + version, "standard library");
  }

  /// site.getsitepackages(), with Debian's and Fedora's.
  void add_site_directories(const std::string& prefix) {
    for (const auto& version : versions_)
      for (const auto& directory :
           {"/local/lib/" + version + "/site-packages",
            "/local/lib64/" + version + "/site-packages", "/lib/" + version + "/site-packages",
            "/lib64/" + version + "/site-packages", "/local/lib/" + version + "/dist-packages",
            std::string("/lib/python3/dist-packages"), "/lib/" + version + "/dist-packages"})
        if (exists(prefix + directory))
          add_site_directory(prefix + directory, base_name(directory));
  }

  void add_user_site() {
    auto base = python_variable("PYTHONUSERBASE");
    if (base.empty()) {
      base = variable("HOME");
      if (base.empty()) return;
      base += "/.local";
    }
    for (const auto& version : versions_) {
      const auto directory = base + "/lib/" + version + "/site-packages";
      if (exists(directory)) add_site_directory(directory, "user site");
    }
  }

  /// site.addsitedir(): the directory, and those that its .pth files name. Their `import` lines
  /// run code, which cannot be known.
  void add_site_directory(const std::string& directory, const std::string& as) {
    add(directory, as);
    auto files = names_in(directory);
    std::erase_if(files, [](const auto& name) { return !name.ends_with(".pth"); });
    std::vector<std::string> texts(files.size());
    for_each_at_once(files.size(), [&](std::size_t i) {
      files[i].insert(0, directory + "/");
      texts[i] = text_of(files[i]);
    });
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (texts[i].starts_with("\xEF\xBB\xBF")) texts[i].erase(0, 3);
      for (auto& line : split(texts[i], '\n')) {
        if (line.starts_with('#') || line.starts_with("import ") || line.starts_with("import\t"))
          continue;
        line.erase(line.find_last_not_of(" \t\r\n\f\v") + 1);
        if (line.empty() || line.find('\0') != line.npos) continue;
        add(absolute(line, directory), files[i]);
      }
    }
  }

  void add(const std::string& path, const std::string& as) {
    if (added_.insert(path).second) out_.trees.push_back({path, as, {}});
  }

  /// Judges all at once: each path costs several look-ups.
  void finish() {
    auto& trees = out_.trees;
    for_each_at_once(trees.size(), [&](std::size_t i) {
      struct stat st {};
      const auto real = canonical_path(trees[i].path);
      if (real.empty() || ::stat(real.c_str(), &st) != 0) {
        trees[i].left_out = kMissing;
        return;
      }
      trees[i].path = real;
      if (!S_ISDIR(st.st_mode)) trees[i].left_out = "it is no directory";
    });
    std::set<std::string> seen;
    std::erase_if(trees, [&](const FoundTree& tree) {
      return !seen.insert(tree.path).second ||
             (tree.left_out == kMissing && tree.found_as.ends_with(".pth"));  // as site.py
    });
  }

  const std::vector<std::string>& environment_;
  std::string cwd_;
  PythonOptions options_;
  bool with_system_ = false;
  std::vector<std::string> versions_;  ///< "python3.11"
  std::set<std::string> added_;
  PythonTrees out_;
};

}  // namespace

PythonTrees find_python_trees(const std::vector<std::string>& command,
                              const std::vector<std::string>& environment, const std::string& cwd) {
  return PythonSearch(environment, cwd).run(command);
}

}  // namespace heddle
