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
#include "base/rank_mark.hpp"
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
  if (text == "__PASS" || text == "__PWD") return true;
  for (const char* word :
       {"TOKEN", "SECRET", "PASSW", "PASSPHRASE", "APIKEY", "API_KEY", "ACCESS_KEY", "CREDENTIAL"})
    if (text.find(word) != text.npos) return true;
  return false;
}

/// As is_secret(), for what is behind a URL's path: `?author=me` has no secret.
bool is_secret_parameter(std::string_view name) {
  const auto text = upper(name);
  for (const char* word : {"KEY", "AUTH", "PASS", "PWD", "SIG"})
    if (text == word) return true;
  return is_secret_option(name) || text.find("SIGNATURE") != text.npos;
}

/// What is named as a secret behind the path of a URL.
void mask_parameters(std::string& value) {
  constexpr const char* kEnds = "&;# \t\n\"'";
  for (auto at = value.find("://"); (at = value.find_first_of("?&;#", at)) != value.npos;) {
    const auto name = ++at;
    at = value.find_first_of("=?&;# \t\n\"'", at);
    if (at == value.npos) return;
    if (value[at] != '=') continue;
    const bool hides = is_secret_parameter(std::string_view(value).substr(name, at - name));
    const auto begin = ++at;
    if (!hides) continue;
    value.replace(begin, std::min(value.find_first_of(kEnds, begin), value.size()) - begin, "***");
    at = begin + 3;
  }
}

/// Of the web's the user too, which may be a token.
std::string mask_urls(std::string value) {
  for (std::size_t at = 0; (at = value.find("://", at)) != value.npos;) {
    const auto before = std::string_view(value).substr(0, at);
    const bool is_web = before.ends_with("http") || before.ends_with("https");
    at += 3;
    const auto end = std::min(value.find_first_of("/?# \t\n\"'", at), value.size());
    const auto host = value.rfind('@', end);
    if (host == value.npos || host < at || host >= end) continue;
    const auto colon = value.find(':', at);
    if (!is_web && colon >= host) continue;
    const auto from = is_web ? at : colon + 1;
    value.replace(from, host - from, "***");
  }
  if (value.find("://") != value.npos) mask_parameters(value);
  return value;
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

/// The directories of a control group from the root of its hierarchy at `root`, or from the job's
/// own on, which Slurm calls job_ID: it has those of its steps and tasks below it.
struct Groups {
  std::vector<std::string> all, jobs;
  Groups(std::string directory, const std::string& path) {
    std::size_t first = 0;
    all.push_back(directory);
    std::istringstream names(path);
    for (std::string name; std::getline(names, name, '/');) {
      if (name.empty()) continue;
      directory += "/" + name;
      if (name.starts_with("job_")) first = all.size();
      all.push_back(directory);
    }
    if (first == 0) first = all.size() - 1;
    jobs.assign(all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
  }
  /// Of the highest group of the job that has it.
  std::optional<std::string> text(const char* file) const {
    for (const auto& directory : jobs)
      if (auto text = read_file(directory + "/" + file, 1U << 16)) return *text;
    return {};
  }
  std::optional<std::int64_t> number(const char* file) const {
    const auto found = text(file);
    return found ? number_in(*found) : std::nullopt;
  }
  /// A limit holds for all groups below: the least one counts. "max", or about 2^63, is none.
  std::optional<std::int64_t> least(const char* file) const {
    std::optional<std::int64_t> out;
    for (const auto& directory : all)
      if (const auto text = read_file(directory + "/" + file, 4096))
        if (const auto limit = number_in(*text); limit && *limit < std::int64_t{1} << 53)
          out = std::min(out.value_or(*limit), *limit);
    return out;
  }
};

}  // namespace

json control_group(const std::string& groups, const std::string& root) {
  json out = json::object();
  const auto put = [&](const char* name, const std::optional<std::int64_t>& value) {
    if (value) out[name] = *value;
  };
  const auto put_kills = [&](const std::optional<std::string>& text) {
    if (!text) return;
    if (const auto kill = text->find("oom_kill "); kill != text->npos)
      put("memory.oom_kill", number_in(text->substr(kill + 9)));
  };
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // cgroups(7): hierarchy:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const auto path = line.substr(second + 1);
    if (line.starts_with("0::")) {
      const Groups group(root, path);
      put("memory.peak", group.number("memory.peak"));
      put("memory.current", group.number("memory.current"));
      put("memory.max", group.least("memory.max"));
      put_kills(group.text("memory.events"));
      for (const char* name :
           {"io.stat", "cpu.stat", "cpu.pressure", "memory.pressure", "io.pressure"})
        if (const auto text = group.text(name)) out[name] = *text;
    } else if (controllers == "memory") {  // version 1
      const Groups group(root + "/memory", path);
      put("memory.peak", group.number("memory.max_usage_in_bytes"));
      put("memory.current", group.number("memory.usage_in_bytes"));
      put("memory.max", group.least("memory.limit_in_bytes"));
      put_kills(group.text("memory.oom_control"));
    }
  }
  return out;
}

