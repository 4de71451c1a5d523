// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

namespace heddle {

/// Whether the blocks of the block device `device` come from this machine alone: no image file, no
/// other node (loop, nbd, rbd, drbd, iSCSI, fibre channel, NVMe over fabrics), nor a volume of LVM,
/// a RAID or an encrypted disk with such a part. As /sys tells; what it does not tell is not.
bool is_own_disk(dev_t device, const std::string& sys = "/sys");

}  // namespace heddle
