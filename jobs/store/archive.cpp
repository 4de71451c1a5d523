// SPDX-License-Identifier: MIT
#include "jobs/store/archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <unordered_map>

#include "base/bounded_json.hpp"
#include "base/content_hash.hpp"
#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"

namespace heddle::jobs::store {
namespace {

constexpr std::size_t kMostMetadata = 16 << 20;
constexpr std::size_t kMostTable = std::size_t{512} << 20;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;  ///< of all files
constexpr std::size_t kMostFiles = 8;                     ///< epmt has a few more than we read
// A field of one byte takes 16 bytes of memory, a row of 40 bytes 300.
constexpr std::size_t kMostThreads = 1 << 20;  ///< of a process, far above threads-max
constexpr std::size_t kMostProcesses = 1 << 20;
constexpr std::size_t kMostValues = std::size_t{32} << 20;  ///< of kMostProcesses of one thread
constexpr std::size_t kMostLibraries = 1 << 22;
constexpr std::size_t kMostKeys = 1024;
/// Sums of them fit 64 bits, and each is exact as JavaScript's and DuckDB's double.
constexpr std::int64_t kGreatest = std::int64_t{1} << 53;
constexpr std::array<std::string_view, 15> kEpmtColumns = {
    "tags", "hostname", "exename", "path",    "exitcode", "exitsignal", "pid", "generation",
    "ppid", "pgid",     "sid",     "numtids", "start",    "finish",     "args"};
constexpr std::array<std::string_view, 5> kOwnColumns = {"marks", "libraries", "failed_lookups",
                                                         "container", "ended_by"};

/// The files by their names.
using Files = std::map<std::string, std::string>;

/// Before another file, or more of one, is read.
void check_room(const Files& files, const std::string& path) {
  std::size_t bytes = 0;
  for (const auto& [name, text] : files) bytes += text.size();
  if (files.size() > kMostFiles || bytes > kMostBytes)
    throw Error(path, "not an archive of a job",
                fmt::format("it has more than {} files or {} MiB", kMostFiles, kMostBytes >> 20));
}

struct Free {
  void operator()(struct archive* reader) const { ::archive_read_free(reader); }
};

std::size_t limit_of(std::string_view name) {
  if (name == "job.json" || name == "job_metadata" || name.ends_with("-papiex-header.tsv"))
    return kMostMetadata;
  if (name == "processes.tsv" || name == "libraries.tsv" || name.ends_with("-papiex.tsv"))
    return kMostTable;
  return 0;
}

Files read_tar(const std::string& path, bool metadata_only) {
  const std::unique_ptr<struct archive, Free> reader(::archive_read_new());
  ::archive_read_support_filter_gzip(reader.get());
  ::archive_read_support_format_tar(reader.get());
  const auto damaged = [&](std::string_view why) -> Error {
    return Error(path, "not an archive of a job", why);
  };
  const auto reason = [&] {
    const char* text = ::archive_error_string(reader.get());
    return std::string(text ? text : "it is damaged");
  };
  const Fd file = value_or_throw(open_regular(path));
  if (::archive_read_open_fd(reader.get(), file.get(), 1 << 17) != ARCHIVE_OK)
    throw damaged(reason());
  Files files;
  struct archive_entry* entry = nullptr;
  for (int status = 0;
       (status = ::archive_read_next_header(reader.get(), &entry)) != ARCHIVE_EOF;) {
    if (status != ARCHIVE_OK) throw damaged(reason());
    const char* raw = ::archive_entry_pathname(entry);
    std::string name = raw ? raw : "";
    if (name == "./" && ::archive_entry_filetype(entry) == AE_IFDIR) continue;
    if (name.starts_with("./")) name.erase(0, 2);
    const std::size_t limit = limit_of(name);
    if (name.find('/') != std::string::npos || limit == 0)
      throw damaged("it has an unknown file " + escape_for_terminal(name));
    if (::archive_entry_filetype(entry) != AE_IFREG || ::archive_entry_hardlink(entry) != nullptr)
      throw damaged(escape_for_terminal(name) + " is not a regular file");
    auto [at, fresh] = files.try_emplace(name);
    if (!fresh) throw damaged("it has " + escape_for_terminal(name) + " twice");
    check_room(files, path);
    // The size in the header is the sender's word: what comes is counted.
    for (std::array<char, 1 << 16> piece;;) {
      const la_ssize_t n = ::archive_read_data(reader.get(), piece.data(), piece.size());
      if (n < 0) throw damaged(reason());
      if (n == 0) break;
      if (at->second.size() + static_cast<std::size_t>(n) > limit)
        throw damaged(escape_for_terminal(name) + " is too large");
      at->second.append(piece.data(), static_cast<std::size_t>(n));
    }
    check_room(files, path);
    if (metadata_only && (name == "job.json" || name == "job_metadata")) break;
  }
  return files;
}

Files read_directory(const std::string& path) {
  Files files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (const std::size_t limit = limit_of(name); limit > 0) {
      files[name] = value_or_throw(
          read_all(value_or_throw(open_regular(entry.path().string())).get(), name, limit));
      check_room(files, path);
    }
  }
  return files;
}

Files read_files(const std::string& path, bool metadata_only = false) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? read_directory(path)
                                                      : read_tar(path, metadata_only);
}

