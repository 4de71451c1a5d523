// SPDX-License-Identifier: MIT
#include "fuseovl/files/own_disk.hpp"

#include <fmt/format.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Devices made of devices, of these. More are a loop, or nothing anybody has.
constexpr int kMostLevels = 8;

bool is_own(const fs::path& link, int level) {
  std::error_code failed;
  // .../0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1, or .../virtual/block/dm-0
  const auto folder = fs::canonical(link, failed);
  if (failed || level > kMostLevels) return false;
  const auto path = folder.string();
  // The transports' own words in it: drivers/scsi/scsi_transport_{iscsi,fc}.c, nvme/host/fabrics.c.
  constexpr std::array<std::string_view, 4> kRemote = {"/session", "/rport-", "/nvme-fabrics/",
                                                       "/rbd/"};
  if (std::ranges::any_of(kRemote, [&](auto word) { return path.find(word) != path.npos; }))
    return false;
  if (path.find("/virtual/") == path.npos) return true;
  const auto name = folder.filename().string();
  if (!name.starts_with("dm-") && !name.starts_with("md")) return false;
  bool some = false;
  for (const auto& part : fs::directory_iterator(folder / "slaves", failed)) {
    if (!is_own(part.path(), level + 1)) return false;
    some = true;
  }
  return some && !failed;
}

}  // namespace

bool is_own_disk(dev_t device, const std::string& sys) {
  return is_own(fmt::format("{}/dev/block/{}:{}", sys, ::major(device), ::minor(device)), 0);
}

}  // namespace heddle
