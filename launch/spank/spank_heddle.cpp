// SPDX-License-Identifier: MIT
//
// spank_heddle.so, a plugin of Slurm (spank(8)) for plugstack.conf: `srun --heddle[=MAP]` is
// `fs-launch [--map MAP] srun`, also with --export=NONE. In each task it sets LD_AUDIT and
// HEDDLE_LAUNCH (base/rank_mark.hpp) of the installation that it is in, and that is all: it mounts
// nothing and needs no rights, since the agent does so in the task. Slurm takes only plugins of its
// own version, so a site builds it. Loaded into srun and slurmstepd: no exceptions, no allocation.

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rank_mark.hpp"

extern "C" {
#include <slurm/spank.h>
// A const that is not declared is seen in this file only.
extern const char plugin_name[], plugin_type[];
extern const unsigned int plugin_version, spank_plugin_version;
SPANK_PLUGIN(heddle, 1)
}

namespace {

constexpr const char* kPlain =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@";

bool wanted = false;
char map_path[PATH_MAX];  // empty: each node resolves

/// For the user, by srun, and for each task, by slurmstepd: `remote`.
int take_option(int, const char* value, int remote) {
  if (!value || strcmp(value, "(null)") == 0) value = "";  // what Slurm hands on of no value
  wanted = strcmp(value, "off") != 0;
  if (!*value || !wanted) return 0;
  if (value[0] != '/' || strlen(value) >= sizeof map_path) {
    if (!remote) slurm_error("--heddle: %s: not an absolute path of a map", value);
    return -1;
  }
  strcpy(map_path, value);
  return 0;
}

spank_option option = {const_cast<char*>("heddle"),
                       const_cast<char*>("[MAP]"),
                       const_cast<char*>("tasks find their libraries in advance, by this map or "
                                         "bundle, or as each node resolves (off: as ever)"),
                       2,
                       0,
                       take_option};

/// The installation's directory: this file is PREFIX/lib/heddle/spank_heddle.so. False: launchers
/// and ld.so would split the path.
bool find_prefix(char (&prefix)[PATH_MAX]) {
  Dl_info self;
  if (dladdr(reinterpret_cast<const void*>(&find_prefix), &self) == 0 || !self.dli_fname ||
      !realpath(self.dli_fname, prefix))
    return false;
  for (int i = 0; i < 3; ++i) {
    char* slash = strrchr(prefix, '/');
    if (!slash) return false;
    *slash = '\0';
  }
  return prefix[strspn(prefix, kPlain)] == '\0';
}

/// As launch/launch_settings.hpp's encode().
void append_encoded(char* out, const char* text) {
  out += strlen(out);
  for (; *text; ++text)
    out += sprintf(out, strchr(kPlain, *text) ? "%c" : "%%%02x", static_cast<unsigned char>(*text));
}

}  // namespace

extern "C" int slurm_spank_init(spank_t spank, int count, char** words) {
  const auto where = spank_context();
  if (where != S_CTX_LOCAL && where != S_CTX_REMOTE) return 0;
  for (int i = 0; i < count; ++i) wanted |= strcmp(words[i], "default=on") == 0;
  return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

/// In the task, as its user, before exec.
extern "C" int slurm_spank_task_init(spank_t spank, int, char**) {
  // Of fs-launch, or srun's user; static, since a stepd's stack is small.
  static char prefix[PATH_MAX], library[PATH_MAX + 64], theirs[64 * 1024],
      list[sizeof library + sizeof theirs], launch[PATH_MAX + 64 + 3 * PATH_MAX];
  if (!wanted ||
      spank_getenv(spank, heddle::kLaunchVariable, theirs, sizeof theirs) != ESPANK_ENV_NOEXIST)
    return 0;
  const auto had = spank_getenv(spank, "LD_AUDIT", theirs, sizeof theirs);
  if (!find_prefix(prefix) || (had != ESPANK_SUCCESS && had != ESPANK_ENV_NOEXIST)) return 0;
  snprintf(library, sizeof library, "%s/lib/heddle/libheddle-audit.so", prefix);
  snprintf(list, sizeof list, "%s%s%s", library, had == ESPANK_SUCCESS ? ":" : "",
           had == ESPANK_SUCCESS ? theirs : "");
  // The mark of a launcher that is no rank itself.
  snprintf(launch, sizeof launch, "%s/bin/fs-launch%c%016x", prefix, heddle::kSeparator, 0);
  if (map_path[0]) {
    strcat(launch, ",map=");
    append_encoded(launch, map_path);
  }
  spank_setenv(spank, "LD_AUDIT", list, 1);
  spank_setenv(spank, heddle::kLaunchVariable, launch, 1);
  return 0;
}