/// The file of one of these names, or whose name ends so.
const std::string* find(const Files& files, std::string_view name, std::string_view end) {
  for (const auto& [key, text] : files)
    if (key == name || (!end.empty() && key.ends_with(end))) return &text;
  return nullptr;
}

/// Databases take no NUL, and people no control characters.
std::string clean(const std::string& text) {
  return text.find('\0') == std::string::npos ? text : escape_for_terminal(text);
}

class MetadataReader {
 public:
  MetadataReader(const std::string& path, const Json& json) : path_(path), json_(json) {}

  Metadata read(bool own) {
    Metadata m;
    if (const auto version = number("heddle_job").value_or(0); own && version != 2)
      throw wrong("heddle_job", "another version than 2");
    m.cluster = text("cluster");
    m.jobid = text("jobid");
    m.host = text("host");
    m.user = text("user");
    m.jobname = text("jobname");
    m.workdir = text("workdir");
    m.job_start = number("job_start");
    m.restart = number("restart").value_or(0);
    m.start = number("start").value_or(0);
    m.stop = number("stop").value_or(0);
    m.exitcode = number("exitcode");
    m.exitsignal = number("exitsignal");
    m.ranks = number("ranks");
    if (const auto hosts = json_.find("hosts"); hosts != json_.end()) {
      if (!hosts->is_array() || hosts->size() > 1'000'000) throw wrong("hosts", "not a list");
      for (const auto& host : *hosts) {
        if (!host.is_string()) throw wrong("hosts", "not a list of names");
        m.hosts.push_back(clean(host.get<std::string>()));
      }
    }
    m.tags = texts("tags");
    m.annotations = texts("annotations");
    m.environment = texts("environment");
    m.cgroup = json_.value("cgroup", Json::object());
    if (!m.cgroup.is_object()) throw wrong("cgroup", "not an object");
    m.all = json_;
    if (own && m.jobid.empty()) throw wrong("jobid", "missing");
    if (own && m.host.empty()) throw wrong("host", "missing");
    if (own && m.user.empty()) throw wrong("user", "missing");
    if (own && (m.start <= 0 || m.stop < m.start)) throw wrong("stop", "not after start");
    return m;
  }

 private:
  Error wrong(const char* key, const char* why) const {
    return {path_, std::string("damaged job.json: ") + key, why};
  }
  Count number(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return {};
    if (!found->is_number_integer() || found->get<std::int64_t>() < 0 ||
        found->get<std::int64_t>() > kGreatest)
      throw wrong(key, "not a number");
    return found->get<std::int64_t>();
  }
  std::string text(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return {};
    if (!found->is_string()) throw wrong(key, "not a text");
    return clean(found->get<std::string>());
  }
  Json texts(const char* key) const {
    Json out = Json::object();
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return out;
    if (!found->is_object()) throw wrong(key, "not an object");
    for (const auto& [name, value] : found->items())
      out[clean(name)] = clean(value.is_string() ? value.get<std::string>() : value.dump());
    return out;
  }

