// SPDX-License-Identifier: MIT
#pragma once

// libpmix for C++: the only directory that includes its headers. PMIx (pmix.org) is how launchers,
// ranks and tools of Open MPI 5, PRRTE and Slurm talk to each other. The program heddle-pmix is
// linked to it, dynamically, since it reads its plugins and its own configuration; fs-launch pmix
// executes it, and all else works without.
//
// libpmix trusts its peers: it reads the counts and sizes in a server's answers, and calls back in
// threads of its own. So it runs in a child process alone (query.cpp, run.cpp), which has a time
// limit, and whose death is one error.

#include <pmix.h>
#include <pmix_server.h>
#include <pmix_tool.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace heddle::pmix {

/// More than any server should answer; what is beyond is an error.
inline constexpr std::size_t kMostNamespaces = 4096;
inline constexpr std::size_t kMostRanks = std::size_t{1} << 20;
/// Paths and host names are cut here.
inline constexpr std::size_t kLongestText = 4096;

/// An array of pmix_info_t, for one call.
class Infos {
 public:
  Infos() : list_(PMIx_Info_list_start()) {}
  Infos(const Infos&) = delete;
  Infos& operator=(const Infos&) = delete;
  ~Infos();

  Infos& flag(const char* key);
  Infos& text(const char* key, const std::string& value);
  Infos& number(const char* key, std::uint32_t value);
  Infos& small(const char* key, std::uint16_t value);
  Infos& integer(const char* key, int value);
  Infos& rank(const char* key, pmix_rank_t value);
  Infos& regex(const char* key, const char* value);
  Infos& process(const char* key, const pmix_proc_t& value);
  /// PMIX_SET_ENVAR.
  Infos& variable(const std::string& name, const std::string& value);
  Infos& array(const char* key, Infos& value);
  Infos& array(const char* key, pmix_data_array_t& value);

  /// What was added; nothing can be added afterwards.
  pmix_data_array_t& all();
  pmix_info_t* data();
  std::size_t size() { return all().size; }

 private:
  Infos& add(const char* key, const void* value, pmix_data_type_t type);
  void* list_;
  pmix_data_array_t array_{};
  bool converted_ = false;
};

/// PMIX_SUCCESS, or the same when a call was done at once.
bool is_done(pmix_status_t status);
/// `where: what: libpmix's name of the status`.
tl::unexpected<Error> fail_pmix(const std::string& where, const std::string& what,
                                pmix_status_t status, const std::string& hint = {});

pmix_proc_t process_of(const std::string& name_space, pmix_rank_t rank);
/// The text of `value` if it is one, cut at kLongestText.
std::string text_of(const char* text);
std::string text_of(const pmix_value_t& value);

struct RankEntry {
  std::int64_t rank = 0;
  std::int64_t pid = 0;
  std::string host;
  std::string program;
  std::string state;
};

/// Of the server that this tool is connected to. Failure: it denies, or answers too much.
Result<std::vector<std::string>> query_namespaces(const std::string& server);
Result<std::vector<RankEntry>> query_ranks(const std::string& server,
                                           const std::string& name_space);
/// A JSON list of rank, pid, host, program, state and namespace of each.
std::string to_json(const std::string& name_space, const std::vector<RankEntry>& ranks);

struct Event {
  pmix_status_t code = PMIX_SUCCESS;
  std::string name_space;  ///< of the job that it is about; may be empty
  int status = 0;          ///< how the job ended
};

/// Events in the order of their arrival, handed from libpmix's thread to the one that waits.
class Events {
 public:
  /// Registers for `codes` with libpmix, and with the server that is the primary one now.
  Result<void> listen(std::vector<pmix_status_t> codes);
  /// The next one; nullopt: none within `limit`.
  std::optional<Event> wait(std::chrono::milliseconds limit);

 private:
  static void on_event(std::size_t id, pmix_status_t status, const pmix_proc_t* source,
                       pmix_info_t infos[], std::size_t count, pmix_info_t results[],
                       std::size_t result_count, pmix_event_notification_cbfunc_fn_t done,
                       void* data);
  void push(Event event);
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Event> events_;
};

/// Takes what this process inherited of another PMIx launcher out of the environment, since libpmix
/// would take it for a rank, or call a tool back.
void leave_pmix_job();
/// libevent, below libpmix, warns when a connection ends while something is written: no message.
void silence_libevent();
/// Sends what libpmix prints to /dev/null: a failure is said once, by an error of ours. Result:
/// what standard error was.
Fd silence_libpmix();
/// Bounds what a peer can make libpmix allocate, for the whole process.
void limit_memory();

}  // namespace heddle::pmix
