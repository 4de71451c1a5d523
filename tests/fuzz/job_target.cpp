// SPDX-License-Identifier: MIT
//
// What fs-job reads: the records of a job's processes, and archives of others. The first byte
// selects one.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "base/bounded_json.hpp"
#include "base/temp_dir.hpp"
#include "jobs/archive.hpp"
#include "jobs/collate.hpp"
#include "jobs/collector/record_format.hpp"
#include "jobs/store/archive.hpp"
#include "tests/fuzz/target.hpp"

namespace heddle::fuzz {

namespace {

namespace store = jobs::store;
using jobs::collate;
using jobs::Layout;
using jobs::RecordHeader;
using jobs::RecordType;
using jobs::TaskUsage;
using jobs::write_archive;

using Json = nlohmann::ordered_json;

const std::string& directory() {
  static const TempDir made = value_or_throw(TempDir::create("fuzz-job"));
  return made.path();
}

void write(const std::string& name, std::string_view text) {
  const auto file =
      value_or_throw(open_file(directory() + "/" + name, O_WRONLY | O_CREAT | O_TRUNC));
  value_or_throw(write_all(file.get(), text, name));
}

nlohmann::json metadata() {
  return {{"heddle_job", 2}, {"jobid", "1"},         {"host", "n1"},
          {"user", "u"},     {"start", 1'000'000},   {"stop", 9'000'000},
          {"hosts", {"n1"}}, {"tags", {{"a", "b"}}}, {"collector", {{"perf_on", true}}}};
}

void read(const std::string& path) {
  try {
    const auto archive = store::read_archive(path);
    for (const auto& p : archive.processes) {
      check(p.parent < static_cast<std::int64_t>(archive.processes.size()), "no such parent");
      check(p.first_value + p.threads * archive.keys.size() <= archive.values.size(), "no values");
      (void)store::split_list(p.args);
    }
    (void)archive.metadata.all.dump();
  } catch (const Error&) {
  }
}

void records(std::string_view bytes) {
  const auto collated = value_or_throw(collate(BytesFile(bytes).path()));
  for (const auto layout : {Layout::ours, Layout::epmt}) {
    const auto path = value_or_throw(write_archive(directory(), metadata(), collated, layout));
    read(path);
    check(::unlink(path.c_str()) == 0, "cannot unlink");
  }
}

void tar(std::string_view bytes) { read(BytesFile(bytes).path()); }

void tables(std::string_view bytes) {
  Input input(bytes);
  value_or_throw(remove_tree(directory() + "/d"));
  check(::mkdir((directory() + "/d").c_str(), 0700) == 0, "cannot make a directory");
  const bool own = input.number<std::uint8_t>() % 2 == 0;
  write(own ? "d/job.json" : "d/job_metadata", input.text());
  write(own ? "d/libraries.tsv" : "d/n1-papiex-header.tsv", input.text());
  write(own ? "d/processes.tsv" : "d/n1-papiex.tsv", input.rest());
  read(directory() + "/d");
}

void json(std::string_view bytes) {
  const auto value = parse_bounded<Json>(bytes);
  const auto parsed = Json::parse(bytes, nullptr, false);
  check(value.is_discarded() ? parsed.is_discarded() || beyond({}, bytes) : value == parsed,
        "another value");
}

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class Body>
std::string record(RecordType type, int pid, std::int64_t start, const Body& body,
                   const std::string& rest = {}) {
  RecordHeader header{jobs::kRecordMagic, 0, type, 0, pid, 0, start};
  header.size = static_cast<std::uint16_t>(sizeof header + sizeof body + rest.size());
  return bytes_of(header) + bytes_of(body) + rest;
}

std::string records_seed() {
  const std::string start("/bin/sh\0tags\0image\0-c\0true\0", 27);
  jobs::EndBody end{};
  end.threads = 3;
  end.usage.time = 3'000'000;
  end.usage.self.utime = end.usage.children.utime = 1000;
  end.usage.task.utime = end.usage.task.stime = 4;
  jobs::ReapedBody reaped{};
  reaped.time = 5'000'000;
  reaped.parent = 10;
  reaped.parent_start = 2'000'000;
  reaped.usage.utime = reaped.usage.stime = 1000;
  auto begun = [](std::int64_t previous) {
    jobs::StartBody out{};
    out.previous = previous;
    out.ppid = 1;
    return out;
  };
  return record(RecordType::start, 10, 2'000'000, begun(0), start) +
         record(RecordType::exec, 10, 2'000'000, end) +
         record(RecordType::start, 10, 3'000'000, begun(2'000'000), start) +
         record(RecordType::end, 10, 3'000'000, end,
                bytes_of(TaskUsage{}) + bytes_of(TaskUsage{})) +
         record(RecordType::threads, 10, 3'000'000, TaskUsage{}) +
         record(RecordType::libraries, 10, 3'000'000, 'l', std::string("/ib/libc.so.6\0", 14)) +
         record(RecordType::reaped, 11, 0, reaped);
}

std::string unpacked(const std::string& path) {
  std::string out(1 << 20, '\0');
  const gzFile file = ::gzopen(path.c_str(), "rb");
  const int size = ::gzread(file, out.data(), static_cast<unsigned>(out.size()));
  ::gzclose(file);
  check(size > 0, "cannot read");
  out.resize(static_cast<std::size_t>(size));
  return out;
}

/// The contents of a tar's three files.
std::vector<std::string> contents(std::string_view tar) {
  std::vector<std::string> out;
  while (out.size() < 3) {
    const auto size = std::stoul(std::string(tar.substr(124, 11)), nullptr, 8);
    out.emplace_back(tar.substr(512, size));
    tar.remove_prefix(512 + (size + 511) / 512 * 512);
  }
  return out;
}

}  // namespace

void run(std::string_view bytes) {
  Input input(bytes);
  constexpr void (*kReaders[])(std::string_view) = {records, tar, tables, json};
  const auto reader = kReaders[input.number<std::uint8_t>() % std::size(kReaders)];
  reader(input.rest());
}

std::vector<std::string> seeds() {
  std::vector<std::string> out{std::string("\0", 1) + records_seed(),
                               "\3" + metadata().dump() + "[[]]"};
  const auto collated = value_or_throw(collate(BytesFile(records_seed()).path()));
  check(collated.damaged == 0 && collated.processes.size() == 3, "the seed is damaged");
  for (const auto layout : {Layout::ours, Layout::epmt}) {
    const auto path = value_or_throw(write_archive(directory(), metadata(), collated, layout));
    const auto text = unpacked(path);
    out.push_back("\1" + value_or_throw(read_file(path)));
    out.push_back("\1" + text);
    const auto files = contents(text);
    const bool own = layout == Layout::ours;
    out.push_back("\2" + std::string(1, own ? '\0' : '\1') + text_piece(files[0]) +
                  text_piece(files[own ? 2 : 1]) + files[own ? 1 : 2]);
    (void)store::read_archive(path);
    check(::unlink(path.c_str()) == 0, "cannot unlink");
  }
  return out;
}

}  // namespace heddle::fuzz