  const std::string& path_;
  const Json& json_;
};

/// Calls `use` with each piece of `line` between `mark`s, until it returns false.
template <class Use>
void for_each_piece(std::string_view line, char mark, Use&& use) {
  for (;;) {
    const auto at = line.find(mark);
    if (!use(line.substr(0, at)) || at == std::string_view::npos) return;
    line.remove_prefix(at + 1);
  }
}

/// The pieces are views into `line`; no more than `most`, the rest is left out.
std::vector<std::string_view> split(std::string_view line, char mark, std::size_t most) {
  std::vector<std::string_view> out;
  for_each_piece(line, mark, [&](std::string_view piece) {
    out.push_back(piece);
    return out.size() < most;
  });
  return out;
}

class TableReader {
 public:
  TableReader(const std::string& path, std::string_view file, std::string_view text)
      : path_(path), file_(file), rest_(text) {}

  bool next() {
    if (rest_.empty()) return false;
    const auto end = rest_.find('\n');
    if (end == std::string_view::npos) throw wrong("the last line is cut");
    ++line_;
    fields = split(rest_.substr(0, end), '\t', 100);
    rest_.remove_prefix(end + 1);
    return true;
  }
  Error wrong(std::string_view why) const {
    return {path_, fmt::format("damaged {}, line {}", file_, line_), why};
  }
  void check_width(std::size_t columns) const {
    if (fields.size() != columns)
      throw wrong(fmt::format("{} columns instead of {}", fields.size(), columns));
  }
  /// Texts are stored as they are, so they must be what escape_for_terminal() writes.
  std::string_view text(std::size_t at) const {
    const std::string_view field = fields[at];
    if (!is_valid_utf8(field) ||
        std::ranges::any_of(field, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      throw wrong("a field is not escaped");
    return field;
  }
  Count number(std::size_t at) const { return parse(fields[at]); }
  std::int64_t needed(std::size_t at) const {
    const Count value = number(at);
    if (!value) throw wrong("a number is missing");
    return *value;
  }
  Count parse(std::string_view word) const {
    if (word.empty() || word == "NULL") return {};
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value > kGreatest ||
        value < -kGreatest)
      throw wrong("not a number: " + escape_for_terminal(word.substr(0, 40)));
    return value;
  }

  std::vector<std::string_view> fields;

 private:
  const std::string& path_;
  std::string_view file_, rest_;
  std::size_t line_ = 0;
};

void check_columns(const TableReader& table, bool own) {
  std::string names;
  for (const auto& name : kEpmtColumns) names += fmt::format("\t{}", name);
  for (const auto& name : kOwnColumns) names += own ? fmt::format("\t{}", name) : "";
  if (fmt::format("{}", fmt::join(table.fields, "\t")) != std::string(table.fields[0]) + names)
    throw table.wrong("unknown columns");
}

void read_keys(Archive& archive, const TableReader& table, std::string_view column) {
  if (column.size() < 3 || column.front() != '{' || column.back() != '}')
    throw table.wrong("the first column does not name the metrics");
  for (std::string_view key : split(column.substr(1, column.size() - 2), ',', kMostKeys + 1)) {
    if (archive.keys.size() == kMostKeys) throw table.wrong("too many metrics");
    while (key.starts_with(' ')) key.remove_prefix(1);
    const auto plain = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == ':' || c == '-' || c == '.';
    };
    if (key.empty() || key.size() > 80 || !std::ranges::all_of(key, plain) ||
        std::ranges::find(archive.keys, key) != archive.keys.end())
      throw table.wrong("a metric has no proper name");
    archive.keys.emplace_back(key);
  }
}

