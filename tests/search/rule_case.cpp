// SPDX-License-Identifier: MIT
#include "tests/search/rule_case.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {

namespace {

class Builder {
 public:
  Builder(const std::string& file, const std::string& directory, const std::string& platform)
      : file_(file), platform_(platform) {
    out_.directory = directory;
    out_.cwd = directory;
  }

  RuleCase build() {
    std::istringstream lines(value_or_throw(read_file(file_)));
    for (std::string line; std::getline(lines, line); take(line)) ++line_;
    finish_elf();
    for (const auto& directories : cache_) make_cache(directories);
    if (out_.run.empty()) trouble("no `program` and no `run`");
    return std::move(out_);
  }

 private:
  [[noreturn]] void trouble(const std::string& what) const {
    throw Error(file_ + ":" + std::to_string(line_), what);
  }

  static std::string word(std::string& rest) {
    const auto start = rest.find_first_not_of(' ');
    if (start == rest.npos) return rest.clear(), std::string();
    const auto end = std::min(rest.find(' ', start), rest.size());
    auto out = rest.substr(start, end - start);
    const auto next = rest.find_first_not_of(' ', end);
    rest = next == rest.npos ? std::string() : rest.substr(next);
    return out;
  }

  /// '@' is the case's directory, `{platform}` ld.so's platform; escapes as in base/escape.hpp, a
  /// blank is \x20.
  std::string value(std::string text) const {
    static const std::string kPlatform = "{platform}";
    if (const auto at = text.find(kPlatform); at != text.npos)
      text.replace(at, kPlatform.size(), platform_);
    for (auto at = text.find('@'); at != text.npos; at = text.find('@', at + out_.directory.size()))
      text.replace(at, 1, out_.directory);
    auto out = unescape(text);
    if (!out) trouble("not an escaped string: " + text);
    return *out;
  }
  std::string place(const std::string& name) const {
    const auto path = value(name);
    return path.starts_with('/') ? path : out_.directory + "/" + path;
  }

  void finish_elf() {
    if (!elf_) return;
    write_text_file(elf_path_, elf_->bytes(), 0755);
    elf_.reset();
  }

  void start_elf(const std::string& name, bool is_program) {
    elf_.emplace();
    elf_path_ = place(name);
    if (!is_program) return;
    elf_->interp = "/lib64/ld-linux-x86-64.so.2";
    if (out_.run.empty()) out_.run = elf_path_;
  }

  bool take_elf_line(const std::string& key, const std::string& rest) {
    if (!elf_) return false;
    using Kind = Dependency::Kind;
    static const std::map<std::string, Kind> kinds = {
        {"needed", Kind::needed}, {"auxiliary", Kind::auxiliary}, {"filter", Kind::filter}};
    if (const auto kind = kinds.find(key); kind != kinds.end()) {
      elf_->dependencies.push_back({kind->second, value(rest)});
      return true;
    }
    const auto put = [&rest](auto& field) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(std::stoul(rest, nullptr, 0));
    };
    auto& elf = *elf_;
    const std::map<std::string, std::function<void()>> fields = {
        {"soname", [&] { elf.soname = value(rest); }},
        {"rpath", [&] { elf.rpath = value(rest); }},
        {"runpath", [&] { elf.runpath = value(rest); }},
        {"nodeflib", [&] { elf.flags_1 |= DF_1_NODEFLIB; }},
        {"pie", [&] { elf.flags_1 |= DF_1_PIE; }},
        {"no-dynamic", [&] { elf.dynamic = false; }},
        {"class", [&] { put(elf.elf_class); }},
        {"machine", [&] { put(elf.machine); }},
        {"data", [&] { put(elf.data_encoding); }},
        {"osabi", [&] { put(elf.os_abi); }},
        {"abiversion", [&] { put(elf.abi_version); }},
        {"type", [&] { put(elf.type); }}};
    const auto field = fields.find(key);
    if (field == fields.end()) return false;
    field->second();
    return true;
  }

  void take(std::string rest) {
    const auto key = word(rest);
    if (key.empty() || key.starts_with('#')) return;
    if (take_elf_line(key, rest)) return;
    finish_elf();
    if (key == "program" || key == "library") {
      start_elf(rest, key == "program");
    } else if (key == "text") {
      const auto name = word(rest);
      write_text_file(place(name), value(rest));
    } else if (key == "directory") {
      std::filesystem::create_directories(place(rest));
    } else if (key == "link" || key == "hardlink") {
      const auto name = place(word(rest));
      std::filesystem::create_directories(std::filesystem::path(name).parent_path());
      if (key == "link")
        std::filesystem::create_symlink(value(rest), name);
      else
        std::filesystem::create_hard_link(place(rest), name);
    } else if (key == "env") {
      out_.env.push_back(value(rest));
    } else if (key == "cwd") {
      out_.cwd = place(rest);
    } else if (key == "run") {
      out_.run = value(rest);
    } else if (key == "run-by-ld.so") {
      out_.run = value(rest);
      out_.is_program = false;
    } else if (key == "expect") {
      const auto name = value(word(rest));
      const auto path = value(word(rest));
      out_.expected.push_back({name, path, word(rest)});
    } else if (key == "missing") {
      const auto name = value(word(rest));
      out_.missing.push_back({name, rest, ""});
    } else if (key == "cache") {
      cache_.push_back(rest);
      out_.etc = out_.directory + "/etc";
    } else if (key == "cache-remove") {
      remove_.push_back(place(rest));
    } else if (key == "preload-file") {
      out_.etc = out_.directory + "/etc";
      write_text_file(*out_.etc + "/ld.so.preload", value(rest));
      std::filesystem::copy_file("/etc/ld.so.cache", *out_.etc + "/ld.so.cache");
    } else if (key == "until") {
      out_.newest_minor = std::stoi(rest);
    } else if (key == "since") {
      out_.oldest_minor = std::stoi(rest);
    } else {
      trouble("unknown word " + key);
    }
  }

  void make_cache(const std::string& directories) {
    std::string conf;
    auto rest = directories;
    for (auto name = word(rest); !name.empty(); name = word(rest)) conf += place(name) + "\n";
    write_text_file(out_.directory + "/ld.so.conf", conf);
    std::filesystem::create_directories(*out_.etc);
    run_checked({"/sbin/ldconfig", "-X", "-C", *out_.etc + "/ld.so.cache", "-f",
                 out_.directory + "/ld.so.conf"});
    for (const auto& path : remove_) std::filesystem::remove(path);
  }

  std::string file_;
  std::string platform_;
  std::size_t line_ = 0;
  RuleCase out_;
  std::optional<TinyElf> elf_;
  std::string elf_path_;
  std::vector<std::string> cache_;
  std::vector<std::string> remove_;
};

}  // namespace

RuleCase build_rule_case(const std::string& file, const std::string& directory,
                         const std::string& platform) {
  return Builder(file, directory, platform).build();
}

}  // namespace heddle::test
