// SPDX-License-Identifier: MIT
#include "record/loopback/worker_memory.hpp"

namespace heddle::loopback {

void TableMemory::clear() {
  blocks_.clear();
  head_->roots.fill(nullptr);
  head_->changes = 0;
}

void WorkerMemory::recover() {
  store.recover();
  if (tables.is_whole()) return;
  nodes.recover();
  tables.clear();
}

}  // namespace heddle::loopback