void read_values(Archive& archive, const TableReader& table, Process& process) {
  std::string_view array = table.fields[0];
  if (array.size() < 2 || array.front() != '{' || array.back() != '}')
    throw table.wrong("the first column is no array");
  array = array.substr(1, array.size() - 2);
  process.first_value = archive.values.size();
  if (!array.empty())
    for_each_piece(array, ',', [&](std::string_view word) {
      while (word.starts_with(' ')) word.remove_prefix(1);
      if (archive.values.size() == kMostValues) throw table.wrong("too many values");
      archive.values.push_back(table.parse(word));
      return true;
    });
  const std::size_t count = archive.values.size() - process.first_value;
  if (count % archive.keys.size() != 0 || count / archive.keys.size() > kMostThreads)
    throw table.wrong("the array does not fit the metrics");
  process.threads = count / archive.keys.size();
}

void read_rows(Archive& archive, TableReader& table, bool own) {
  const std::size_t columns = 1 + kEpmtColumns.size() + (own ? kOwnColumns.size() : 0);
  while (table.next()) {
    table.check_width(columns);
    Process p;
    read_values(archive, table, p);
    p.tags = table.text(1);
    p.exename = table.text(3);
    p.path = table.text(4);
    p.exitcode = table.number(5);
    p.exitsignal = table.number(6);
    p.pid = table.needed(7);
    p.generation = table.number(8).value_or(0);
    p.ppid = table.number(9).value_or(0);
    p.pgid = table.number(10).value_or(0);
    p.sid = table.number(11).value_or(0);
    p.numtids = table.number(12).value_or(1);
    p.start = table.needed(13);
    p.finish = table.number(14);
    p.args = table.text(15);
    if (own) {
      p.marks = table.text(16);
      p.libraries = table.number(17);
      p.failed_lookups = table.number(18);
      p.container = table.text(19);
      p.ended_by = table.text(20);
    }
    if (p.finish && *p.finish < p.start) throw table.wrong("a process ends before it starts");
    if (archive.processes.size() == kMostProcesses) throw table.wrong("too many processes");
    archive.processes.push_back(p);
  }
}

void read_libraries(Archive& archive, const std::string& path) {
  TableReader table(path, "libraries.tsv", archive.library_text);
  const std::vector<std::string_view> columns{"set", "name", "path", "failed", "size"};
  if (!table.next() || table.fields != columns) throw table.wrong("unknown columns");
  while (table.next()) {
    table.check_width(columns.size());
    if (archive.libraries.size() == kMostLibraries) throw table.wrong("too many libraries");
    archive.libraries.push_back(
        {table.needed(0), table.text(1), table.text(2), table.number(3), table.number(4)});
  }
}

/// Half a second: clocks are set while jobs run.
constexpr std::int64_t kSlack = 500'000;

void check_interval(const Archive& archive, const std::string& path) {
  const Metadata& m = archive.metadata;
  for (const Process& p : archive.processes)
    if (p.start < m.start - kSlack || p.finish.value_or(p.start) > m.stop + kSlack)
      throw Error(path, fmt::format("process {} is outside of the job's time", p.pid),
                  "the archive mixes two jobs, or is damaged");
}

void read_own(Archive& archive, Files& files, const std::string& path) {
  for (const char* name : {"processes.tsv", "libraries.tsv"})
    if (files.count(name) == 0)
      throw Error(path, "not an archive of a job", std::string(name) + " is missing");
  archive.process_text = std::move(files["processes.tsv"]);
  archive.library_text = std::move(files["libraries.tsv"]);
  TableReader table(path, "processes.tsv", archive.process_text);
  if (!table.next()) throw table.wrong("it is empty");
  check_columns(table, true);
  read_keys(archive, table, table.fields[0]);
  read_rows(archive, table, true);
  read_libraries(archive, path);
  check_interval(archive, path);
}

/// papiex writes no marks: what is not escaped is escaped, so that the text is stored as ours.
std::string escaped_table(const std::string& text, const std::string& path) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\t')
      out += c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
    if (out.size() > kMostTable)
      throw Error(path, "not an archive of a job", "its table is too large");
  }
  if (is_valid_utf8(out)) return out;
  for (char& c : out)
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return out;
}

