// SPDX-License-Identifier: MIT
#include "resolver/mpi/plugin_rules.hpp"

#include <algorithm>
#include <filesystem>

namespace heddle {
namespace {

namespace fs = std::filesystem;

enum class Holds : bool { plugins, data };

struct Rule {
  const char* soname;  ///< prefix
  /// Below the library's folder; the first that holds a file `has` is it.
  std::vector<const char*> folders;
  const char* has;  ///< prefix of a file name in it
  const char* view_name;
  bool beside;
  std::vector<std::string> environment;
  const char* built_in = nullptr;  ///< what a library may have before the folder's own name
  std::optional<std::string> short_name = {};
  Holds holds = Holds::plugins;
};

// Where each looks: UCX src/ucs/sys/module.c (dladdr of libucs, "ucx" beside); Open MPI
// opal/mca/installdirs (built in, OPAL_*); PMIx the same (PMIX_*); libfabric PROVDLDIR
// (FI_PROVIDER_PATH); hwloc HWLOC_PLUGINS_DIR; rdma-core VERBS_PROVIDER_DIR and IBV_CONFIG_DIR (no
// variable). Names in a view are short where the mount's path of them must fit where the library's
// own string stands: "${libdir}/openmpi", "${libdir}/pmix", "${datadir}/pmix", "/etc/openmpi" or
// "${prefix}/etc", "/etc/libibverbs.d".
const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"libucs.so.", {"ucx"}, "libuct_", "ucx", true, {"UCX_MODULE_DIR"}},
      {"libopen-pal.so.",
       {"openmpi", "openmpi/lib/openmpi3", "openmpi/lib/openmpi40", "openmpi/lib/openmpi",
        "openmpi3", "openmpi40"},
       "mca_",
       "ompi",
       false,
       {"OPAL_PKGLIBDIR"},
       "${libdir}/"},
      {"libopen-pal.so.",
       {"../share/openmpi", "../../share/openmpi", "../../../share/openmpi"},
       "help-",
       "share/openmpi",
       false,
       {"OPAL_PKGDATADIR"},
       "${datadir}/",
       "share",
       Holds::data},
      {"libopen-pal.so.",
       {"../etc", "../../../etc/openmpi"},
       "openmpi-mca-params",
       "etc/openmpi",
       false,
       {"OPAL_SYSCONFDIR"},
       "${prefix}/",
       "",
       Holds::data},
      {"libpmix.so.",
       {"pmix", "pmix2/lib/pmix"},
       "pmix_mca_",
       "pmix",
       false,
       {"PMIX_PKGLIBDIR"},
       "${libdir}/",
       "pm"},
      {"libpmix.so.",
       {"pmix", "pmix2/lib/pmix"},
       "mca_",
       "pmix",
       false,
       {"PMIX_PKGLIBDIR"},
       "${libdir}/",
       "pm"},
      {"libpmix.so.",
       {"../etc", "../share"},
       "pmix-mca-params",
       "etc/pmix",
       false,
       {"PMIX_SYSCONFDIR"},
       "${prefix}/",
       "",
       Holds::data},
      {"libpmix.so.",
       {"../share/pmix", "pmix2/share/pmix"},
       "help-",
       "share/pmix",
       false,
       {"PMIX_PKGDATADIR"},
       "${datadir}/",
       "hlp",
       Holds::data},
      {"libfabric.so.", {"libfabric"}, "lib", "libfabric", false, {"FI_PROVIDER_PATH"}},
      {"libhwloc.so.", {"hwloc"}, "hwloc_", "hwloc", false, {"HWLOC_PLUGINS_PATH"}},
      {"libibverbs.so.", {"libibverbs"}, "lib", "libibverbs", false, {}},
      {"libibverbs.so.",
       {"../../../etc/libibverbs.d", "../../etc/libibverbs.d"},
       "",
       "etc/libibverbs.d",
       false,
       {},
       nullptr,
       "ibv.d"},
  };
  return kRules;
}

bool is_shared_object(const std::string& name) {
  return name.ends_with(".so") || name.find(".so.") != name.npos;
}

bool fill(PluginFolder& folder, const std::string& has) {
  std::error_code error;
  bool fits = false;
  for (fs::directory_iterator walk(folder.path, error), end; !error && walk != end;
       walk.increment(error)) {
    const auto name = walk->path().filename().string();
    fits |= name.starts_with(has);
    std::error_code none;
    if (is_shared_object(name) && walk->is_regular_file(none)) folder.plugins.push_back(name);
  }
  std::sort(folder.plugins.begin(), folder.plugins.end());
  return fits;
}

}  // namespace

std::vector<PluginFolder> plugin_folders_of(const std::string& path, const std::string& soname) {
  std::vector<PluginFolder> out;
  for (const auto& rule : rules()) {
    if (!soname.starts_with(rule.soname)) continue;
    for (const auto* relative : rule.folders) {
      std::error_code error;
      const auto place = fs::canonical(fs::path(path).parent_path() / relative, error);
      if (error) continue;
      PluginFolder folder;
      folder.path = place.string();
      folder.view_name = rule.view_name;
      folder.wanted_by = path;
      folder.beside = rule.beside;
      folder.environment = rule.environment;
      folder.built_in = {folder.path};
      if (rule.built_in != nullptr)
        folder.built_in.push_back(rule.built_in + place.filename().string());
      folder.short_name = rule.short_name;
      folder.is_data = rule.holds == Holds::data;
      folder.only = rule.has;
      if (!fill(folder, rule.has)) continue;
      out.push_back(std::move(folder));
      break;
    }
  }
  return out;
}

}  // namespace heddle
