// SPDX-License-Identifier: MIT
#include "jobs/archive.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/escape.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"

namespace heddle::jobs {
namespace {

constexpr const char* kColumns =
    "\ttags\thostname\texename\tpath\texitcode\texitsignal\tpid\tgeneration\tppid\tpgid\tsid\tnumti"
    "ds"
    "\tstart\tfinish\targs";
constexpr const char* kOwnColumns = "\tmarks\tlibraries\tfailed_lookups\tcontainer\tended_by";

std::string text_of(const Number& value) { return value ? std::to_string(*value) : std::string(); }

/// An element of a list.
std::string element(const std::string& text) {
  if (text.empty()) return "\\e";
  std::string out;
  for (const char c : escape_for_terminal(text))
    if (c == ' ')
      out += "\\x20";
    else
      out += c;
  return out;
}

/// As papiex_escape_chars_v2() does.
std::string papiex_escaped(const std::string& text) {
  std::string out;
  static constexpr std::string_view kSpecial = "\a\b\t\n\v\f\r", kLetters = "abtnvfr";
  for (const char c : text)
    if (const auto at = kSpecial.find(c); at != kSpecial.npos)
      out += {'\\', kLetters[at]};
    else
      out += c;
  return out;
}

struct Tables {
  std::string header, processes, libraries;
};

Tables tables(const nlohmann::json& job, const Collated& collated, Layout layout) {
  const bool is_epmt = layout == Layout::epmt;
  const bool with_perf = job["collector"].value("perf_on", false);
  const auto keys = kKeys.size() + (with_perf ? kPerfKeys.size() : 0);
  Tables out;
  out.header = "{";
  for (std::size_t i = 0; i < keys; ++i)
    out.header +=
        (i ? "," : "") + std::string(i < kKeys.size() ? kKeys[i] : kPerfKeys[i - kKeys.size()]);
  out.header += std::string("}") + kColumns + (is_epmt ? "" : kOwnColumns) + "\n";
  const auto host = escape_for_terminal(job.value("host", ""));
  for (const auto& row : collated.processes) {
    auto& to = out.processes;
    to += '{';
    for (const auto& thread : row.threads)
      for (std::size_t i = 0; i < keys; ++i) {
        if (i > 0 || &thread != row.threads.data()) to += ',';
        to += thread[i] ? std::to_string(*thread[i]) : is_epmt ? "0" : "NULL";
      }
    const auto text = [&](const std::string& from) {
      return is_epmt ? papiex_escaped(from) : escape_for_terminal(from);
    };
    const auto number = [&](const Number& from) {
      return is_epmt ? std::to_string(from.value_or(0)) : text_of(from);
    };
    std::string args;
    for (const auto& word : row.args)
      args += (args.empty() ? "" : " ") + (is_epmt ? papiex_escaped(word) : element(word));
    fmt::format_to(
        std::back_inserter(to), "}}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
        text(row.tags), host, text(row.path.substr(row.path.rfind('/') + 1)), text(row.path),
        number(row.exitcode), number(row.exitsignal), row.pid, row.generation, row.ppid, row.pgid,
        row.sid, is_epmt ? static_cast<std::int64_t>(row.threads.size()) : row.numtids, row.start,
        is_epmt ? std::to_string(row.finish.value_or(row.start)) : text_of(row.finish), args);
    if (!is_epmt) {
      std::string marks;
      for (const auto& mark : row.marks) marks += (marks.empty() ? "" : ",") + mark;
      fmt::format_to(std::back_inserter(to), "\t{}\t{}\t{}\t{}\t{}", marks, text_of(row.libraries),
                     text_of(row.failed_lookups), text(row.container), row.ended_by);
    }
    to += '\n';
  }
  out.libraries = "set\tname\tpath\tfailed\tsize\n";
  std::size_t set = 0;
  for (const auto& libraries : collated.libraries) {
    ++set;
    for (const auto& library : libraries)
      out.libraries += fmt::format("{}\t{}\t{}\t{}\t{}\n", set, escape_for_terminal(library.name),
                                   escape_for_terminal(library.path), text_of(library.failed),
                                   text_of(library.size));
  }
  return out;
}

/// A tar of regular files (ustar, tar(5)), gzipped into `file`.
class TarFile {
 public:
  static Result<TarFile> begin(AtomicFile& file, const std::string& path) {
    const int fd = ::dup(file.fd());
    gzFile gz = fd < 0 ? nullptr : ::gzdopen(fd, "wb6");
    if (!gz) return fail_errno(path, "cannot write");
    return TarFile(gz, path);
  }
  explicit TarFile(gzFile gz, std::string path) : gz_(gz), path_(std::move(path)) {}
  TarFile(TarFile&& other) noexcept : gz_(std::exchange(other.gz_, nullptr)), path_(other.path_) {}
  TarFile& operator=(TarFile&&) = delete;
  ~TarFile() {
    if (gz_) ::gzclose(gz_);
  }