void read_epmt(Archive& archive, const Files& files, const std::string& path, bool has_metadata) {
  const auto* header = find(files, "", "-papiex-header.tsv");
  const auto* rows = find(files, "", "-papiex.tsv");
  if (!header || !rows)
    throw Error(path, "not an archive of a job",
                "neither processes.tsv nor epmt's v2 tables are in it");
  std::string first = *header;
  if (!first.ends_with('\n')) first += '\n';
  TableReader head(path, "header", first);
  head.next();
  check_columns(head, false);
  read_keys(archive, head, head.fields[0]);
  archive.process_text = escaped_table(*rows, path);
  TableReader table(path, "table", archive.process_text);
  read_rows(archive, table, false);
  Metadata& m = archive.metadata;
  if (has_metadata) return check_interval(archive, path);
  // Of papiex's own archives only the name and the rows say which job it was: the pickle is never
  // read, since that would run its code.
  if (archive.processes.empty()) throw Error(path, "not an archive of a job", "it has no process");
  const std::string file = std::filesystem::path(path).filename().string();
  m.jobid = file.substr(0, file.find('.'));
  const auto name =
      std::ranges::find_if(files, [](const auto& f) { return f.first.ends_with("-papiex.tsv"); });
  m.host = name->first.substr(0, name->first.size() - std::string_view("-papiex.tsv").size());
  m.start = archive.processes.front().start;
  for (const Process& p : archive.processes) {
    m.start = std::min(m.start, p.start);
    m.stop = std::max(m.stop, p.finish.value_or(p.start));
  }
}

/// job.json, or epmt's if it is JSON.
std::optional<Metadata> metadata_of(const Files& files, const std::string& path) {
  const auto* own = find(files, "job.json", "");
  const auto* text = own ? own : find(files, "job_metadata", "");
  if (!text) throw Error(path, "not an archive of a job", "job.json is missing");
  if (const char* why = beyond({}, *text); why && own) throw Error(path, "damaged job.json", why);
  const auto json = parse_bounded<Json>(*text);
  if (!own && !json.is_object()) return std::nullopt;  // a pickle
  if (!json.is_object()) throw Error(path, "damaged job.json", "not a JSON object");
  return MetadataReader(path, json).read(own || json.contains("heddle_job"));
}

}  // namespace

std::vector<std::string> archives_of(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::is_directory(path, failed)) return {path};
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const auto name = entry.path().filename().string();
    if (limit_of(name) > 0) return {path};
    if (name[0] != '.' && (name.ends_with(".tar.gz") || name.ends_with(".tgz")))
      out.push_back(entry.path());
  }
  if (out.empty()) throw Error(path, "no archive of a job", "it has no .tar.gz and no job.json");
  std::ranges::sort(out);
  return out;
}

Archive read_archive(const std::string& path) {
  Files files = read_files(path);
  Archive archive;
  std::string all;
  auto metadata = metadata_of(files, path);
  if (metadata) archive.metadata = std::move(*metadata);
  // Without the metadata: an archive that was annotated is the same.
  for (const auto& [name, text] : files)
    if (name.ends_with(".tsv")) all += hash_bytes(text).hex();
  archive.hash = hash_bytes(fmt::format("{} {}", archive.metadata.start, all)).hex();
  if (files.count("job.json") > 0)
    read_own(archive, files, path);
  else
    read_epmt(archive, files, path, metadata.has_value() && archive.metadata.start > 0);
  std::ranges::stable_sort(archive.processes, {}, &Process::start);
  const auto key = [&](std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(archive.keys, name) - archive.keys.begin());
  };
  for (Process& p : archive.processes)
    for (const std::size_t k : {key("usertime"), key("systemtime")})
      for (std::size_t thread = 0; k < archive.keys.size() && thread < p.threads; ++thread)
        p.cpu_time = std::min(kGreatest, p.cpu_time + archive.value(p, thread, k).value_or(0));
  build_tree(archive.processes);
  return archive;
}

