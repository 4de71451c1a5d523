// SPDX-License-Identifier: MIT
#include "launch/pmix/pmix.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/escape.hpp"
#include "base/try.hpp"

extern char** environ;

namespace heddle::pmix {

Infos::~Infos() {
  PMIx_Info_list_release(list_);
  if (converted_) PMIx_Data_array_destruct(&array_);
}

Infos& Infos::add(const char* key, const void* value, pmix_data_type_t type) {
  // libpmix copies the value, and takes it by a pointer that is not to const.
  if (const auto status = PMIx_Info_list_add(list_, key, const_cast<void*>(value), type);
      status != PMIX_SUCCESS)
    throw Error(key, "libpmix takes no such value", PMIx_Error_string(status));
  return *this;
}

Infos& Infos::flag(const char* key) {
  const bool yes = true;
  return add(key, &yes, PMIX_BOOL);
}
Infos& Infos::text(const char* key, const std::string& value) {
  return add(key, value.c_str(), PMIX_STRING);
}
Infos& Infos::number(const char* key, std::uint32_t value) { return add(key, &value, PMIX_UINT32); }
Infos& Infos::small(const char* key, std::uint16_t value) { return add(key, &value, PMIX_UINT16); }
Infos& Infos::rank(const char* key, pmix_rank_t value) { return add(key, &value, PMIX_PROC_RANK); }
Infos& Infos::regex(const char* key, const char* value) { return add(key, value, PMIX_REGEX); }
Infos& Infos::integer(const char* key, int value) { return add(key, &value, PMIX_INT); }
Infos& Infos::process(const char* key, const pmix_proc_t& value) {
  return add(key, &value, PMIX_PROC);
}
Infos& Infos::variable(const std::string& name, const std::string& value) {
  const pmix_envar_t variable{const_cast<char*>(name.c_str()), const_cast<char*>(value.c_str()),
                              ':'};
  return add(PMIX_SET_ENVAR, &variable, PMIX_ENVAR);
}
Infos& Infos::array(const char* key, Infos& value) { return array(key, value.all()); }
Infos& Infos::array(const char* key, pmix_data_array_t& value) {
  return add(key, &value, PMIX_DATA_ARRAY);
}

pmix_data_array_t& Infos::all() {
  if (!converted_ && PMIx_Info_list_convert(list_, &array_) != PMIX_SUCCESS) array_ = {};
  converted_ = true;
  return array_;
}
pmix_info_t* Infos::data() { return static_cast<pmix_info_t*>(all().array); }

bool is_done(pmix_status_t status) {
  return status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED;
}

tl::unexpected<Error> fail_pmix(const std::string& where, const std::string& what,
                                pmix_status_t status, const std::string& hint) {
  const char* name = PMIx_Error_string(status);
  return fail(where, what, name ? name : std::to_string(status), hint);
}

pmix_proc_t process_of(const std::string& name_space, pmix_rank_t rank) {
  pmix_proc_t out{};
  name_space.copy(out.nspace, PMIX_MAX_NSLEN);
  out.rank = rank;
  return out;
}

std::string text_of(const char* text) {
  return text ? std::string(text, ::strnlen(text, kLongestText)) : std::string();
}
std::string text_of(const pmix_value_t& value) {
  return value.type == PMIX_STRING ? text_of(value.data.string) : std::string();
}

namespace {

/// The answers to one key. The server chooses their number, types and values.
struct Answers {
  pmix_info_t* infos = nullptr;
  std::size_t count = 0;
  Answers() = default;
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;
  ~Answers() {
    pmix_data_array_t array{PMIX_INFO, count, infos};
    if (infos) PMIx_Data_array_destruct(&array);
  }
  const pmix_value_t* find(const char* key, pmix_data_type_t type) const {
    for (std::size_t i = 0; i < count; ++i)
      if (std::strncmp(infos[i].key, key, PMIX_MAX_KEYLEN) == 0 && infos[i].value.type == type)
        return &infos[i].value;
    return nullptr;
  }
};

Result<void> ask(const std::string& server, const char* key, Infos& qualifiers, Answers& answers) {
  char* keys[] = {const_cast<char*>(key), nullptr};
  pmix_query_t query{};
  query.keys = keys;
  query.qualifiers = qualifiers.data();
  query.nqual = qualifiers.size();
  const auto status = PMIx_Query_info(&query, 1, &answers.infos, &answers.count);
  if (is_done(status)) return {};
  if (status == PMIX_ERR_UNREACH || status == PMIX_ERR_LOST_CONNECTION ||
      status == PMIX_ERR_COMM_FAILURE)
    return fail_pmix(server, "the server is gone", status);
  if (status == PMIX_ERR_NOT_FOUND) return fail(server, "the server has no such job");
  return fail_pmix(server, "the server does not answer this question", status,
                   "launchers of PRRTE and Open MPI 5 do, Slurm's do not");
}

}  // namespace

Result<std::vector<std::string>> query_namespaces(const std::string& server) {
  Answers answers;
  Infos none;
  TRY(ask(server, PMIX_QUERY_NAMESPACES, none, answers));
  const auto* value = answers.find(PMIX_QUERY_NAMESPACES, PMIX_STRING);
  std::vector<std::string> out;
  if (!value || !value->data.string) return out;
  constexpr std::size_t kLimit = kMostNamespaces * (PMIX_MAX_NSLEN + 1);
  std::istringstream words(std::string(value->data.string, ::strnlen(value->data.string, kLimit)));
  for (std::string word; std::getline(words, word, ',');) {
    if (word.empty() || word.size() > PMIX_MAX_NSLEN) continue;
    if (out.size() == kMostNamespaces)
      return fail(server, "the server names more namespaces than any has",
                  fmt::format("over {}", kMostNamespaces));
    out.push_back(word);
  }
  return out;
}

Result<std::vector<RankEntry>> query_ranks(const std::string& server,
                                           const std::string& name_space) {
  Answers answers;
  Infos qualifiers;
  qualifiers.text(PMIX_NSPACE, name_space);
  TRY(ask(server, PMIX_QUERY_PROC_TABLE, qualifiers, answers));
  const auto* value = answers.find(PMIX_QUERY_PROC_TABLE, PMIX_DATA_ARRAY);
  if (!value || !value->data.darray || value->data.darray->type != PMIX_PROC_INFO ||
      (value->data.darray->size > 0 && !value->data.darray->array))
    return fail(server, "the server's answer is no table of processes");
  const auto& array = *value->data.darray;
  if (array.size > kMostRanks)
    return fail(server, "the server names more ranks than any job has",
                fmt::format("{}, over {}", array.size, kMostRanks));
  std::vector<RankEntry> out;
  const auto* entries = static_cast<const pmix_proc_info_t*>(array.array);
  for (const auto* entry = entries; entry != entries + array.size; ++entry)
    out.push_back({entry->proc.rank, entry->pid, text_of(entry->hostname),
                   text_of(entry->executable_name), text_of(PMIx_Proc_state_string(entry->state))});
  std::ranges::sort(out, {}, &RankEntry::rank);
  return out;
}

std::string to_json(const std::string& name_space, const std::vector<RankEntry>& ranks) {
  auto list = nlohmann::json::array();
  for (const auto& each : ranks)
    list.push_back({{"namespace", to_json_text(name_space)},
                    {"rank", each.rank},
                    {"pid", each.pid},
                    {"host", to_json_text(each.host)},
                    {"program", to_json_text(each.program)},
                    {"state", to_json_text(each.state)}});
  return list.dump(2) + "\n";
}

void Events::push(Event event) {
  // A peer that sends more than anything here waits for must not fill the memory.
  constexpr std::size_t kMost = 10'000;
  const std::lock_guard lock(mutex_);
  if (events_.size() < kMost) events_.push_back(std::move(event));
  arrived_.notify_one();
}

std::optional<Event> Events::wait(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_for(lock, limit, [&] { return !events_.empty(); })) return std::nullopt;
  auto out = std::move(events_.front());
  events_.pop_front();
  return out;
}

