// SPDX-License-Identifier: MIT
#include "jobs/metadata.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/launch/rank.hpp"
#include "base/run_program.hpp"

extern char** environ;

namespace heddle::jobs {
namespace {

using nlohmann::json;

constexpr std::string_view kAllowed[] = {"SLURM_",
                                         "PBS_",
                                         "LSB_",
                                         "FLUX_",
                                         "PALS_",
                                         "OMP_",
                                         "GOMP_",
                                         "KMP_",
                                         "OMPI_",
                                         "PMI_",
                                         "PMIX_",
                                         "PRTE_",
                                         "MPI",
                                         "I_MPI_",
                                         "UCX_",
                                         "FI_",
                                         "HYDRA_",
                                         "LMOD_",
                                         "LOADEDMODULES",
                                         "MODULEPATH",
                                         "_LMFILES_",
                                         "CUDA_VISIBLE_DEVICES",
                                         "LD_LIBRARY_PATH",
                                         "PATH",
                                         "PYTHONPATH",
                                         "HEDDLE_JOB_TAGS",
                                         "EPMT_JOB_TAGS",
                                         "PAPIEX_TAGS"};

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

bool is_secret(std::string_view name) {
  const auto text = upper(name);
  for (const char* word :
       {"TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "COOKIE", "AUTH", "MUNGE"})
    if (text.find(word) != text.npos) return true;
  return false;
}

/// As is_secret(), for options: `sort --key 2` has no secret.
bool is_secret_option(std::string_view name) {
  auto text = upper(name);
  std::ranges::replace(text, '-', '_');
  for (const char* word :
       {"TOKEN", "SECRET", "PASSW", "PASSPHRASE", "APIKEY", "API_KEY", "ACCESS_KEY", "CREDENTIAL"})
    if (text.find(word) != text.npos) return true;
  return false;
}

std::string mask_urls(std::string value) {
  for (std::size_t at = 0; (at = value.find("://", at)) != value.npos;) {
    at += 3;
    const auto end = std::min(value.find_first_of("/?# \t\n\"'", at), value.size());
    const auto host = value.rfind('@', end);
    if (host == value.npos || host < at || host >= end) continue;
    const auto colon = value.find(':', at);
    if (colon >= host) continue;
    value.replace(colon + 1, host - colon - 1, "***");
  }
  return value;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

json allowed_environment() {
  json out = json::object();
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const auto name = text.substr(0, text.find('='));
    const auto matches = [&](std::string_view prefix) {
      return prefix.ends_with('_') || prefix == "MPI" ? name.starts_with(prefix) : name == prefix;
    };
    if (name.size() == text.size() || !std::ranges::any_of(kAllowed, matches)) continue;
    out[to_json_text(name)] = to_json_text(masked(name, std::string(text.substr(name.size() + 1))));
  }
  return out;
}

std::optional<std::int64_t> number_in(const std::string& text) {
  std::int64_t value = 0;
  const auto got = std::from_chars(text.data(), text.data() + text.size(), value);
  if (got.ec != std::errc() || got.ptr == text.data()) return std::nullopt;
  return value;
}

/// `key:value;key:value`
json tags() {
  json out = json::object();
  auto text = variable("HEDDLE_JOB_TAGS");
  if (text.empty()) text = variable("EPMT_JOB_TAGS");
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ';');) {
    if (word.empty()) continue;
    const auto colon = word.find(':');
    out[to_json_text(word.substr(0, colon))] =
        colon == word.npos ? "1" : to_json_text(word.substr(colon + 1));
  }
  return out;
}

json control_group() {
  json out = json::object();
  const auto groups = read_file("/proc/self/cgroup", 1U << 16);
  if (!groups) return out;
  const auto at = groups->rfind("0::", groups->npos);
  if (at == groups->npos) return out;
  auto path = groups->substr(at + 3);
  path = "/sys/fs/cgroup" + path.substr(0, path.find('\n'));
  for (const char* name : {"memory.peak", "memory.max", "memory.current"})
    if (const auto text = read_file(path + "/" + name, 4096))
      if (const auto value = number_in(*text)) out[name] = *value;
  if (const auto text = read_file(path + "/memory.events", 4096))
    if (const auto kill = text->find("oom_kill "); kill != text->npos)
      if (const auto value = number_in(text->substr(kill + 9))) out["memory.oom_kill"] = *value;
  for (const char* name : {"io.stat", "cpu.stat", "cpu.pressure", "memory.pressure", "io.pressure"})
    if (const auto text = read_file(path + "/" + name, 1U << 16)) out[name] = *text;
  return out;
}

/// Of id(1): the agent of fs-launch is static, and name services are libraries of the host's libc.
/// They may wait for a server: then the number.
std::string user_name() {
  const auto done = run_and_read("/usr/bin/id", {"id", "-un"},
                                 {.limit = std::chrono::seconds(5),
                                  .messages = Messages::dropped,
                                  .environment = std::vector<std::string>()});
  const auto name = done ? done->out.substr(0, done->out.find('\n')) : std::string();
  return name.empty() ? std::to_string(::getuid()) : name;
}

json machine() {
  json out = json::object();
  out["cpus"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  out["memory"] = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  utsname name{};
  if (::uname(&name) == 0) out["kernel"] = name.release;
  if (const auto info = read_file("/proc/cpuinfo", 16U << 20))
    if (const auto at = info->find("model name"); at != info->npos) {
      const auto colon = info->find(':', at);
      if (colon != info->npos)
        out["cpu"] = to_json_text(info->substr(colon + 2, info->find('\n', colon) - colon - 2));
    }
  return out;
}

}  // namespace

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string masked(std::string_view name, std::string value) {
  return is_secret(name) ? "***" : mask_urls(std::move(value));
}

void mask_arguments(std::vector<std::string>& arguments) {
  bool hide_next = false;
  for (auto& word : arguments) {
    const bool hide = std::exchange(hide_next, false);
    const auto equals = word.find('=');
    if (hide && !word.starts_with('-'))
      word = "***";
    else if (equals != word.npos && is_secret_option(word.substr(0, equals)))
      word.replace(equals + 1, word.npos, "***");
    else if (equals == word.npos && word.starts_with("--") && is_secret_option(word))
      hide_next = true;
    else
      word = mask_urls(std::move(word));
  }
}

std::vector<std::string> expand_hosts(const std::string& list) {
  constexpr std::size_t kMost = 100'000;
  std::vector<std::string> out;
  for (std::size_t at = 0; at < list.size();) {
    // A comma in brackets belongs to them.
    std::size_t end = at, open = list.npos, close = list.npos;
    for (; end < list.size() && (list[end] != ',' || (open != list.npos && close == list.npos));
         ++end) {
      if (list[end] == '[' && open == list.npos) open = end;
      if (list[end] == ']' && close == list.npos) close = end;
    }
    const auto word = list.substr(at, end - at);
    if (open == list.npos || close == list.npos) {
      if (!word.empty()) out.push_back(word);
    } else {
      const auto prefix = list.substr(at, open - at);
      const auto suffix = list.substr(close + 1, end - close - 1);
      std::istringstream ranges(list.substr(open + 1, close - open - 1));
      for (std::string range; std::getline(ranges, range, ',');) {
        const auto dash = range.find('-');
        const auto first = number_in(range),
                   last = number_in(range.substr(dash == range.npos ? 0 : dash + 1));
        if (!first || !last) continue;
        const auto width = std::min(dash, range.size());
        for (auto i = *first; i <= *last && out.size() < kMost; ++i) {
          auto digits = std::to_string(i);
          if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
          out.push_back(prefix + digits + suffix);
        }
      }
    }
    at = end + 1;
  }
  return out;
}

json begin_metadata(const std::string& jobid) {
  json job;
  job["heddle_job"] = 1;
  job["jobid"] = jobid;
  job["cluster"] = to_json_text(variable("SLURM_CLUSTER_NAME"));
  job["host"] = host_name();
  job["start"] = now_us();
  if (const auto start = number_in(variable("SLURM_JOB_START_TIME")))
    job["job_start"] = *start * 1'000'000;
  else if (const auto inherited = number_in(variable("HEDDLE_JOB_START")))
    job["job_start"] = *inherited;
  job["restart"] = number_in(variable("SLURM_RESTART_COUNT")).value_or(0);
  job["uid"] = ::getuid();
  job["user"] = to_json_text(user_name());
  std::error_code ignored;
  job["workdir"] = to_json_text(std::filesystem::current_path(ignored).string());
  const auto name = variable("SLURM_JOB_NAME");
  job["jobname"] = to_json_text(name.empty() ? variable("PBS_JOBNAME") : name);
  auto hosts = expand_hosts(variable("SLURM_JOB_NODELIST"));
  if (hosts.empty()) hosts.push_back(host_name());
  job["hosts"] = hosts;
  for (const char* ranks : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"})
    if (const auto value = number_in(variable(ranks)); value && !job.contains("ranks"))
      job["ranks"] = *value;
  if (const auto array = variable("SLURM_ARRAY_JOB_ID"); !array.empty())
    job["array"] = {{"job", array},
                    {"task", number_in(variable("SLURM_ARRAY_TASK_ID")).value_or(0)}};
  if (const auto het = variable("SLURM_HET_JOB_ID"); !het.empty())
    job["het"] = {{"job", het},
                  {"offset", number_in(variable("SLURM_HET_JOB_OFFSET")).value_or(0)}};
  job["tags"] = tags();
  job["annotations"] = json::object();
  job["environment"] = allowed_environment();
  job["machine"] = machine();
  return job;
}

void end_metadata(json& job) {
  job["stop"] = now_us();
  const auto before = job.value("environment", json::object());
  const auto after = allowed_environment();
  json changes = json::object();
  for (const auto& [name, value] : after.items())
    if (!before.contains(name) || before[name] != value) changes[name] = value;
  for (const auto& [name, value] : before.items())
    if (!after.contains(name)) changes[name] = nullptr;
  job["environment_changes"] = changes;
  job["cgroup"] = control_group();
}

}  // namespace heddle::jobs