Metadata read_metadata(const std::string& path) {
  auto metadata = metadata_of(read_files(path, true), path);
  if (!metadata) throw Error(path, "its metadata is a Python pickle", "those are never read");
  return std::move(*metadata);
}

void replace_metadata(const std::string& path, const Json& metadata) {
  const std::string text = metadata.dump(1) + "\n";
  const auto write = [](const std::string& to, const std::string& content) {
    AtomicFile file = value_or_throw(AtomicFile::create(to, 0600));
    value_or_throw(file.write(content));
    value_or_throw(file.commit());
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return write(path + "/job.json", text);
  Files files = read_files(path);
  const bool own = files.count("job.json") > 0;
  files[own ? "job.json" : "job_metadata"] = text;
  AtomicFile file = value_or_throw(AtomicFile::create(path, 0600));
  const auto release = [](struct archive* writer) { ::archive_write_free(writer); };
  const std::unique_ptr<struct archive, decltype(release)> writer(::archive_write_new(), release);
  if (!path.ends_with(".tar")) ::archive_write_add_filter_gzip(writer.get());
  ::archive_write_set_format_ustar(writer.get());
  bool ok = ::archive_write_open_fd(writer.get(), file.fd()) == ARCHIVE_OK;
  for (const auto& [name, content] : files) {
    const auto drop = [](struct archive_entry* e) { ::archive_entry_free(e); };
    const std::unique_ptr<struct archive_entry, decltype(drop)> entry(::archive_entry_new(), drop);
    ::archive_entry_set_pathname(entry.get(), own ? name.c_str() : ("./" + name).c_str());
    ::archive_entry_set_filetype(entry.get(), AE_IFREG);
    ::archive_entry_set_perm(entry.get(), 0600);
    ::archive_entry_set_size(entry.get(), static_cast<la_int64_t>(content.size()));
    ok = ok && ::archive_write_header(writer.get(), entry.get()) == ARCHIVE_OK &&
         ::archive_write_data(writer.get(), content.data(), content.size()) ==
             static_cast<la_ssize_t>(content.size());
  }
  if (!ok || ::archive_write_close(writer.get()) != ARCHIVE_OK)
    throw Error(path, "cannot write", ::archive_error_string(writer.get()));
  value_or_throw(file.commit());
}

void build_tree(std::vector<Process>& processes) {
  // A parent is the program that a process of that number executed when the child started. Parents
  // come first by their start, so that no chain is a circle.
  std::unordered_map<std::int64_t, std::vector<std::size_t>> of_pid;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    Process& p = processes[i];
    p.inclusive_cpu_time = p.cpu_time;
    if (const auto found = of_pid.find(p.ppid); found != of_pid.end()) {
      // The last one, but where clocks differ; the limit keeps hostile tables from taking hours.
      const auto end =
          found->second.rbegin() + std::min<std::ptrdiff_t>(16, std::ssize(found->second));
      for (auto at = found->second.rbegin(); at != end; ++at) {
        const Process& candidate = processes[*at];
        if (candidate.finish && *candidate.finish < p.start) continue;
        p.parent = static_cast<std::int64_t>(*at);
        p.depth = candidate.depth + 1;
        break;
      }
    }
    of_pid[p.pid].push_back(i);
  }
  for (std::size_t i = processes.size(); i-- > 0;)
    if (processes[i].parent >= 0) {
      auto& sum = processes[static_cast<std::size_t>(processes[i].parent)].inclusive_cpu_time;
      sum = std::min(kGreatest, sum + processes[i].inclusive_cpu_time);
    }
}

std::vector<std::string> split_list(std::string_view list) {
  std::vector<std::string> out;
  if (list.empty()) return out;
  for_each_piece(list, ' ', [&](std::string_view word) {
    if (word == "\\e")
      out.emplace_back();
    else
      out.push_back(unescape(word).value_or(std::string(word)));
    return true;
  });
  return out;
}

}  // namespace heddle::jobs::store
