// SPDX-License-Identifier: MIT
#include "tests/overlay/mount_users.hpp"

#include <utility>

namespace heddle::test {

std::chrono::seconds time_to_spend() {
  const char* asked = std::getenv("HEDDLE_TEST_SECONDS");
  return std::chrono::seconds(asked ? std::atoi(asked) : kSanitized ? 10 : 3);
}

std::vector<int> children_of(int pid) {
  std::vector<int> out;
  const auto id = std::to_string(pid);
  std::ifstream in("/proc/" + id + "/task/" + id + "/children");
  for (int child = 0; in >> child;) out.push_back(child);
  return out;
}

Footprint footprint(int pid) {
  const auto directory = "/proc/" + std::to_string(pid);
  Footprint out;
  out.fds = static_cast<std::size_t>(std::distance(fs::directory_iterator(directory + "/fd"), {}));
  std::ifstream in(directory + "/status");
  for (std::string word; in >> word;)
    if (word == "RssAnon:") in >> out.kib;
  return out;
}

namespace {

/// CPU time of `pid`.
std::chrono::nanoseconds time_spent(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/schedstat");
  std::int64_t ns = 0;
  in >> ns;
  return std::chrono::nanoseconds(ns);
}

/// Waits until the number of descriptors is stable: sockets are closed after the answer.
void wait_until_stable(int pid) {
  auto before = footprint(pid).fds;
  const bool settled = wait_until(5s, [&] {
    std::this_thread::sleep_for(100ms);
    const auto earlier = std::exchange(before, footprint(pid).fds);
    return earlier == before;
  });
  EXPECT_TRUE(settled) << "the number of descriptors is not stable";
}

}  // namespace

WithoutDescriptors::WithoutDescriptors(int pid) : pid_(pid) {
  wait_until_stable(pid);
  // Not below the first free number: poll(2) takes at most RLIMIT_NOFILE entries.
  rlim_t free = 0;
  while (fs::is_symlink("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(free))) ++free;
  rlimit none{free, 0};
  if (::prlimit(pid, RLIMIT_NOFILE, nullptr, &before_) == 0) none.rlim_max = before_.rlim_max;
  if (none.rlim_max == 0 || ::prlimit(pid, RLIMIT_NOFILE, &none, nullptr) != 0)
    throw Error::from_errno(std::to_string(pid), "prlimit");
}

WithoutDescriptors::~WithoutDescriptors() {
  (void)::prlimit(pid_, RLIMIT_NOFILE, &before_, nullptr);
}

void expect_rest(int pid) {
  const auto before = time_spent(pid);
  (void)wait_until(400ms, [&] { return time_spent(pid) - before > 100ms; });
  // Polling twenty times a second costs 10 ms; spinning costs half a core at least.
  EXPECT_LT(time_spent(pid) - before, 60ms) << "it spins";
}

Result<std::string> read_uncached(const std::string& path) {
  auto file = open_file(path, O_RDONLY);
  if (!file) return fail(file.error());
  ::posix_fadvise(file->get(), 0, 0, POSIX_FADV_DONTNEED);
  return read_all(file->get(), path);
}

MountReaders::MountReaders(const Mount& mount, std::function<std::string(int)> content) {
  for (int t = 0; t < 4; ++t)
    threads_.emplace_back([this, &mount, content, t](const std::stop_token& stop) {
      for (int i = 0; !stop.stop_requested(); ++i, ++rounds) {
        const int n = i % 20;
        const auto got = read_uncached(mount / ("file" + std::to_string(n)));
        wrong += !got || *got != content(n);
        struct stat st {};
        const auto name = mount / ("none-" + std::to_string(t) + "-" + std::to_string(i));
        wrong += ::stat(name.c_str(), &st) == 0 || errno != ENOENT;
      }
    });
}

std::string write_map(const ElfFarm& farm, const std::string& map) {
  MapMaker maker;
  for (std::size_t i = 0; i < farm.libraries.size(); ++i)
    maker.add_name("app", farm.sonames[i], farm.libraries[i]);
  return maker.write(map);
}

Starts::Starts(const ElfFarm& farm, const Mount& mount) {
  const RunOptions options{.env = {"LD_LIBRARY_PATH=" + mount.path()}};
  for (int i = 0; i < 8; ++i)
    loops_.emplace_back([this, &farm, options](const std::stop_token& stop) {
      for (; !stop.stop_requested(); ++done) {
        const auto ran = run({farm.program}, options);
        if (ran.out != farm.output || ran.status != 0)
          ++failed, ADD_FAILURE() << ran.status << ran.err;
      }
    });
  // Cached pages cause no requests.
  loops_.emplace_back([&farm, &mount](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const auto& soname : farm.sonames)
        if (auto file = open_file(mount / soname, O_RDONLY))
          ::posix_fadvise(file->get(), 0, 0, POSIX_FADV_DONTNEED);
      std::this_thread::sleep_for(20ms);
    }
  });
}

}  // namespace heddle::test