void Events::on_event(std::size_t, pmix_status_t status, const pmix_proc_t*, pmix_info_t infos[],
                      std::size_t count, pmix_info_t[], std::size_t,
                      pmix_event_notification_cbfunc_fn_t done, void* data) {
  Event event;
  event.code = status;
  Events* self = nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& value = infos[i].value;
    const auto is = [&](const char* key) {
      return std::strncmp(infos[i].key, key, PMIX_MAX_KEYLEN) == 0;
    };
    if (is(PMIX_EVENT_RETURN_OBJECT) && value.type == PMIX_POINTER)
      self = static_cast<Events*>(value.data.ptr);
    if (is(PMIX_NSPACE)) event.name_space = text_of(value).substr(0, PMIX_MAX_NSLEN);
    if (is(PMIX_EVENT_AFFECTED_PROC) && value.type == PMIX_PROC && value.data.proc)
      event.name_space.assign(value.data.proc->nspace,
                              ::strnlen(value.data.proc->nspace, PMIX_MAX_NSLEN));
    if (is(PMIX_JOB_TERM_STATUS) && value.type == PMIX_STATUS) event.status = value.data.status;
    if (is(PMIX_EXIT_CODE) && value.type == PMIX_INT) event.status = value.data.integer;
  }
  if (self) self->push(std::move(event));
  if (done) done(PMIX_EVENT_ACTION_COMPLETE, nullptr, 0, nullptr, nullptr, data);
}

Result<void> Events::listen(std::vector<pmix_status_t> codes) {
  // libpmix hands the pointer back to each call of the handler, and does not read it.
  pmix_info_t object{};
  std::strncpy(object.key, PMIX_EVENT_RETURN_OBJECT, PMIX_MAX_KEYLEN);
  object.value.type = PMIX_POINTER;
  object.value.data.ptr = this;
  const auto id = PMIx_Register_event_handler(codes.data(), codes.size(), &object, 1, on_event,
                                              nullptr, nullptr);
  if (id < 0) return fail_pmix("", "cannot listen to events", id);
  return {};
}

void leave_pmix_job() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    // PMIX_MCA_ is the user's configuration.
    if ((text.starts_with("PMIX_") && !text.starts_with("PMIX_MCA_")) ||
        text.starts_with("HEDDLE_PMIX_"))
      names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const auto& name : names) ::unsetenv(name.c_str());
}

void limit_memory() {
  const rlimit limit{std::uint64_t{4} << 30, std::uint64_t{4} << 30};
  (void)::setrlimit(RLIMIT_DATA, &limit);
}

void silence_libevent() {
  using Log = void (*)(int, const char*);
  if (void* set_log = ::dlsym(RTLD_DEFAULT, "event_set_log_callback"))
    reinterpret_cast<void (*)(Log)>(set_log)([](int, const char*) {});
}

Fd silence_libpmix() {
  Fd before(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (null) ::dup2(null.get(), STDERR_FILENO);
  return before;
}

}  // namespace heddle::pmix