  Result<void> add(const std::string& name, const std::string& content, std::int64_t seconds) {
    char header[512] = {};
    const auto put = [&](std::size_t at, const std::string& text) {
      std::memcpy(header + at, text.data(), text.size());
    };
    put(0, name.substr(0, 99));
    put(100, "0000600");
    put(108, "0000000");
    put(116, "0000000");
    put(124, fmt::format("{:011o}", content.size()));  // up to 8 GiB
    put(136, fmt::format("{:011o}", seconds));
    put(148, "        ");
    header[156] = '0';
    put(257, "ustar");
    put(263, "00");
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    put(148, fmt::format("{:06o}", sum));
    header[154] = '\0';
    TRY(write({header, sizeof header}));
    TRY(write(content));
    return write(std::string((512 - content.size() % 512) % 512, '\0'));
  }
  Result<void> end() {
    TRY(write(std::string(1024, '\0')));
    if (::gzclose(std::exchange(gz_, nullptr)) != Z_OK) return fail_errno(path_, "cannot write");
    return {};
  }

 private:
  Result<void> write(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.substr(0, 1U << 30);
      if (::gzwrite(gz_, part.data(), static_cast<unsigned>(part.size())) <= 0)
        return fail_errno(path_, "cannot write");
      bytes.remove_prefix(part.size());
    }
    return {};
  }
  gzFile gz_;
  std::string path_;
};

/// The metadata of the archive at `path`, which comes first, if the file is this user's: others may
/// be allowed to write to the directory, and would make one that stands for ours. Else empty.
std::string own_metadata(const std::string& path) {
  auto file = open_regular(path);
  struct stat st {};
  if (!file || ::fstat(file->get(), &st) != 0 || st.st_uid != ::geteuid()) return "";
  const gzFile gz = ::gzdopen(file->release(), "rb");
  if (!gz) return "";
  std::string head(std::size_t{4} << 20, '\0');
  const int got = ::gzread(gz, head.data(), static_cast<unsigned>(head.size()));
  ::gzclose(gz);
  head.resize(static_cast<std::size_t>(std::max(got, 0)));
  return head;
}

}  // namespace

Result<std::string> write_archive(const std::string& directory, const nlohmann::json& job,
                                  const Collated& collated, Layout layout) {
  const bool is_epmt = layout == Layout::epmt;
  const auto host = job.value("host", "");
  const auto name = job.value("jobid", "") + (is_epmt ? "" : "-" + host);
  const std::string suffix = is_epmt ? ".tgz" : ".tar.gz";
  const auto numbered = [&](int i) {
    return directory + "/" + name + (i > 1 ? "." + std::to_string(i) : "") + suffix;
  };
  int number = 1;
  // One that was killed between this and the removal of the records wrote the same archive.
  const auto start = fmt::format("\n \"start\": {},", job.value("start", std::int64_t{0}));
  const auto by = fmt::format("\n \"host\": {},", nlohmann::json(host).dump());
  for (; ::access(numbered(number).c_str(), F_OK) == 0; ++number) {
    const auto there = own_metadata(numbered(number));
    if (there.find(start) != there.npos && there.find(by) != there.npos) return numbered(number);
  }
  auto path = numbered(number);
  const auto seconds = job.value("stop", std::int64_t{0}) / 1'000'000;
  const auto text = tables(job, collated, layout);
  auto metadata = job;
  metadata["collector"].erase("perf_on");
  AtomicFile file = TRY(AtomicFile::create(path, 0600));
  TarFile tar = TRY(TarFile::begin(file, path));
  TRY(tar.add(is_epmt ? "./job_metadata" : "job.json", metadata.dump(1) + "\n", seconds));
  if (is_epmt) {
    TRY(tar.add("./" + host + "-papiex-header.tsv", text.header, seconds));
    TRY(tar.add("./" + host + "-papiex.tsv", text.processes, seconds));
  } else {
    TRY(tar.add("processes.tsv", text.header + text.processes, seconds));
    TRY(tar.add("libraries.tsv", text.libraries, seconds));
  }
  TRY(tar.end());
  // Other nodes may write to the directory at once, and epmt's name is the same on all.
  while (!TRY(file.commit_new(path.substr(directory.size() + 1)))) path = numbered(++number);
  return path;
}

bool is_of_launch(const std::string& path, const std::string& launch) {
  const auto mark = fmt::format("\n \"launch\": \"{}\"", launch);
  return own_metadata(path).find(mark) != std::string::npos;
}

}  // namespace heddle::jobs
