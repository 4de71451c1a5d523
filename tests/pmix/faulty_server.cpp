// SPDX-License-Identifier: MIT
// faulty_server FILE silent|denies|refuses|dies|many|nonsense|hostile DIR: a PMIx server that
// writes its address into FILE, its files into DIR, and answers queries as its second argument
// says, until it is killed.

#include <pmix.h>
#include <pmix_server.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string mode;

void answer(const char* key, const void* value, pmix_data_type_t type, pmix_info_cbfunc_t done,
            void* object) {
  static pmix_info_t info;
  std::memset(&info, 0, sizeof(info));
  PMIx_Info_load(&info, key, value, type);
  done(PMIX_SUCCESS, &info, 1, object, nullptr, nullptr);
}

pmix_status_t on_query(pmix_proc_t*, pmix_query_t* queries, std::size_t, pmix_info_cbfunc_t done,
                       void* object) {
  if (mode == "silent") return PMIX_SUCCESS;
  if (mode == "denies") return PMIX_ERR_NO_PERMISSIONS;
  if (mode == "dies") ::_exit(0);
  if (std::strcmp(queries[0].keys[0], PMIX_QUERY_NAMESPACES) == 0) {
    std::string names = "job";
    if (mode == "many")
      for (int i = 0; i < 5000; ++i) names += ",job" + std::to_string(i);
    if (mode == "hostile") names = "j\033[2J\nob";
    answer(PMIX_QUERY_NAMESPACES, names.c_str(), PMIX_STRING, done, object);
  } else if (mode == "nonsense") {
    answer(PMIX_QUERY_PROC_TABLE, "no table", PMIX_STRING, done, object);
  } else {
    static std::string host = "h\033]0;x\007\nost", program(100'000, 'p');
    static pmix_proc_info_t entry;
    std::strcpy(entry.proc.nspace, "job");
    entry.proc.rank = 4'000'000'000U;
    entry.pid = -5;
    entry.hostname = host.data();
    entry.executable_name = program.data();
    pmix_data_array_t array{PMIX_PROC_INFO, 1, &entry};
    answer(PMIX_QUERY_PROC_TABLE, &array, PMIX_DATA_ARRAY, done, object);
  }
  return PMIX_SUCCESS;
}

void on_tool(pmix_info_t*, std::size_t, pmix_tool_connection_cbfunc_t done, void* object) {
  pmix_proc_t name{};
  std::strcpy(name.nspace, "tool");
  done(mode == "refuses" ? PMIX_ERR_NO_PERMISSIONS : PMIX_SUCCESS, &name, object);
}

}  // namespace

int main(int, char** argv) {
  mode = argv[2];
  pmix_server_module_t module{};
  module.query = on_query;
  module.tool_connected = on_tool;
  pmix_info_t infos[5] = {};
  const pmix_rank_t rank = 0;
  const bool yes = true;
  PMIx_Info_load(&infos[0], PMIX_SERVER_TOOL_SUPPORT, &yes, PMIX_BOOL);
  PMIx_Info_load(&infos[1], PMIX_SERVER_NSPACE, "faulty", PMIX_STRING);
  PMIx_Info_load(&infos[2], PMIX_SERVER_TMPDIR, argv[3], PMIX_STRING);
  PMIx_Info_load(&infos[3], PMIX_SYSTEM_TMPDIR, argv[3], PMIX_STRING);
  PMIx_Info_load(&infos[4], PMIX_SERVER_RANK, &rank, PMIX_PROC_RANK);
  if (PMIx_server_init(&module, infos, 5) != PMIX_SUCCESS) return 1;
  pmix_proc_t self{};
  std::strcpy(self.nspace, "faulty");
  pmix_value_t* uri = nullptr;
  if (PMIx_Get(&self, PMIX_MYSERVER_URI, nullptr, 0, &uri) != PMIX_SUCCESS) return 1;
  const std::string file = argv[1];
  std::FILE* out = std::fopen((file + ".new").c_str(), "w");
  std::fprintf(out, "%s\n", uri->data.string);
  std::fclose(out);
  std::rename((file + ".new").c_str(), file.c_str());
  for (;;) ::pause();
}