std::string container_id(const std::string& groups, const std::string& mounts) {
  const auto id_in = [](std::string_view text) {
    std::size_t count = 0;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      const bool is_digit =
          i < text.size() && std::string_view("0123456789abcdef").find(text[i]) != text.npos;
      if (!is_digit && count == 64) return std::string(text.substr(i - 64, 64));
      count = is_digit ? count + 1 : 0;
    }
    return std::string();
  };
  auto id = id_in(groups);
  std::istringstream lines(mounts);
  for (std::string line; id.empty() && std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, root, point;  // proc_pid_mountinfo(5)
    words >> word >> word >> word >> root >> point;
    if (point == "/etc/hostname" || point == "/etc/hosts" || point == "/etc/resolv.conf")
      id = id_in(root);
  }
  return id;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string masked(std::string_view name, std::string value) {
  return is_secret(name) ? "***" : mask_urls(std::move(value));
}

void mask_arguments(std::vector<std::string>& arguments) {
  enum class Next { word, secret, header, user } next = Next::word;
  for (auto& word : arguments) {
    const auto kind = std::exchange(next, Next::word);
    word = mask_urls(std::move(word));
    const auto equals = word.find('=');
    const auto option = word.substr(0, equals);
    const bool is_option = word.starts_with('-');
    // Of a URL, which mask_urls() has seen to; the words before it may be a shell's.
    const auto last = option.substr(option.find_last_of(" \t\n\"'") + 1);
    const bool is_parameter =
        last.find("://") != last.npos && last.find_first_of("?;#") != last.npos;
    // `Authorization: Basic ...`, also as a part of the option's word.
    const auto mask_header = [&](std::size_t from) {
      const auto colon = word.find(':', from);
      if (colon == word.npos || !is_secret(word.substr(from, colon - from))) return false;
      word.replace(colon + 1, word.npos, "***");
      return true;
    };
    if (kind == Next::secret && !is_option) {
      word = "***";
    } else if (kind == Next::header && mask_header(0)) {
    } else if (kind == Next::user && !is_option && word.find(':') != word.npos) {
      word.replace(word.find(':') + 1, word.npos, "***");
    } else if (equals != word.npos && !is_parameter && is_secret_option(option)) {
      word.replace(equals + 1, word.npos, "***");
    } else if (word.starts_with("-H") && mask_header(2)) {
    } else if (option == "--header" && equals != word.npos && mask_header(equals + 1)) {
    } else if (option == "--user" && word.find(':', option.size()) != word.npos) {
      word.replace(word.find(':', option.size()) + 1, word.npos, "***");
    } else if (word.starts_with("--") && equals == word.npos && is_secret_option(word)) {
      next = Next::secret;
    } else if ((word.starts_with("-u") || word.starts_with("-U")) &&
               word.find(':', 2) != word.npos) {
      word.replace(word.find(':', 2) + 1, word.npos, "***");
    } else if (word == "-H" || word == "--header" || word == "--proxy-header") {
      next = Next::header;
    } else if (word == "-u" || word == "-U" || word == "--user" || word == "--proxy-user") {
      next = Next::user;
    }
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

std::optional<HetComponent> het_component() {
  auto node = variable("SLURMD_NODENAME");
  if (node.empty()) node = host_name();
  const auto count =
      std::min<std::int64_t>(number_in(variable("SLURM_HET_SIZE")).value_or(0), 1000);
  for (std::int64_t i = 0; i < count; ++i)
    for (const char* group :
         {"_HET_GROUP_", "_PACK_GROUP_"}) {  // srun's own allocation: the latter
      const auto of = [&](const char* name, std::int64_t k) {
        return variable((name + std::string(group) + std::to_string(k)).c_str());
      };
      const auto id = of("SLURM_JOB_ID", i), nodes = of("SLURM_JOB_NODELIST", i);
      // A job that one of a het job submitted has inherited these variables.
      const auto job = variable("SLURM_JOB_ID");
      if (!id.empty() && (job == id || job == of("SLURM_JOB_ID", 0)) &&
          std::ranges::count(expand_hosts(nodes), node) > 0)
        return HetComponent{i, of("SLURM_JOB_ID", 0), id, nodes};
    }
  return std::nullopt;
}

std::int64_t restart_count() { return number_in(variable("SLURM_RESTART_COUNT")).value_or(0); }

std::string scheduled_name() {
  const auto name = variable("SLURM_JOB_NAME");
  return name.empty() ? variable("PBS_JOBNAME") : name;
}

json begin_metadata(const std::string& jobid) {
  json job;
  job["heddle_job"] = 2;
  job["jobid"] = jobid;
  job["cluster"] = to_json_text(variable("SLURM_CLUSTER_NAME"));
  job["host"] = host_name();
  job["start"] = now_us();
  if (const auto start = number_in(variable("SLURM_JOB_START_TIME")))
    job["job_start"] = *start * 1'000'000;
  else if (const auto inherited = number_in(variable("HEDDLE_JOB_START")))
    job["job_start"] = *inherited;
  job["restart"] = restart_count();
  job["uid"] = ::getuid();
  job["user"] = to_json_text(user_name());
  std::error_code ignored;
  job["workdir"] = to_json_text(std::filesystem::current_path(ignored).string());
  job["jobname"] = to_json_text(scheduled_name());
  const auto component = het_component();
  const bool is_component = component && component->id == jobid;
  auto hosts = expand_hosts(is_component ? component->nodes : variable("SLURM_JOB_NODELIST"));
  if (hosts.empty()) hosts.push_back(host_name());
  job["hosts"] = hosts;
  for (const char* ranks : kSizeVariables)
    if (const auto value = number_in(variable(ranks)); value && !job.contains("ranks"))
      job["ranks"] = *value;
  if (const auto array = variable("SLURM_ARRAY_JOB_ID"); !array.empty())
    job["array"] = {{"job", array},
                    {"task", number_in(variable("SLURM_ARRAY_TASK_ID")).value_or(0)}};
  if (is_component) job["het"] = {{"job", component->job}, {"offset", component->offset}};
  job["tags"] = tags();
  job["annotations"] = json::object();
  job["environment"] = allowed_environment();
  job["machine"] = machine();
  const auto of_self = [](const char* file) {
    return read_file(std::string("/proc/self/") + file, 1U << 20).value_or("");
  };
  if (const auto id = container_id(of_self("cgroup"), of_self("mountinfo")); !id.empty())
    job["container"] = id;
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
  job["cgroup"] =
      control_group(read_file("/proc/self/cgroup", 1U << 16).value_or(""), "/sys/fs/cgroup");
}

}  // namespace heddle::jobs
